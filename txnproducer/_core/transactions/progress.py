"""The progress of a transaction as the sender drives it: requests, answers, batches, errors.

Why it exists: an application's call (`manager.py`) only begins an operation; here it is brought to
its end.

Owns: the effects of answers and errors on a transaction, and the outcome of the latest one. Must
not know: the application's calls, bytes, connections, time, threads.

Rules:
* Whether the epoch has to be raised after a transaction is decided when EndTxn ends, since the
  need can arise while it is under way. The call's result ends with the bump, and with EndTxn's
  outcome. (Java decides when the call begins, and can miss a bump that way.)
* A batch's error is fatal, abortable, or (idempotent) a matter of sequences alone.
* A fatal error fails everything that waits, in this order: the queue, the request that is out, the
  operation that was not acknowledged. (Java leaves queued requests waiting, and their callers with
  them.)
* While a transaction is being aborted, an abortable error changes nothing.
* The first fatal error is kept: later ones are its consequences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from typing import Literal, TypeAlias

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sequences.partition_map import NumberedBatch, identity_of
from txnproducer._core.sequences.sequence_manager import BumpOutcome, SequenceManager
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.coordinator_requests import CoordinatorRequests
from txnproducer._core.transactions.end_line import is_logged, log_end
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.handler import Offsets
from txnproducer._core.transactions.identity import ProducerIdentity
from txnproducer._core.transactions.open_transaction import OpenTransaction
from txnproducer._core.transactions.operation import PendingOperations, TransactionalRequestResult
from txnproducer._core.transactions.requests import (
    AddPartitionsToTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from txnproducer._core.transactions.share import Share, SharePart
from txnproducer._core.transactions.state import (
    TransactionState,
    TransactionStateMachine,
    recovery_when_fatal,
)
from txnproducer._core.transactions.transaction_loss import TransactionLoss, sign_of_loss
from txnproducer._core.transactions.verdicts import ABORTABLE_AFTER_RETRIES, FATAL_PRODUCE_ERRORS
from txnproducer._protocol.messages import (
    BrokerNode,
    CoordinatorType,
    ProducePartitionResponse,
)
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    ClusterAuthorizationError,
    KafkaError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

_LOG = held_logger(__name__)

_S = TransactionState

Outcome: TypeAlias = Literal["open"] | ResolvedOutcome


class TransactionProgress:
    """A transaction as the sender drives it.

    Args:
        transactional_id: None for an idempotent producer.
        transaction_timeout_ms: after which the coordinator aborts a transaction by itself.
        retry_backoff_ms: between two attempts of a request.
        client: asked for the cluster's finalized features.

    Attributes:
        machine: the state.
        requests: to coordinators.
        identity: id, epoch, version of transactions.
        sequences: the partitions' sequence numbers.
        open: the transaction that is open, or the next one.
        share: the part in a transaction that several processes write.
        pending: the operation that the application waits for.
        begun_count: how many transactions were begun.
        outcome: how the latest transaction ended; None before the first.
        loss: why the latest transaction was lost to the coordinator's time-out, or to a newer
            producer; None if it was not.
    """

    def __init__(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        client: KafkaClient,
    ) -> None:
        is_named = transactional_id is not None
        self.name = f"transactional id {transactional_id!r}" if is_named else "idempotent producer"
        self.transactional_id = transactional_id
        self.is_transactional = is_named
        self.transaction_timeout_ms = transaction_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.machine = TransactionStateMachine(self.name, self)
        self.requests = CoordinatorRequests(self.name, self._find_coordinator)
        self.identity = ProducerIdentity(
            SequenceManager(is_transactional=is_named), client, is_transactional=is_named
        )
        self.sequences = self.identity.sequences
        self.open = OpenTransaction()
        self.share = Share(self.name)
        self.pending = PendingOperations(self.name)
        self.begun_count = 0
        self.outcome: Outcome | None = None
        self.loss: TransactionLoss | None = None
        self._has_lost_init = False
        self._now_ms = 0

    # --- for the handlers of requests (`TransactionActions`) ------------------------------------

    @property
    def may_have_begun(self) -> bool:
        """Whether the transaction may have begun, but only by requests of unknown success."""
        return self.open.may_have_begun

    @property
    def is_shared(self) -> bool:
        """Whether another process has a lease of the transaction, and may have ended it."""
        return self.share.lease is not None

    def _find_coordinator(self, key: str, key_type: CoordinatorType) -> FindCoordinatorHandler:
        return FindCoordinatorHandler(self, key, key_type)

    def initialized(self, producer: ProducerIdAndEpoch, *, is_epoch_bump: bool) -> None:
        """Take in the producer's identity."""
        _LOG.info("%s: now %s", self.name, producer)
        self.identity.take(producer)
        self.machine.transition_to(_S.READY)
        # After a bump the version counts that was read when the transaction began to end.
        if self.is_transactional and not is_epoch_bump:
            self.identity.update_transaction_version(on_initialization=True)
        self.share.epoch_is_fresh()

    def has_begun_at(self, node: BrokerNode | None) -> bool:
        """Return whether a broker, as the coordinator, knows the open transaction (v1)."""
        return node in self.open.begun_at

    def has_begun_elsewhere(self, node: BrokerNode | None) -> bool:
        """Return whether another broker, as the coordinator, knows the open transaction (v1)."""
        return bool(self.open.begun_at - {node})

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool, by: BrokerNode | None
    ) -> None:
        """Note that partitions are, or are not, in the transaction."""
        self.open.partitions_answered(partitions, are_added=are_added)
        if are_added:
            self.open.begun(by)

    def offsets_added(self, follower: TxnRequestHandler, leader: TxnRequestHandler) -> None:
        """Go on from AddOffsetsToTxn to TxnOffsetCommit, in the same place of the queue."""
        # Before the abort is looked at: the coordinator knows the transaction, and must end it.
        self.open.begun(leader.asked)
        if self.machine.is_aborting:
            follower.give_up()
            return
        # With a later place, this call's offsets could be overtaken by those of a later call.
        follower.take_place(leader.order)
        self.requests.queue.push(follower)

    def begun_perhaps(self) -> None:
        """Note that a refused request may have begun the transaction nevertheless."""
        self.open.begun_perhaps()

    def init_request_lost(self) -> None:
        """Note that an InitProducerId has no answer. It may still raise the epoch, or fence."""
        self._has_lost_init = True

    def request_lost(self, *, may_begin_transaction: bool) -> None:
        """Note that a request which could do harm later has no answer."""
        # With v2 each transaction has its own epoch, which fences late requests.
        if not self.is_transactional or self.identity.is_transaction_v2_enabled:
            return
        if may_begin_transaction:
            self.open.begun_perhaps()
        self.identity.request_lost(may_begin_transaction=may_begin_transaction)

    def offsets_lost(self, group_id: str, offsets: Offsets) -> None:
        """Note that offsets of the open transaction were sent, and have no answer."""
        self.open.lose_offsets(group_id, offsets)

    def transaction_ended(
        self,
        producer: ProducerIdAndEpoch,
        result: TransactionalRequestResult,
        on_end: Callable[[], None],
        outcome: ResolvedOutcome,
    ) -> None:
        """Take in the end of the transaction, and perhaps the identity for the next one."""
        # If none is open, an abort clears an error that came between two transactions.
        if self.outcome == "open":
            # Logged first: identity, version, lease and counts are still this transaction's.
            self.outcome = outcome
            self._log_end(outcome)
        # Marks the epoch as used. A bump after this declares the next epoch fresh again.
        self.share.end(is_committed=outcome == "committed")
        identity = self.identity
        identity.ended(outcome)
        # The coordinator uses the new epoch already, so a bump has to name it.
        identity.take_next(producer)
        if producer.is_valid and not identity.is_transaction_v2_enabled:
            self.share.epoch_is_fresh()  # it was raised to prove the end
        # Read before `begin_next` clears it.
        must_bump = identity.is_bump_required
        # Before the rest is replaced: it raises if the state does not allow it.
        self.machine.transition_to(_S.INITIALIZING if must_bump else _S.READY)
        identity.begin_next()
        # Partitions, doubts, lost offsets and EndTxn: all of it belongs to the transaction that
        # has ended.
        self.open = self.open.end(outcome)
        if not must_bump:
            # Last: the caller may begin the next transaction as soon as it sees the end.
            on_end()
            return
        # The caller waits for the bump as well, and gets EndTxn's outcome even if the bump fails.
        self.requests.queue.push(
            InitProducerIdHandler(
                self,
                result,
                self.transaction_timeout_ms,
                current=self.identity.producer_id_and_epoch,
                on_bump_end=on_end,
            )
        )

    # --- for the sender -------------------------------------------------------------------------

    def next_request(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Take the next request to be sent out of the queue.

        Requests that cannot be sent in the present state fail here. An EndTxn of a transaction
        that the coordinator does not know succeeds without being sent.

        Returns:
            None if there is none, or if it is an EndTxn that has to wait for batches.
        """
        requests = self.requests
        # As late as this, so that one request names all partitions used since the last one.
        if self.open.new_partitions:
            partitions = self.open.take_new_partitions()
            requests.queue.push(AddPartitionsToTxnHandler(self, partitions))
        while (handler := requests.queue.peek()) is not None:
            # The markers end the transaction in each log, so all batches must be written before.
            if handler.is_end_txn and has_incomplete_batches:
                return None
            handler = requests.take()
            if self._is_refused(handler):
                requests.put_aside()
                handler.fail(self.machine.last_error or KafkaError())
            # The coordinator has nothing to end, and would answer about the previous transaction.
            elif isinstance(handler, EndTxnHandler) and not self.open.must_be_ended:
                requests.put_aside()
                handler.skip()
            elif isinstance(handler, TxnOffsetCommitHandler) and self._may_be_undone(handler):
                requests.put_aside()
                handler.abortable_error(
                    KafkaError(
                        "an answer to earlier offsets of this transaction was lost: a delayed copy"
                        " of that request could overwrite these; abort, and do it again",
                        recovery="abort",
                    )
                )
            else:
                return handler
        return None

    def _is_refused(self, handler: TxnRequestHandler) -> bool:
        # The abort that is awaited will need the coordinator, so its look-up goes on.
        machine = self.machine
        is_harmless = machine.has_abortable_error and isinstance(handler, FindCoordinatorHandler)
        return machine.has_error and not is_harmless

    def _may_be_undone(self, handler: TxnOffsetCommitHandler) -> bool:
        return self.open.could_be_overwritten(handler.group_id, handler.offsets)

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort is under way."""
        return self.machine.is_completing

    def is_send_to_partition_allowed(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's batches may be sent. In FATAL_ERROR none may."""
        # The state itself, since every step asks this for each partition with records.
        if self.machine.state is _S.FATAL_ERROR:
            return False
        return not self.is_transactional or topic_partition in self.open.partitions

    # --- errors ---------------------------------------------------------------------------------

    @property
    def must_reinitialize(self) -> bool:
        """Whether an error left the producer without an identity, but otherwise sound.

        The sender then fails everything that waits and goes back to UNINITIALIZED, from where the
        application can initialize again.
        """
        if not self.machine.has_abortable_error:
            return False
        return self.identity.is_due or isinstance(
            self.machine.last_error, ClusterAuthorizationError | TransactionalIdAuthorizationError
        )

    def transition_to_abortable_error(self, error: KafkaError) -> None:
        """Have the transaction aborted. During an abort or after a fatal error, do nothing."""
        machine = self.machine
        # An abort mends it already, and after a fatal error there is nothing left to abort.
        if machine.is_aborting or machine.has_fatal_error:
            _LOG.debug("%s: in %s already: %s", self.name, machine.state.name, error)
            return
        machine.transition_to(_S.ABORTABLE_ERROR, error)
        _LOG.info("%s: the transaction must be aborted: %s", self.name, error)
        if not self.must_reinitialize:
            error.recovery = "abort"
        elif error.recovery == "abort":
            error.recovery = "resume"  # nothing is open to abort; the call can be made again

    def transition_to_fatal_error(self, error: KafkaError, level: int = logging.ERROR) -> None:
        """End the producer, and fail everything that waits.

        Args:
            error: why.
            level: of the line in the log.
        """
        machine = self.machine
        if not machine.has_fatal_error:
            error.recovery = recovery_when_fatal(error)
            machine.transition_to(_S.FATAL_ERROR, error)
            if self.share.part is SharePart.COMPLETING:
                level = logging.DEBUG  # the one who asked for the end judges by other evidence
            _LOG.log(level, "%s: cannot go on: %s", self.name, error)
        # With the first error: this one may be its consequence.
        self.fail_all(machine.last_error or error)

    def fail_all(self, error: KafkaError) -> None:
        """Fail everything that waits."""
        # The requests first: an EndTxn in doubt fails its operation with the more exact error.
        self.requests.fail_all(error)
        self.pending.fail(error)

    def authentication_failed(
        self, error: KafkaError, *, has_request_in_hand: bool = False
    ) -> None:
        """Note that a broker refused the login. For requests that wait to be sent that is fatal.

        Args:
            error: the refusal.
            has_request_in_hand: whether a request was taken to be sent. It fails with the queued
                ones, as the request that is out. (Java loses it.)
        """
        # If nothing waits to be sent, the next request will be refused by itself.
        if has_request_in_hand or self.requests.queue:
            self.transition_to_fatal_error(error)

    def transition_to_uninitialized(self, error: KafkaError) -> None:
        """Go back to the start after `must_reinitialize`. The sender has failed the batches."""
        self.machine.transition_to(_S.UNINITIALIZED)
        self.fail_all(error)
        self.requests.put_aside()
        self.identity.lose(error)
        # A lease belongs to the identity that is lost.
        self.share.forget()

    def close(self, error: KafkaError) -> None:
        """End, and fail everything that waits."""
        # Another process may still end a transaction that is shared.
        is_ended = self.machine.has_ongoing_transaction and not self.share.is_left_open_on_close
        if self.requests.is_idle and not is_ended:
            self.fail_all(error)
        else:
            # The failed calls raise the error. In the log it is no error: the application closed.
            self.transition_to_fatal_error(error, logging.DEBUG)

    # --- batches --------------------------------------------------------------------------------

    def maybe_transition_to_error_state(self, error: KafkaError) -> None:
        """Change the state after a batch, or a record, that could not be written."""
        if isinstance(error, FATAL_PRODUCE_ERRORS):
            self.transition_to_fatal_error(error)
            return
        if not self.is_transactional or self._is_commit_decided_elsewhere:
            return
        own_error = error
        is_aborting = self.machine.is_aborting
        if not is_aborting:  # the abort itself may fence batches that are still in flight
            self._note_loss(own_error)  # before its text becomes a part of another error's
        if isinstance(error, ABORTABLE_AFTER_RETRIES):
            error = TransactionAbortableError(f"the transaction cannot be completed: {own_error}")
            error.__cause__ = own_error
        elif own_error.recovery == "fix":
            # The transaction asks for an abort. The record must still be fixed, or it fails again.
            error = copy(own_error)
            error.__cause__ = own_error
        if not is_aborting:
            self.identity.require_epoch_bump()
        self.transition_to_abortable_error(error)
        if self.machine.has_abortable_error and own_error.recovery != "fix":
            own_error.recovery = error.recovery  # the record's future says the same

    @property
    def _is_commit_decided_elsewhere(self) -> bool:
        """Whether EndTxn(commit) is out, so that only its answer counts, or was decided before.

        Only a record that never reached a batch can still fail then. Its future has the error.
        """
        end_txn = self.open.end_txn
        return self.share.is_prepared or (
            self.machine.state is _S.COMMITTING_TRANSACTION
            and end_txn is not None
            and (end_txn.is_taken or end_txn.may_be_committed)
        )

    def handle_completed_batch(
        self, batch: NumberedBatch, response: ProducePartitionResponse
    ) -> None:
        """Note a batch's success."""
        sequences = self.sequences
        # Read before `handle_completed_batch`, which takes the batch out of flight.
        is_lost = batch.is_reset or not sequences.is_in_flight(batch)
        if is_lost and identity_of(batch) == self.identity.producer_id_and_epoch:
            # It was renumbered on the wire, and written under its old number, or its partition's
            # numbers were reset meanwhile. The partition gives this number out again, and the
            # broker would take the next batch with it for a duplicate. (In Java it does.)
            self.identity.need_new_epoch()
        self.open.acknowledged(batch.record_count)
        sequences.handle_completed_batch(batch, response)
        self.share.note_written(batch)

    def handle_failed_batch(
        self, batch: NumberedBatch, error: KafkaError, adjust_sequence_numbers: bool
    ) -> None:
        """Settle a batch that failed and will not be sent again.

        Args:
            batch: the batch.
            error: why it failed.
            adjust_sequence_numbers: whether the broker certainly does not have it.
        """
        sequences = self.sequences
        sequences.remove_in_flight_batch(batch)
        # The state before the numbers: after a fatal error none are given out any more.
        self.maybe_transition_to_error_state(error)
        if not self.machine.has_fatal_error and batch.has_sequence:
            sequences.handle_failed_batch(
                batch, error, adjust_sequence_numbers=adjust_sequence_numbers
            )

    def maybe_resolve_sequences(self) -> None:
        """Require an abort if a batch has ended without an answer, and none can come any more."""
        lost = self.sequences.maybe_resolve_sequences()
        if not lost or not self.is_transactional or not self.machine.has_ongoing_transaction:
            return
        text = "no answer came for records that were sent, and they cannot be sent again"
        if not self.identity.can_handle_abortable_error:
            self.transition_to_fatal_error(
                KafkaError(f"{text}; this cluster is too old to go on safely after an abort")
            )
            return
        self.identity.require_epoch_bump()
        if not self.machine.has_abortable_error:  # the batch's own error says more than this
            self.transition_to_abortable_error(KafkaError(f"{text}; abort and go on"))

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Raise an idempotent producer's epoch if a bump is due, or ask for an identity."""
        machine = self.machine
        if self.sequences.bump_idempotent_epoch() is BumpOutcome.NEW_ID_NEEDED:
            _LOG.info("%s: its epochs are used up, asking for a new producer id", self.name)
            machine.transition_to(_S.UNINITIALIZED)
        # One request is enough, and it may be out for many steps.
        if machine.state is not _S.INITIALIZING and not self.identity.has_producer_id:
            machine.transition_to(_S.INITIALIZING)
            result = TransactionalRequestResult("init_producer_id")
            self.requests.queue.push(InitProducerIdHandler(self, result))

    # --- how a transaction begins and ends ------------------------------------------------------

    def begin(self) -> None:
        """Note that a transaction was begun, here or by another process."""
        self.loss = None
        self.begun_count += 1
        self.outcome = "open"

    def set_time(self, now_ms: int) -> None:
        """Note the time, and with it when the transaction begins at the coordinator."""
        self._now_ms = now_ms
        # The coordinator's time-out counts from its first request, not from `begin_transaction`.
        if self.open.started_ms is None and (self.open.must_be_ended or self._is_to_begin):
            self.open.time_begins(now_ms)

    @property
    def _is_to_begin(self) -> bool:
        is_asked = self.open.has_partitions_to_add or self.requests.has_pending_requests
        return self.outcome == "open" and is_asked

    @property
    def age_ms(self) -> int | None:
        """How long the transaction is open, or None if another process may have begun it."""
        begun_ms = self._now_ms if self.open.started_ms is None else self.open.started_ms
        return None if self.is_shared else self._now_ms - begun_ms

    def _log_end(self, outcome: ResolvedOutcome) -> None:
        # Asked first: without the line its values need not be gathered.
        if not is_logged():
            return
        log_end(
            self.transactional_id,
            self.identity.producer_id_and_epoch,
            self._version,
            outcome,
            self.age_ms,
            self.open.record_count,
            self.open.cause,
        )

    @property
    def _version(self) -> int:
        return 2 if self.identity.is_transaction_v2_enabled else 1

    # --- why a transaction was lost -------------------------------------------------------------

    @property
    def description(self) -> str:
        """The producer's name and identity, for the texts of errors."""
        return f"{self.name}, {self.identity.producer_id_and_epoch}"

    def explained(self, error: KafkaError) -> KafkaError:
        """Return a call's error with the known reason why the transaction was lost."""
        return error if self.loss is None else self.loss.explain(error, self.description)

    def _note_loss(self, error: KafkaError) -> None:
        """Note a loss that an error shows, and put its likely reason into the error's text."""
        sign = sign_of_loss(error)
        has_transaction = self.is_transactional and self.identity.has_producer_id
        if sign is None or self.loss is not None or not has_transaction:
            return
        self.loss = TransactionLoss(
            self.identity.producer_id_and_epoch,
            self._version,
            self.age_ms,
            self.transaction_timeout_ms,
            self._now_ms,
            self.outcome == "open",
            self._has_lost_init,
        )
        # In place, since other errors have this one as their cause already.
        sign.args = (self.loss.text(self.description),)

    # --- for the state machine (`StateWatcher`) -------------------------------------------------

    def on_error(self, error: KafkaError) -> None:
        """Note an error that becomes the state's error."""
        self._note_loss(error)
        self.open.failed(error)

    def on_fatal_error(self) -> None:
        """Log the open transaction's end, since no answer will end it."""
        if self.outcome == "open":
            is_in_doubt = self.open.may_be_committed or self.share.is_prepared
            self._log_end("unknown" if is_in_doubt else "aborted")

    def on_illegal_step(self, error: KafkaError) -> None:
        """Fail everything that waits."""
        self.open.failed(error)
        self.fail_all(error)
        self.on_fatal_error()
