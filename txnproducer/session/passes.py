"""The passes of a session over its batches: which failure is followed by another, and when.

Owns: the function's calls, and the pause after a failed pass. Must not know: polls, the way back
after an abort (`session`).
Rule: a record that fails is waited for by the number of its own failures, and anything that
fails besides by the number of passes in a row. So many bad records in one batch do not make each
other slow, and a failure that lasts does not take all of a processor.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._shell.runs_in_threads import run_once
from txnproducer._shell.transaction_runs import Bounds, Run, UnfinishedError
from txnproducer.errors import FencedInstanceIdError, KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.session.batch import Batch, Record
from txnproducer.session.block import SessionBlock
from txnproducer.session.failures import Failures, PoisonError, text_of
from txnproducer.transaction import Transaction

__all__ = ["Passes"]

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 5000


class Passes:
    """The passes of one `run`.

    Args:
        producer: of the transactions.
        failures: of the records.
        fn: gets each record, and the transaction of its batch.
        retry_on: exceptions of the function that are no failures of a record.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        failures: Failures,
        fn: Callable[[Record, Transaction], object],
        retry_on: tuple[type[BaseException], ...],
    ) -> None:
        self._producer = producer
        self._failures = failures
        self._fn = fn
        self._retry_on = retry_on
        # The jitter keeps workers apart that have failed together.
        rng = random.Random()  # noqa: S311 - no secret
        self._backoff = ExponentialBackoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, rng)
        self._aborts = 0

    def take(self, batch: Batch, block: SessionBlock) -> float:
        """Process a batch, once.

        Args:
            batch: of the last poll.
            block: of its transaction; not entered yet.

        Returns:
            The seconds to wait before it is read again; 0 if it is committed.

        Raises:
            KafkaError: another pass would not help.
            Exception: of the function, likewise.
        """
        failed: BaseException | None = None
        run: Run[SessionBlock, None] = Run(block, Bounds(retry_on=self._retry_on), has_look=False)
        try:
            run_once(self._producer, lambda txn: self._call(batch, txn), run, str)
        except Exception as error:
            if not self._is_read_again(error, run):
                block.name_way_out(error)
                self._failures.name_refused(error)
                raise
            why = text_of(error.__cause__ or error)
            _LOG.warning("%d records are read again: %s", len(batch), why)
            failed = error
        if block.outcome == "committed":
            self._aborts = 0
            return 0.0
        if isinstance(failed, PoisonError):
            return self._backoff.draw_ms(failed.count - 1) / 1000
        self._aborts += 1
        return self._backoff.draw_ms(self._aborts - 1) / 1000

    def _call(self, batch: Batch, transaction: Transaction) -> None:
        for record in batch:
            self._failures.process(record, self._fn, transaction, self._retry_on)

    def _is_read_again(self, error: Exception, run: Run[SessionBlock, None]) -> bool:
        """Return whether a batch is read again after an error. Raise a function's last error."""
        if isinstance(error, UnfinishedError):
            return False
        if isinstance(error, (PoisonError, *self._retry_on)):
            if isinstance(error, PoisonError) and not error.may_be_read_again:
                raise error.error from None
            return True
        # A result that brokers refuse for good would be refused again and again.
        cause = error.__cause__
        is_for_good = isinstance(cause, KafkaError) and cause.recovery == "fix"
        # Another process has this one's place in the group, and keeps it.
        is_for_good = is_for_good or isinstance(error, FencedInstanceIdError)
        return run.may_run_again and not is_for_good
