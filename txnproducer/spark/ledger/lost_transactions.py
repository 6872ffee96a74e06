"""The cause of a whole batch's lost transaction. It timed out, or another driver took it.

Owns: the question to the coordinator, and the text of the time-out. Must not know: the proof in an
answer or an error (`txnproducer._core.transactions.transaction_loss`), Spark, how rows are
written.

Rule: if the answer is not certain, no other driver was seen. The batch is then tried again, or has
timed out.
"""

from __future__ import annotations

import logging
from typing import Final

from txnproducer._core.transactions.transaction_loss import Cause, TransactionLoss, is_taken_over
from txnproducer.admin import describe_transaction
from txnproducer.errors import KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.spark.errors import BatchTimedOutError
from txnproducer.spark.ledger.store import Ledger

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10.0


def is_another_driver_seen(
    ledger: Ledger, lease: TransactionLease | None, error: BaseException
) -> bool:
    """Return whether another driver has certainly taken the id of whole batches since.

    Args:
        ledger: of the sink.
        lease: of the transaction that was lost; None if the driver alone wrote into it.
        error: that showed the loss.
    """
    if lease is None:  # then the producer itself has asked
        return is_taken_over(error)
    try:
        found = describe_transaction(
            ledger.bootstrap_servers, ledger.whole_id, _TIMEOUT_S, **ledger.security
        )
    except KafkaError as error:
        # No proof of another driver: the batch is tried again, and that attempt finds out.
        _LOG.warning("cannot ask who holds the transactional id %s: %s", ledger.whole_id, error)
        return False
    # The id has expired at its coordinator, which proves nothing about another driver.
    if found is None:
        return False
    # Without an age, an abort under the next epoch proves nothing; the clock shows a time-out.
    version = 2 if lease.is_transaction_v2 else 1
    loss = TransactionLoss(lease.producer, version, age_ms=None, timeout_ms=0, noticed_ms=0)
    loss.take(found)
    return loss.cause is Cause.TAKEN_OVER


def timed_out(name: str, timeout_ms: int, seconds: float, slowest: str) -> BatchTimedOutError:
    """Make the error of a batch that the broker has aborted.

    Args:
        name: of the batch.
        timeout_ms: of the transaction.
        seconds: since it was begun.
        slowest: the part that took longest, as a text for people; may be empty.
    """
    return BatchTimedOutError(
        f"batch {name} was not written within its transaction's time-out: "
        f"transactionTimeout={timeout_ms} (ms), and {seconds:.1f} s after it began it is not "
        f"committed{slowest}. The broker has aborted it; nothing of it is visible. Ways out: a "
        "larger transactionTimeout (up to the broker's transaction.max.timeout.ms), or smaller "
        "batches (such as maxOffsetsPerTrigger, maxFilesPerTrigger)"
    )
