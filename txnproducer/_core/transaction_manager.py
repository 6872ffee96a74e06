"""The operations of a transactional (or idempotent) producer, and what follows from every error.

Why it exists: this is where the transaction's state changes. Batches, sequences, requests and
answers report here.

Owns: the operations the application calls, the partitions of the transaction, when the epoch is
raised, which version of transactions is spoken. Must not know: bytes, connections, time, threads.

Rules:
* An operation returns a result at once; the sender does the work. The same call made again after
  a time-out gets the same result; every other call is refused until that end was seen. The
  exception: a commit that timed out may be given up by `begin_abort`.
* EndTxn's answer decides a commit or an abort. Whether the epoch has to be raised after it is
  decided when it ends, since the need can arise while it is under way; the call's result ends with
  the bump, with EndTxn's outcome. (Java decides at the call, and can miss a bump that way.)
* Transactions v1 or v2 (KIP-890) is a matter of the finalized feature, not of API versions. It is
  read when the producer is initialized and when a transaction begins to end, and counts from the
  next transaction on; coming to v2 also raises the epoch.
* v1 counts a transaction as started with the first partition or group that the coordinator has
  accepted, v2 with the first call. One that was not started ends without EndTxn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sequence_manager import BumpOutcome, SequenceManager
from txnproducer._core.transaction_state import TransactionState
from txnproducer._core.txn_partition_map import NumberedBatch
from txnproducer._core.txn_request_flow import PendingOperation, TxnRequestFlow
from txnproducer._core.txn_requests import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from txnproducer._core.txn_result import TransactionalRequestResult
from txnproducer._core.verdicts import ABORTABLE_AFTER_RETRIES, FATAL_PRODUCE_ERRORS
from txnproducer._protocol.messages import CoordinatorType, ProducePartitionResponse
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)

_LOG = logging.getLogger(__name__)

_S = TransactionState

Outcome = Literal["open", "committed", "aborted", "unknown"]


class TransactionManager(TxnRequestFlow):
    """See the module.

    Args:
        transactional_id: None for an idempotent producer.
        transaction_timeout_ms: after which the coordinator aborts a transaction by itself.
        retry_backoff_ms: between two attempts of a request.
        client: asked for the cluster's finalized features.

    Attributes:
        sequences: the partitions' sequence numbers.
        is_transaction_v2_enabled: which version the present transaction is written with.
        outcome: how the latest transaction ended; None before the first.
    """

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        client: KafkaClient,
    ) -> None:
        super().__init__(transactional_id, retry_backoff_ms)
        self._transaction_timeout_ms = transaction_timeout_ms
        self._client = client
        self.sequences = SequenceManager(is_transactional=transactional_id is not None)
        self.outcome: Outcome | None = None
        self.is_transaction_v2_enabled = False
        self._is_v2_enabled_next = False
        self._features_epoch = -1
        self._is_bump_required = False
        self._lost_identity: KafkaError | None = None
        self._is_started = False
        self._end_txn: EndTxnHandler | None = None
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._partitions: set[TopicPartition] = set()

    # --- what the application asks for ----------------------------------------------------------

    def initialize_transactions(self) -> TransactionalRequestResult:
        """Begin to get an identity; older producers of the transactional id are fenced by it.

        Raises:
            IllegalStateError: initialized already, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        self._fail_with_error()
        return self._begin(_S.INITIALIZING, "init_transactions", self._start_initializing)

    def _start_initializing(self, result: TransactionalRequestResult) -> None:
        self.transition_to(_S.INITIALIZING)
        self._lost_identity = None
        self._queue.push(InitProducerIdHandler(self, result, self._transaction_timeout_ms))

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent.

        Raises:
            IllegalStateError: not initialized, or a transaction is open, or another call has to be
                repeated first.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        self._refuse_if_pending("begin_transaction")
        self._fail_with_error()
        if self._lost_identity is not None:
            raise self._caused(
                f"the producer has lost its identity ({self._lost_identity}): once that is mended,"
                " call init_transactions() again",
                self._lost_identity,
            )
        self.transition_to(_S.IN_TRANSACTION)
        self.outcome = "open"

    def begin_commit(self) -> TransactionalRequestResult:
        """Begin to commit: batches and offsets go first, then EndTxn.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        return self._begin(_S.COMMITTING_TRANSACTION, "commit_transaction", self._start_commit)

    def _start_commit(self, result: TransactionalRequestResult) -> None:
        self._fail_with_error()
        self.transition_to(_S.COMMITTING_TRANSACTION)
        self._queue_new_partitions()
        self._queue_end_txn(result, is_commit=True)

    def begin_abort(self) -> TransactionalRequestResult:
        """Begin to abort; also gives up a commit that has timed out.

        Raises:
            IllegalStateError: no transaction is open, the commit has succeeded meanwhile, or
                another call has to be repeated first.
            CommitOutcomeUnknownError: a commit was sent, and the cluster is too old to find out
                what became of it; the producer is at its end.
            KafkaError: the producer has failed.
        """
        self._ensure_transactional()
        given_up = self._commit_to_give_up()
        if given_up is not None:
            return self._give_up_commit(given_up)
        return self._begin(_S.ABORTING_TRANSACTION, "abort_transaction", self._start_abort)

    def _start_abort(self, result: TransactionalRequestResult) -> None:
        if not self.has_abortable_error:
            self._fail_with_error()
        self.transition_to(_S.ABORTING_TRANSACTION)
        self._new_partitions.clear()
        self._queue_end_txn(result, is_commit=False)

    def _queue_end_txn(self, result: TransactionalRequestResult, *, is_commit: bool) -> None:
        self._end_txn = EndTxnHandler(
            self,
            result,
            is_commit=is_commit,
            is_transaction_v2_enabled=self.is_transaction_v2_enabled,
        )
        self.maybe_update_transaction_v2_enabled(on_initialization=False)
        self._queue.push(self._end_txn)

    def _commit_to_give_up(self) -> EndTxnHandler | None:
        """Return a commit under way whose caller has timed out; acknowledge one that failed."""
        pending = self._unseen_operation()
        if pending is None or pending.kind is not _S.COMMITTING_TRANSACTION:
            return None
        if pending.result.is_successful or self.state is _S.INITIALIZING:
            raise IllegalStateError(
                f"{self.name}: the transaction is committed, it cannot be aborted any more; call"
                " commit_transaction() again to see its end"
            )
        if self.state is _S.COMMITTING_TRANSACTION:
            return self._end_txn
        if self.has_abortable_error and self._end_txn is not None:
            # The commit will not be sent any more; its caller does not have to hear it first.
            self._queue.remove(lambda queued: queued.is_end_txn)
            self._end_txn.fail(self.last_error or KafkaError())
        pending.result.acknowledge()
        return None

    def _give_up_commit(self, end_txn: EndTxnHandler) -> TransactionalRequestResult:
        if end_txn.may_be_committed and not self.can_handle_abortable_error:
            unknown = CommitOutcomeUnknownError(
                "a commit was sent, its answer is missing, and this cluster is too old to raise"
                " the producer's epoch, so that the commit could still hit the next transaction"
            )
            self.transition_to_fatal_error(unknown)
            raise unknown
        _LOG.info("%s: giving up a commit in favour of an abort", self.name)
        self.transition_to(
            _S.ABORTABLE_ERROR, TransactionAbortedError("the commit was given up for an abort")
        )
        self.transition_to(_S.ABORTING_TRANSACTION)
        self._new_partitions.clear()
        result = TransactionalRequestResult("abort_transaction")
        end_txn.turn_into_abort(result)
        self._pending = PendingOperation(_S.ABORTING_TRANSACTION, result)
        return result

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """Begin to commit a consumer group's offsets in the transaction.

        Each call is an operation of its own, also after a time-out.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        operation = "send_offsets_to_transaction"
        result = TransactionalRequestResult(operation)
        if not offsets:
            result.done()
            return result
        self._refuse_if_pending(operation)
        self._fail_with_error()
        self._ensure_in_transaction("offsets cannot be sent")
        is_v2 = self.is_transaction_v2_enabled
        commit = TxnOffsetCommitHandler(
            self, result, offsets, group_metadata, is_transaction_v2_enabled=is_v2
        )
        if is_v2:
            self._is_started = True
        self._queue.push(commit if is_v2 else AddOffsetsToTxnHandler(self, commit))
        return result

    def check_can_append(self) -> None:
        """Refuse a record that has no place in the present state, before it is appended.

        Raises:
            IllegalStateError: no transaction is open, or a call has to be repeated first.
            ProducerFencedError, InvalidProducerEpochError: `send` returns these as failed futures.
            KafkaError: the producer is in another error state.
        """
        self._fail_with_error()
        if not self.is_transactional:
            return
        self._refuse_if_pending("send")
        if not self.has_producer_id:
            raise IllegalStateError(f"{self.name}: call init_transactions() before send()")
        self._ensure_in_transaction("records cannot be sent")

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Make sure that a partition is in the transaction, or will be; raise as above if not."""
        self.check_can_append()
        if not self.is_transactional:
            return
        if self.is_transaction_v2_enabled:
            self._partitions.add(topic_partition)
            self._is_started = True
        elif topic_partition not in self._partitions | self._pending_partitions:
            self._new_partitions.add(topic_partition)

    # --- how operations follow each other -------------------------------------------------------

    def _ensure_transactional(self) -> None:
        if not self.is_transactional:
            raise IllegalStateError("transactions need a transactional_id in the configuration")

    def _ensure_in_transaction(self, refusal: str) -> None:
        if self.state is not _S.IN_TRANSACTION:
            raise IllegalStateError(
                f"{self.name}: {refusal} in state {self.state.name}; call begin_transaction()"
            )

    def _unseen_operation(self) -> PendingOperation | None:
        if self._pending is not None and self._pending.result.is_acked:
            self._pending = None
        return self._pending

    def _refuse_if_pending(self, operation: str) -> None:
        pending = self._unseen_operation()
        if pending is not None:
            earlier = pending.result.operation
            way_out = " or abort_transaction()" if earlier == "commit_transaction" else ""
            raise IllegalStateError(
                f"{self.name}: {operation}() has to wait: {earlier}() has timed out, or was"
                f" interrupted; call {earlier}(){way_out} first"
            )

    def _begin(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
    ) -> TransactionalRequestResult:
        pending = self._unseen_operation()
        if pending is not None and pending.kind is kind:
            return pending.result
        self._refuse_if_pending(operation)
        result = TransactionalRequestResult(operation)
        start(result)
        self._pending = PendingOperation(kind, result)
        return result

    def _fail_with_error(self) -> None:
        error = self.last_error
        if not self.has_error or error is None:
            return
        who = f"{self.name} ({self.producer_id_and_epoch})"
        if isinstance(error, ProducerFencedError):
            raise ProducerFencedError(
                f"{who} was fenced by a newer producer", recovery=error.recovery
            )
        if isinstance(error, InvalidProducerEpochError):
            raise InvalidProducerEpochError(
                f"{who} has written with an old epoch", recovery=error.recovery
            )
        kind = IllegalStateError if isinstance(error, IllegalStateError) else KafkaError
        raise self._caused(f"{who} cannot go on in {self.state.name}: {error}", error, kind)

    @staticmethod
    def _caused(text: str, cause: KafkaError, kind: type[KafkaError] = KafkaError) -> KafkaError:
        error = kind(text, recovery=cause.recovery)
        error.__cause__ = cause
        return error

    # --- what is asked about it -----------------------------------------------------------------

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The present identity."""
        return self.sequences.producer_id_and_epoch

    @property
    def has_producer_id(self) -> bool:
        """Whether there is an identity."""
        return self.producer_id_and_epoch.is_valid

    @property
    def _has_identity(self) -> bool:
        return self.has_producer_id

    @property
    def is_ready(self) -> bool:
        """Whether a transaction can be begun."""
        return self.is_transactional and self.state is _S.READY

    @property
    def is_initializing(self) -> bool:
        """Whether the identity is on its way."""
        return self.is_transactional and self.state is _S.INITIALIZING

    @property
    def has_partitions_to_add(self) -> bool:
        """Whether the coordinator has not accepted all partitions yet."""
        return bool(self._new_partitions or self._pending_partitions)

    def has_partitions_in_transaction(self) -> bool:
        """Tell whether a partition is in the transaction."""
        return bool(self._partitions)

    def is_send_to_partition_allowed(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a partition's batches may go on the wire, in whatever state but fatal."""
        if self.has_fatal_error:
            return False
        return not self.is_transactional or topic_partition in self._partitions

    @property
    def must_bump_from_client(self) -> bool:
        """Whether raising the epoch after an error is the client's to do, and can be done."""
        return self.coordinator_can_bump and not self.is_transaction_v2_enabled

    @property
    def can_handle_abortable_error(self) -> bool:
        """Whether the epoch will be raised after an abort, by whichever side."""
        return self.coordinator_can_bump or self.is_transaction_v2_enabled

    # --- requests -------------------------------------------------------------------------------

    def next_request(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Take the next request to send out of the queue.

        Requests that can't be sent in the present state fail on the way, and an EndTxn of a
        transaction that the coordinator does not know succeeds.

        Returns:
            None if there is none, or if it is an EndTxn that has to wait for batches.
        """
        self._queue_new_partitions()
        while (handler := self._queue.peek()) is not None:
            if handler.is_end_txn and has_incomplete_batches:
                return None
            handler = self._take()
            if self._is_refused(handler):
                self._out = None
                handler.fail(self.last_error or KafkaError())
            elif isinstance(handler, EndTxnHandler) and not self._is_started:
                self._out = None
                handler.skip()
            else:
                return handler
        return None

    def _is_refused(self, handler: TxnRequestHandler) -> bool:
        # A look-up does no harm while an abort is awaited, which will need the coordinator.
        is_harmless = self.has_abortable_error and isinstance(handler, FindCoordinatorHandler)
        return self.has_error and not is_harmless

    def _queue_new_partitions(self) -> None:
        if self._new_partitions:
            self._pending_partitions |= self._new_partitions
            self._new_partitions.clear()
            pending = frozenset(self._pending_partitions)
            self._queue.push(AddPartitionsToTxnHandler(self, pending))

    def _find_coordinator(self, key: str, key_type: CoordinatorType) -> FindCoordinatorHandler:
        return FindCoordinatorHandler(self, key, key_type)

    # --- answers, as the handlers report them ---------------------------------------------------

    def initialized(self, producer: ProducerIdAndEpoch, *, is_epoch_bump: bool) -> None:
        """Take in the producer's identity."""
        _LOG.info("%s: now %s", self.name, producer)
        if self.is_transactional:
            self.sequences.reset_sequence_numbers()
        self.sequences.adopt(producer)
        self._is_bump_required = False
        self.transition_to(_S.READY)
        if self.is_transactional and not is_epoch_bump:
            self.maybe_update_transaction_v2_enabled(on_initialization=True)

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool
    ) -> None:
        """Take in that partitions are, or are not, in the transaction."""
        self._pending_partitions -= partitions
        if are_added:
            self._partitions |= partitions
            self._is_started = True

    def offsets_added(self, follower: TxnRequestHandler, leader: TxnRequestHandler) -> None:
        """Go on from AddOffsetsToTxn to TxnOffsetCommit, in the same place of the queue."""
        self._is_started = True
        follower.order = leader.order
        self._queue.push(follower)

    def transaction_ended(
        self, handler: TxnRequestHandler, producer: ProducerIdAndEpoch, *, is_commit: bool
    ) -> None:
        """Take in the end of the transaction, and perhaps the identity for the next one."""
        self.outcome = "committed" if is_commit else "aborted"
        if producer.is_valid:
            _LOG.debug("%s: now %s", self.name, producer)
            self.sequences.reset_sequence_numbers()
            self.sequences.adopt(producer)
        must_bump = self._is_bump_required
        self.transition_to(_S.INITIALIZING if must_bump else _S.READY)
        self._is_bump_required = False
        self._is_started = False
        self._end_txn = None
        self._new_partitions.clear()
        self._pending_partitions.clear()
        self._partitions.clear()
        self.is_transaction_v2_enabled = self._is_v2_enabled_next
        if isinstance(handler, EndTxnHandler):
            self._follow(handler, must_bump=must_bump)

    def _follow(self, end_txn: EndTxnHandler, *, must_bump: bool) -> None:
        if not must_bump:
            end_txn.complete_operation()
            return
        self._queue.push(
            InitProducerIdHandler(
                self,
                end_txn.result,
                self._transaction_timeout_ms,
                current=self.producer_id_and_epoch,
                on_bump_end=end_txn.complete_operation,
            )
        )

    def require_epoch_bump(self) -> None:
        """Raise the epoch when this transaction ends, if that is the client's to do."""
        if self.must_bump_from_client:
            self._is_bump_required = True

    def maybe_update_transaction_v2_enabled(self, *, on_initialization: bool) -> None:
        """Read the finalized features, if there is a newer reading."""
        features = self._client.finalized_features()
        if features.epoch <= self._features_epoch:
            return
        self._features_epoch = features.epoch
        self._is_v2_enabled_next = features.transaction_version >= 2
        if on_initialization:
            self.is_transaction_v2_enabled = self._is_v2_enabled_next
        elif self._is_v2_enabled_next and not self.is_transaction_v2_enabled:
            # Fences what the v1 transaction may have left: v2 does not add partitions explicitly.
            self._is_bump_required = True

    def transition_to_uninitialized(self, error: KafkaError) -> None:
        """Go back to the start after `must_begin_anew`; the sender has failed the batches."""
        self.transition_to(_S.UNINITIALIZED)
        self._fail_all(error)
        self._out = None
        if self.is_transactional and self.has_producer_id:
            self._lost_identity = error
        self._is_bump_required = False
        self.sequences.reset_sequence_numbers()
        self.sequences.producer_id_and_epoch = ProducerIdAndEpoch.NONE

    # --- batches --------------------------------------------------------------------------------

    def maybe_transition_to_error_state(self, error: KafkaError) -> None:
        """Draw the consequences of a batch, or a record, that could not be written."""
        if isinstance(error, FATAL_PRODUCE_ERRORS):
            self.transition_to_fatal_error(error)
            return
        if not self.is_transactional or self._is_commit_decided_elsewhere:
            return
        if isinstance(error, ABORTABLE_AFTER_RETRIES):
            cause = error
            error = TransactionAbortableError(f"the transaction cannot be completed: {cause}")
            error.__cause__ = cause
        if not self.is_completing:
            self.require_epoch_bump()
        self.transition_to_abortable_error(error)

    @property
    def _is_commit_decided_elsewhere(self) -> bool:
        """Whether EndTxn(commit) is out, so that only its answer counts.

        All batches are in then. What can still fail is a record that never got into one, in a
        `send` that ran beside the commit; its future tells.
        """
        end_txn = self._end_txn
        return (
            self.state is _S.COMMITTING_TRANSACTION
            and end_txn is not None
            and (end_txn.is_taken or end_txn.may_be_committed)
        )

    def handle_completed_batch(
        self, batch: NumberedBatch, response: ProducePartitionResponse
    ) -> None:
        """Note a batch's success."""
        self.sequences.handle_completed_batch(batch, response)

    def handle_failed_batch(
        self, batch: NumberedBatch, error: KafkaError, adjust_sequence_numbers: bool
    ) -> None:
        """Settle a batch that failed and will not be sent again.

        Args:
            batch: which one.
            error: why.
            adjust_sequence_numbers: whether the broker surely does not have it.
        """
        self.sequences.remove_in_flight_batch(batch)
        self.maybe_transition_to_error_state(error)
        if not self.has_fatal_error and batch.has_sequence:
            self.sequences.handle_failed_batch(
                batch, error, adjust_sequence_numbers=adjust_sequence_numbers
            )

    def can_retry(
        self, response: ProducePartitionResponse, error: KafkaError, batch: NumberedBatch
    ) -> bool:
        """Judge whether a refused batch may be sent again."""
        return self.sequences.can_retry(response, error, batch)

    def maybe_resolve_sequences(self) -> None:
        """Draw the consequences of batches whose fate will not be known any more."""
        lost = self.sequences.maybe_resolve_sequences()
        if not lost or not self.is_transactional or not self.has_ongoing_transaction:
            return
        text = "no answer came for records that were sent, and they cannot be sent again"
        if not self.can_handle_abortable_error:
            self.transition_to_fatal_error(
                KafkaError(f"{text}; this cluster is too old to go on safely after an abort")
            )
            return
        self.require_epoch_bump()
        if not self.has_abortable_error:  # what made the batch fail says more than this
            self.transition_to_abortable_error(KafkaError(f"{text}; abort and go on"))

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Raise an idempotent producer's epoch if that is due, or ask for an identity."""
        if self.is_transactional:
            return
        if self.sequences.bump_idempotent_epoch() is BumpOutcome.NEW_ID_NEEDED:
            _LOG.info("%s: its epochs are used up, asking for a new producer id", self.name)
            self.transition_to(_S.UNINITIALIZED)
        if self.state is not _S.INITIALIZING and not self.has_producer_id:
            self.transition_to(_S.INITIALIZING)
            result = TransactionalRequestResult("init_producer_id")
            self._queue.push(InitProducerIdHandler(self, result))
