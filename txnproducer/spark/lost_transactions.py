"""Why a whole batch lost its transaction: it timed out, or another driver took it.

Owns: telling the two apart, and the time-out's text. Must not know: Spark, how rows are written.

A broker answers both alike (47 to those who write, 48 or 90 to those who end), and says of both
that a newer producer fenced us. What it knows about the id tells them apart: a transaction that
timed out is aborted under the next epoch, and nothing has happened since; whoever takes the id
moves the epoch on by two, or leaves another state. Where that can't be told, nobody was seen.
"""

from __future__ import annotations

import logging
from typing import Final

from txnproducer.admin import describe_transaction
from txnproducer.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.errors import BatchTimedOutError
from txnproducer.spark.ledger import Ledger

_LOG = logging.getLogger(__name__)
_LOST: Final = (InvalidProducerEpochError, InvalidTxnStateError, ProducerFencedError)
_ENDED: Final = ("PrepareAbort", "CompleteAbort", "PrepareCommit", "CompleteCommit")
_TIMEOUT_S: Final = 10.0


def tells_of_loss(error: BaseException | None) -> bool:
    """Tell whether an error is what a broker says of a transaction that is somebody else's now."""
    while error is not None:
        if isinstance(error, _LOST):
            return True
        error = error.__cause__
    return False


def is_another_driver_seen(ledger: Ledger, producer: ProducerIdAndEpoch) -> bool:
    """Tell whether somebody has certainly taken the id of whole batches since.

    Args:
        ledger: of the sink.
        producer: who held the transaction.
    """
    try:
        found = describe_transaction(
            ledger.bootstrap_servers, ledger.whole_id, _TIMEOUT_S, **ledger.security
        )
    except KafkaError as error:
        _LOG.warning("can't ask who holds the transactional id %s: %s", ledger.whole_id, error)
        return False
    if found is None:
        return False
    if found.producer_id != producer.producer_id:
        return True
    # Under the next epoch what has ended may be ours: a time-out's abort, or our own commit.
    epochs = found.producer_epoch - producer.producer_epoch
    return epochs > 1 or (epochs == 1 and found.state not in _ENDED)


def timed_out(batch_id: int, timeout_ms: int, seconds: float, slowest: str) -> BatchTimedOutError:
    """Make the error of a batch that the broker has aborted.

    Args:
        batch_id: which one.
        timeout_ms: of the transaction.
        seconds: since it was begun.
        slowest: which part took longest, for people; may be empty.
    """
    return BatchTimedOutError(
        f"batch {batch_id} was not written within its transaction's time-out: "
        f"transactionTimeout={timeout_ms} (ms), and {seconds:.1f} s after it began it is not "
        f"committed{slowest}. The broker has aborted it; nothing of it is visible. Ways out: a "
        "larger transactionTimeout (up to the broker's transaction.max.timeout.ms), or smaller "
        "batches (such as maxOffsetsPerTrigger, maxFilesPerTrigger)"
    )
