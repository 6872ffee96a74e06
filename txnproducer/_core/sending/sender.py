"""The sender's step: one turn of Java's sender thread, without the thread and without waiting.

Owns: the order of the things done in a step, the phases of a close. Must not know: how each is
done.

The order, with a transaction manager:

    1  resolve sequences that were left in doubt; ask why a transaction was lost
    2  fatal? then every batch and request fails, and that is all
    3  refused by authorization in a way that `init_transactions` can try again? then begin anew
    4  idempotent: a due epoch bump, or the first producer id
    5  a coordinator request on the wire, or one to send? then no data goes in this step
    6  else data: expired batches were failed before, so that none of them is sent

Rules:
* `run_once` returns in how many milliseconds it wants to be called again; any event may come
  before.
* Batches expire in every step, also while coordinator requests keep data waiting: each record's
  fate is known within `delivery_timeout_ms`.
* Whatever ends the sender fails what is still queued: nobody waits for ever.
"""

from __future__ import annotations

import logging
from enum import IntEnum

from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.sending.coordinator_sender import CoordinatorSender
from txnproducer._core.sending.metadata_refresher import MetadataRefresher
from txnproducer._core.sending.produce_sender import ProduceSender
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer.errors import (
    AuthenticationError,
    ClusterAuthorizationError,
    KafkaError,
    TransactionalIdAuthorizationError,
)

_LOG = logging.getLogger(__name__)

_CLOSED = "the producer was closed before this was done"


class Phase(IntEnum):
    """How far the sender has come with closing."""

    RUNNING = 0
    CLOSING = 1  # sending what there is, then ending an open transaction
    CLOSED = 2


class Sender:
    """Take the steps.

    Args:
        transactions: the manager; None without idempotence.
        coordinators: sends its requests; None without idempotence.
        producing: sends data.
        refresher: keeps metadata up to date.
        accumulator: has the batches.
        retry_backoff_ms: how often a failed producer still looks around.
    """

    def __init__(
        self,
        transactions: TransactionManager | None,
        coordinators: CoordinatorSender | None,
        producing: ProduceSender,
        refresher: MetadataRefresher,
        accumulator: RecordAccumulator,
        retry_backoff_ms: int,
    ) -> None:
        self._transactions = transactions
        self._coordinators = coordinators
        self._producing = producing
        self._refresher = refresher
        self._accumulator = accumulator
        self._retry_backoff_ms = retry_backoff_ms
        self._phase = Phase.RUNNING

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to do and everything that waited was answered."""
        return self._phase is Phase.CLOSED

    def run_once(self, now_ms: int) -> int:
        """Take one step; return after how many milliseconds the next is due."""
        if self._phase is Phase.CLOSED:
            return NEVER_MS
        # In this order: a leader that is not known asks for metadata in this very step. (Compiled,
        # the calls among the arguments of one `min` are made in another one.)
        step_ms = self._step(now_ms)
        delay_ms = min(step_ms, self._refresher.step(now_ms))
        if self._phase is Phase.CLOSING:
            delay_ms = min(delay_ms, self._continue_closing())
        return max(0, delay_ms)

    def _step(self, now_ms: int) -> int:
        next_expiry_ms = self._producing.expire(now_ms)
        delay_ms = None
        if self._transactions is not None and self._coordinators is not None:
            delay_ms = self._step_transactions(self._transactions, self._coordinators, now_ms)
        if delay_ms is None:
            delay_ms = self._producing.step(now_ms)
        return min(delay_ms, max(0, next_expiry_ms - now_ms))

    def _step_transactions(
        self, transactions: TransactionManager, coordinators: CoordinatorSender, now_ms: int
    ) -> int | None:
        """Do what comes before data; return a delay if no data may go, else None."""
        transactions.progress.maybe_resolve_sequences()
        coordinators.ask_about_loss(now_ms)
        if transactions.machine.has_fatal_error:
            self._fail_everything(transactions, coordinators)
            return self._retry_backoff_ms
        if self._begin_anew(transactions, coordinators):
            return 0
        if not transactions.is_transactional:
            # Before the numbers change, which some batches must not.
            renumbered = transactions.sequences.partitions_to_renumber
            self._producing.fail_what_must_keep_its_number(renumbered, now_ms)
        transactions.progress.bump_idempotent_epoch_and_reset_id_if_needed()
        return coordinators.step(now_ms)

    def _fail_everything(
        self, transactions: TransactionManager, coordinators: CoordinatorSender
    ) -> None:
        error = transactions.machine.last_error or KafkaError("the producer has failed")
        coordinators.fail_request_in_hand(error)
        self._producing.abort_all(error)

    def _begin_anew(
        self, transactions: TransactionManager, coordinators: CoordinatorSender
    ) -> bool:
        """Go back to the start after a refusal that left the producer without an identity."""
        error = transactions.machine.last_error
        if error is None or not transactions.progress.must_begin_anew:
            return False
        refusal = error
        if isinstance(error, (ClusterAuthorizationError, TransactionalIdAuthorizationError)):
            refusal = AuthenticationError(str(error))
            refusal.__cause__ = error
        coordinators.fail_request_in_hand(refusal)
        transactions.requests.fail_pending_requests(refusal)
        self._producing.abort_all(error)
        transactions.progress.transition_to_uninitialized(error)
        return True

    # --- close ----------------------------------------------------------------------------------

    def initiate_close(self) -> None:
        """Refuse appends from now on, and end once everything was sent and answered."""
        self._accumulator.close()
        if self._phase is Phase.RUNNING:
            self._phase = Phase.CLOSING

    def force_close(self) -> None:
        """End now: fail everything that has not ended."""
        if self._phase is Phase.CLOSED:
            return
        self._accumulator.close()
        self._end(KafkaError("the producer was closed by force"))

    def _continue_closing(self) -> int:
        """Go on with a close after a step; return after how many milliseconds to go on."""
        transactions = self._transactions
        if self._has_work_left(transactions):
            return NEVER_MS
        if transactions is None or not transactions.machine.has_ongoing_transaction:
            self._end(KafkaError(_CLOSED))
            return 0
        if transactions.share.is_left_open_on_close:
            _LOG.info("the open transaction is another process's to end")
            self._end(KafkaError(_CLOSED))
            return 0
        try:
            _LOG.info("aborting the open transaction, because the producer is being closed")
            if transactions.begin_abort().is_completed:
                # It has ended before; what followed has failed, and is not needed any more.
                self._end(KafkaError(_CLOSED))
        except KafkaError as error:
            _LOG.warning("could not abort the open transaction while closing: %s", error)
            self._end(KafkaError("the producer was closed, and its transaction left open"))
        return 0

    def _has_work_left(self, transactions: TransactionManager | None) -> bool:
        if self._accumulator.has_undrained or self._producing.requests_in_flight:
            return True
        if transactions is None or self._coordinators is None:
            return False
        if transactions.requests.has_in_flight_request:
            return True
        has_requests = transactions.requests.has_pending_requests or self._coordinators.has_request
        is_ending = transactions.machine.is_completing
        return is_ending or (has_requests and transactions.machine.has_ongoing_transaction)

    def _end(self, error: KafkaError) -> None:
        if self._coordinators is not None:
            self._coordinators.fail_request_in_hand(error)
        if self._transactions is not None:
            self._transactions.progress.close(error)
        self._producing.abort_all(error)
        # Last: an exception before it leaves an end that the next call makes.
        self._phase = Phase.CLOSED
