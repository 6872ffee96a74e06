"""The operations of a transactional producer: what the application asks for.

Why it exists: the door to the transaction's state. Each call checks whether it fits, changes the
state, queues what has to be sent, and returns a result for its caller to wait for; the rest is the
sender's (`progress.py`).

Owns: the order of the calls, and the errors they are refused with. Must not know: bytes,
connections, time, threads.

Rules:
* An operation returns a result at once. The same call made again after a time-out gets the same
  result; every other call is refused until that end was seen. The exception: a commit that timed
  out may be given up by `begin_abort`.
* `init_transactions` looks at the state first, and so tells an error of an earlier call wrapped;
  commit and abort tell the earlier call's own error first.
* A call that is refused changes nothing.
* An exception can come between any two steps of a call (Ctrl-C, a signal handler's). What it left
  half-way is made whole by `finish_interrupted_call`, before anything else is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from txnproducer._core.transactions.commit_evidence import SentCommit
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.progress import Outcome, TransactionCourse
from txnproducer._core.transactions.request_flow import PendingOperation
from txnproducer._core.transactions.requests import (
    AddOffsetsToTxnHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import (
    ApplicationRecoverableError,
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnTimeoutError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)

__all__ = ["Outcome", "TransactionManager"]

_LOG = logging.getLogger(__name__)

_S = TransactionState


class TransactionManager(TransactionCourse):
    """See the module; arguments and attributes as of `TransactionCourse`."""

    # --- what the application asks for ----------------------------------------------------------

    @property
    def unseen_abort(self) -> TransactionalRequestResult | None:
        """An abort that timed out, or was interrupted, and whose end nobody has seen yet."""
        pending = self._unseen_operation()
        is_abort = pending is not None and pending.kind is _S.ABORTING_TRANSACTION
        return pending.result if pending is not None and is_abort else None

    @property
    def is_abort_certain(self) -> bool:
        """Whether the transaction is being aborted and no commit of it was ever sent."""
        if self.state is not _S.ABORTING_TRANSACTION or self._end_txn is None:
            return False
        return not self._end_txn.may_be_committed

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
        self._go_to(_S.INITIALIZING)
        self._lost_identity = None
        self._push_once(InitProducerIdHandler(self, result, self._transaction_timeout_ms))

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
        if self._has_stray_request:
            raise ApplicationRecoverableError(
                f"{self.name}: what was sent before (an answer was lost, or came too late) could"
                " join the next transaction, or be taken for a part of it; this cluster is too old"
                " to raise the producer's epoch against that"
                " (InitProducerId below version 3): close this producer, and go on with a new one",
                recovery="restart",
            )
        self.transition_to(_S.IN_TRANSACTION)
        self.loss = None
        self.begun_count += 1
        self.outcome = "open"
        self.commit_result = None

    def begin_commit(self) -> TransactionalRequestResult:
        """Begin to commit: batches and offsets go first, then EndTxn.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        return self._begin(
            _S.COMMITTING_TRANSACTION,
            "commit_transaction",
            self._start_commit,
            check=self._fail_with_error,
        )

    def _start_commit(self, result: TransactionalRequestResult) -> None:
        self.commit_result = result
        self._go_to(_S.COMMITTING_TRANSACTION)
        self.last_commit = SentCommit(self.producer_id_and_epoch, self.is_transaction_v2_enabled)
        self._queue_end_txn(result, is_commit=True)

    def begin_abort(self) -> TransactionalRequestResult:
        """Begin to abort; also gives up a commit that has timed out.

        Raises:
            IllegalStateError: no transaction is open, the commit has succeeded meanwhile, or
                another call has to be repeated first.
            CommitOutcomeUnknownError: a commit was sent, and the producer came to its end before
                it could find out what became of it.
            KafkaError: the producer has failed.
        """
        self._ensure_transactional()
        given_up = self._commit_to_give_up()
        if given_up is not None:
            return self._give_up_commit(given_up)
        return self._begin(
            _S.ABORTING_TRANSACTION,
            "abort_transaction",
            self._start_abort,
            check=None if self.has_abortable_error else self._fail_with_error,
        )

    def _start_abort(self, result: TransactionalRequestResult) -> None:
        self._go_to(_S.ABORTING_TRANSACTION)
        self._drop_what_an_abort_needs_not()
        self._queue_end_txn(result, is_commit=False)

    def _drop_what_an_abort_needs_not(self) -> None:
        self._new_partitions.clear()
        self._queue.end(
            lambda queued: queued.is_of_no_use_for_an_abort, lambda queued: queued.give_up()
        )

    def _queue_end_txn(self, result: TransactionalRequestResult, *, is_commit: bool) -> None:
        end_txn = self._end_txn
        if end_txn is None or end_txn.result is not result:
            failed = end_txn
            end_txn = EndTxnHandler(
                self,
                result,
                is_commit=is_commit,
                is_transaction_v2_enabled=self.is_transaction_v2_enabled,
            )
            if failed is not None and failed.may_be_committed:
                # Its caller was told, or will not ask any more: the abort has to tell as well.
                end_txn.inherit(failed)
            self._end_txn = end_txn
        self.maybe_update_transaction_v2_enabled(on_initialization=False)
        self._push_once(end_txn)

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
            error = self.last_error or KafkaError()
            self._end_txn.fail(error)
            self._queue.end(lambda queued: queued.is_end_txn, lambda queued: queued.fail(error))
        pending.result.acknowledge()
        lost = pending.result.error
        if self.has_fatal_error and isinstance(lost, CommitOutcomeUnknownError):
            # That the producer has failed says less than what its caller has not heard yet.
            raise lost
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

        def start(result: TransactionalRequestResult) -> None:
            if not self.is_aborting:
                given_up = TransactionAbortedError("the commit was given up for an abort")
                self.transition_to(_S.ABORTABLE_ERROR, given_up)
                self.transition_to(_S.ABORTING_TRANSACTION)
            self._drop_what_an_abort_needs_not()
            if end_txn.result is not result:
                end_txn.turn_into_abort(result)

        return self._start(_S.ABORTING_TRANSACTION, "abort_transaction", start)

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
        handler = commit if is_v2 else AddOffsetsToTxnHandler(self, commit)
        self.is_half_way = True
        if is_v2:
            self._is_started = True
        self._queue.push(handler)
        self.is_half_way = False
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
        if not self._has_identity:
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
        elif not self._is_known(topic_partition):
            self._new_partitions.add(topic_partition)

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions or topic_partition in self._pending_partitions

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
                f"{self.name}: {operation}() has to wait: {earlier}() is under way, has timed"
                f" out, or was interrupted; call {earlier}(){way_out} first"
            )

    def _begin(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
        check: Callable[[], None] | None = None,
    ) -> TransactionalRequestResult:
        pending = self._unseen_operation()
        if pending is not None and pending.kind is kind:
            return pending.result
        self._refuse_if_pending(operation)
        if check is not None:
            check()
        self.check_transition(kind)
        return self._start(kind, operation, start)

    def _start(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
    ) -> TransactionalRequestResult:
        """Start an operation: from its first step on it goes on, whatever its caller raises."""
        result = TransactionalRequestResult(operation)
        pending = self._pending = PendingOperation(kind, result, start)
        start(result)
        pending.start = None
        return result

    def _go_to(self, state: TransactionState) -> None:
        if self.state is not state:
            self.transition_to(state)

    def _push_once(self, handler: TxnRequestHandler) -> None:
        """Queue the request of an operation, unless it was queued before an exception came."""
        if not self._queue.any(lambda queued: queued.result is handler.result):
            self._queue.push(handler)

    def finish_interrupted_call(self) -> None:
        """Make whole what an exception has left half-way: see `Appender`."""
        pending = self._pending
        if pending is not None and pending.start is not None:
            pending.start(pending.result)
            pending.start = None
        if self.is_half_way:
            self.maybe_transition_to_error_state(
                TransactionAbortableError(
                    "an exception, as of a signal handler, came in the middle of a call: it is not"
                    " certain what of it belongs to the transaction; abort, and do it again"
                )
            )
            self.is_half_way = False
        if self.has_fatal_error and self.last_error is not None:
            self._fail_all(self.last_error)

    def _fail_with_error(self) -> None:
        error = self.last_error
        if not self.has_error or error is None:
            return
        if isinstance(error, ProducerFencedError | InvalidProducerEpochError):
            raise self.explained(type(error)(str(error), recovery=error.recovery))
        keeps_class = isinstance(error, IllegalStateError | InvalidTxnTimeoutError)
        kind = type(error) if keeps_class else KafkaError
        state = f"{self._who}, in state {self.state.name}"
        raise self.explained(self._caused(f"{error} ({state})", error, kind))

    @staticmethod
    def _caused(text: str, cause: KafkaError, kind: type[KafkaError] = KafkaError) -> KafkaError:
        error = kind(text, recovery=cause.recovery)
        # A record to be mended says "fix", its transaction "abort"; the cause is the record's.
        own = cause.__cause__
        is_of_record = isinstance(own, KafkaError) and own.recovery == "fix" != cause.recovery
        error.__cause__ = own if is_of_record else cause
        return error
