"""The sender's step: one pass of Java's sender thread, without the thread and without waiting.

Owns: the order of a step's actions, the phases of a close. Must not know: how each action works.

The order, with a transaction manager:

    0  batches that are past their delivery time-out fail, so that none of them is sent
    1  sequences that were left in doubt are resolved; the reason of a lost transaction is asked
    2  after a fatal error every batch and request fails, and the step ends
    3  after an authorization error that `init_transactions` can repair, the producer goes back to
       its beginning
    4  an idempotent producer makes a due epoch bump, or asks for its first producer id
    5  if a coordinator request is on the wire, or one can be sent, no data goes in this step, but
       the brokers of waiting batches are connected to
    6  otherwise data is sent

Rules:
* `run_once` returns in how many milliseconds it wants to be called again; any event may come
  before.
* Any step may find a batch whose time is up, also while coordinator requests keep data waiting:
  each record ends within `delivery_timeout_ms`.
* Every end of the sender fails all that is still queued, so that no caller waits for ever.
"""

from __future__ import annotations

from enum import IntEnum

from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.sending.coordinator_sender import CoordinatorSender
from txnproducer._core.sending.metadata_refresher import MetadataRefresher
from txnproducer._core.sending.produce_sender import ProduceSender
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.state import ERROR_STATES
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    AuthenticationError,
    ClusterAuthorizationError,
    KafkaError,
    TransactionalIdAuthorizationError,
)

_LOG = held_logger(__name__)

_CLOSED = "the producer was closed before this was done"


class Phase(IntEnum):
    """The progress of a close."""

    RUNNING = 0
    CLOSING = 1  # sending all records, then ending an open transaction
    CLOSED = 2


class Sender:
    """Take the steps.

    Args:
        transactions: the manager; None without idempotence.
        coordinators: sends its requests; None without idempotence.
        producing: sends data.
        refresher: keeps metadata up to date.
        accumulator: has the batches.
    """

    def __init__(
        self,
        transactions: TransactionManager | None,
        coordinators: CoordinatorSender | None,
        producing: ProduceSender,
        refresher: MetadataRefresher,
        accumulator: RecordAccumulator,
    ) -> None:
        self._transactions = transactions
        self._coordinators = coordinators
        self._producing = producing
        self._refresher = refresher
        self._accumulator = accumulator
        self._phase = Phase.RUNNING

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to do and everything that waited was answered."""
        return self._phase is Phase.CLOSED

    def run_once(self, now_ms: int) -> int:
        """Take one step. Return after how many milliseconds the next is due."""
        if self._phase is Phase.CLOSED:
            return NEVER_MS
        # First, so that no batch is sent in the step in which it fails.
        if now_ms >= self._producing.expiry_ms:
            self._producing.expire(now_ms)
        delay_ms = None
        if self._transactions is not None and self._coordinators is not None:
            delay_ms = self._step_transactions(self._transactions, self._coordinators, now_ms)
        if delay_ms is None:
            delay_ms = self._producing.step(now_ms)
        else:
            self._producing.connect_ahead(now_ms)
        # After the data, so that an unknown leader leads to a request in this very step.
        delay_ms = min(delay_ms, self._refresher.step(now_ms))
        # A batch may expire before anything else wakes the sender.
        if self._accumulator.has_incomplete:
            delay_ms = min(delay_ms, self._producing.expiry_ms - now_ms)
        if self._phase is Phase.CLOSING:
            delay_ms = min(delay_ms, self._continue_closing())
        return max(0, delay_ms)

    def _step_transactions(
        self, transactions: TransactionManager, coordinators: CoordinatorSender, now_ms: int
    ) -> int | None:
        """Do the steps before data. Return a delay if no data may go, None if it may."""
        # Before the state is looked at: a lost batch may change it.
        transactions.progress.maybe_resolve_sequences()
        # Also after a fatal error, whose text can name the cause.
        inquiry_ms = NEVER_MS
        if transactions.progress.loss is not None:
            inquiry_ms = coordinators.ask_about_loss(transactions.progress.loss, now_ms)
        if transactions.machine.state in ERROR_STATES:
            if transactions.machine.has_fatal_error:
                self._fail_everything(transactions, coordinators)
                # Besides the inquiry, only an event or a call can still change something.
                return inquiry_ms
            if self._reinitialize(transactions, coordinators):
                return 0
        if not transactions.is_transactional:
            # Before the bump: it would give new numbers to batches that must keep theirs.
            renumbered = transactions.sequences.partitions_to_renumber
            self._producing.fail_batches_that_cannot_be_renumbered(renumbered, now_ms)
            transactions.progress.bump_idempotent_epoch_and_reset_id_if_needed()
        return coordinators.step(now_ms)

    def _fail_everything(
        self, transactions: TransactionManager, coordinators: CoordinatorSender
    ) -> None:
        error = transactions.machine.last_error or KafkaError("the producer has failed")
        coordinators.fail_request_in_hand(error)
        self._producing.abort_all(error)

    def _reinitialize(
        self, transactions: TransactionManager, coordinators: CoordinatorSender
    ) -> bool:
        """Go back to the beginning if a refusal left the producer without an identity."""
        error = transactions.machine.last_error
        if error is None or not transactions.progress.must_reinitialize:
            return False
        refusal = error
        # Java's callers get an AuthenticationException here, too.
        if isinstance(error, (ClusterAuthorizationError, TransactionalIdAuthorizationError)):
            refusal = AuthenticationError(str(error))
            refusal.__cause__ = error
        # The request in hand is no longer in the queue, so it is failed by itself, and first.
        coordinators.fail_request_in_hand(refusal)
        transactions.requests.fail_pending_requests(refusal)
        self._producing.abort_all(error)
        # Last: if an exception comes before, the next step finds the state and does it all again.
        transactions.progress.transition_to_uninitialized(error)
        return True

    # --- close ----------------------------------------------------------------------------------

    def initiate_close(self) -> None:
        """Refuse appends from now on, and end once everything was sent and answered."""
        # A record that came later would keep the close from ending.
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
        """Go on with a close after a step. Return after how many milliseconds to go on."""
        transactions = self._transactions
        if self._has_work_left(transactions):
            # The step's own delay, or an answer, leads to the next one.
            return NEVER_MS
        if transactions is None or not transactions.machine.has_ongoing_transaction:
            self._end(KafkaError(_CLOSED))
            return 0
        # An abort from here would end the work of other processes that may still be writing.
        if transactions.share.is_left_open_on_close:
            _LOG.info("the open transaction is another process's to end")
            self._end(KafkaError(_CLOSED))
            return 0
        try:
            _LOG.info("aborting the open transaction, because the producer is being closed")
            if transactions.begin_abort().is_completed:
                # It has ended before. The epoch bump after it has failed, and is not needed.
                self._end(KafkaError(_CLOSED))
        # The close must end in any case. The coordinator aborts what is left open by its time-out.
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
        # Without an open transaction a waiting request, such as InitProducerId, is given up (as in
        # Java).
        has_requests = transactions.requests.has_pending_requests or self._coordinators.has_request
        is_ending = transactions.machine.is_completing
        return is_ending or (has_requests and transactions.machine.has_ongoing_transaction)

    def _end(self, error: KafkaError) -> None:
        if self._coordinators is not None:
            self._coordinators.fail_request_in_hand(error)
        if self._transactions is not None:
            self._transactions.progress.close(error)
        self._producing.abort_all(error)
        # Last: if an exception comes before, the next call makes the end again.
        self._phase = Phase.CLOSED
