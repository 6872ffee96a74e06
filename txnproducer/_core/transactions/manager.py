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

from txnproducer._core.ports import KafkaClient
from txnproducer._core.transactions.commit_evidence import SentCommit
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.leasing import TransactionLeasing
from txnproducer._core.transactions.progress import Outcome, TransactionProgress
from txnproducer._core.transactions.requests import (
    AddOffsetsToTxnHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
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


class TransactionManager:
    """See the module.

    Args:
        transactional_id: None for an idempotent producer.
        transaction_timeout_ms: after which the coordinator aborts a transaction by itself.
        retry_backoff_ms: between two attempts of a request.
        client: asked for the cluster's finalized features.

    Attributes:
        progress: what the sender makes of the operations.
        machine, requests, identity, share: its parts.
        leasing: how the transaction is shared with other processes.
        sequences: the partitions' sequence numbers.
        commit_result: of the present transaction's commit, or the latest one's; None if none was
            begun.
        last_commit: the latest commit that was begun; once it was sent, and its answer is lost for
            good, evidence of it can be asked for.
        is_half_way: whether a call is adding offsets, or leasing. If it is still set when the next
            call comes, an exception has left it.
    """

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        client: KafkaClient,
    ) -> None:
        self.progress = progress = TransactionProgress(
            transactional_id, transaction_timeout_ms, retry_backoff_ms, client
        )
        self.name = progress.name
        self.transactional_id = transactional_id
        self.is_transactional = progress.is_transactional
        self.machine = progress.machine
        self.requests = progress.requests
        self.identity = progress.identity
        self.sequences = progress.identity.sequences
        self.share = progress.share
        self.leasing = TransactionLeasing(self, progress)
        self._pending = progress.pending
        self.commit_result: TransactionalRequestResult | None = None
        self.last_commit: SentCommit | None = None
        self.is_half_way = False

    # --- what the application asks for ----------------------------------------------------------

    @property
    def unseen_abort(self) -> TransactionalRequestResult | None:
        """An abort that timed out, or was interrupted, and whose end nobody has seen yet."""
        pending = self._pending.unseen()
        is_abort = pending is not None and pending.kind is _S.ABORTING_TRANSACTION
        return pending.result if pending is not None and is_abort else None

    @property
    def is_abort_certain(self) -> bool:
        """Whether the transaction is being aborted and no commit of it was ever sent."""
        end_txn = self.progress.open.end_txn
        if not self.machine.is_aborting or end_txn is None:
            return False
        return not end_txn.may_be_committed

    def initialize_transactions(self) -> TransactionalRequestResult:
        """Begin to get an identity; older producers of the transactional id are fenced by it.

        Raises:
            IllegalStateError: initialized already, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self.share.check("init_transactions")
        self._ensure_transactional()
        self.fail_with_error()
        return self.begin_operation(_S.INITIALIZING, "init_transactions", self._start_initializing)

    def _start_initializing(self, result: TransactionalRequestResult) -> None:
        self.machine.go_to(_S.INITIALIZING)
        self.identity.ask_anew()
        progress = self.progress
        self.requests.push_once(
            InitProducerIdHandler(progress, result, progress.transaction_timeout_ms)
        )

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent.

        Raises:
            IllegalStateError: not initialized, or a transaction is open, or another call has to be
                repeated first.
            KafkaError: the producer is in an error state.
        """
        self.share.check("begin_transaction")
        self.check_call("begin_transaction")
        loss = self.identity.loss
        if loss is not None:
            raise self._caused(
                f"the producer has lost its identity ({loss}): once that is mended,"
                " call init_transactions() again",
                loss,
            )
        if self.identity.has_stray_request:
            raise ApplicationRecoverableError(
                f"{self.name}: what was sent before (an answer was lost, or came too late) could"
                " join the next transaction, or be taken for a part of it; this cluster is too old"
                " to raise the producer's epoch against that"
                " (InitProducerId below version 3): close this producer, and go on with a new one",
                recovery="restart",
            )
        self.machine.transition_to(_S.IN_TRANSACTION)
        self.transaction_begun()

    def transaction_begun(self) -> None:
        """Take in that a transaction is open, begun here or by another process."""
        self.progress.begin()
        self.commit_result = None

    def begin_commit(self) -> TransactionalRequestResult:
        """Begin to commit: batches and offsets go first, then EndTxn.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self.share.check("commit_transaction")
        if self.machine.state is _S.IN_TRANSACTION:
            self.share.check_receipts()
        self._ensure_transactional()
        return self.begin_operation(
            _S.COMMITTING_TRANSACTION,
            "commit_transaction",
            self._start_commit,
            check=self.fail_with_error,
        )

    def _start_commit(self, result: TransactionalRequestResult) -> None:
        self.commit_result = result
        self.machine.go_to(_S.COMMITTING_TRANSACTION)
        identity = self.identity
        self.last_commit = SentCommit(
            identity.producer_id_and_epoch, identity.is_transaction_v2_enabled
        )
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
        self.share.check("abort_transaction")
        self._ensure_transactional()
        given_up = self._commit_to_give_up()
        if given_up is not None:
            return self._give_up_commit(given_up)
        return self.begin_operation(
            _S.ABORTING_TRANSACTION,
            "abort_transaction",
            self._start_abort,
            check=None if self.machine.has_abortable_error else self.fail_with_error,
        )

    def _start_abort(self, result: TransactionalRequestResult) -> None:
        self.machine.go_to(_S.ABORTING_TRANSACTION)
        self._drop_requests_not_needed_for_abort()
        self._queue_end_txn(result, is_commit=False)

    def _drop_requests_not_needed_for_abort(self) -> None:
        self.progress.open.new_partitions.clear()
        self.requests.drop_those_an_abort_needs_not()

    def _queue_end_txn(self, result: TransactionalRequestResult, *, is_commit: bool) -> None:
        opened = self.progress.open
        end_txn = opened.end_txn
        if end_txn is None or end_txn.result is not result:
            failed = end_txn
            end_txn = EndTxnHandler(
                self.progress,
                result,
                is_commit=is_commit,
                is_transaction_v2_enabled=self.identity.is_transaction_v2_enabled,
            )
            if failed is not None and failed.may_be_committed:
                # Its caller was told, or will not ask any more: the abort has to tell as well.
                end_txn.inherit(failed)
            opened.end_with(end_txn)
        self.identity.update_transaction_version(on_initialization=False)
        self.requests.push_once(end_txn)

    def _commit_to_give_up(self) -> EndTxnHandler | None:
        """Return a commit under way whose caller has timed out; acknowledge one that failed."""
        pending, machine = self._pending.unseen(), self.machine
        if pending is None or pending.kind is not _S.COMMITTING_TRANSACTION:
            return None
        if pending.result.is_successful or machine.state is _S.INITIALIZING:
            raise IllegalStateError(
                f"{self.name}: the transaction is committed, it cannot be aborted any more; call"
                " commit_transaction() again to see its end"
            )
        end_txn = self.progress.open.end_txn
        if machine.state is _S.COMMITTING_TRANSACTION:
            return end_txn
        if machine.has_abortable_error and end_txn is not None:
            # The commit will not be sent any more; its caller does not have to hear it first.
            error = machine.last_error or KafkaError()
            end_txn.fail(error)
            self.requests.fail_end_txn(error)
        pending.result.acknowledge()
        lost = pending.result.error
        if machine.has_fatal_error and isinstance(lost, CommitOutcomeUnknownError):
            # That the producer has failed says less than what its caller has not heard yet.
            raise lost
        return None

    def _give_up_commit(self, end_txn: EndTxnHandler) -> TransactionalRequestResult:
        if end_txn.may_be_committed and not self.identity.can_handle_abortable_error:
            unknown = CommitOutcomeUnknownError(
                "a commit was sent, its answer is missing, and this cluster is too old to raise"
                " the producer's epoch, so that the commit could still hit the next transaction"
            )
            self.progress.transition_to_fatal_error(unknown)
            raise unknown
        _LOG.info("%s: giving up a commit in favour of an abort", self.name)

        def start(result: TransactionalRequestResult) -> None:
            machine = self.machine
            if not machine.is_aborting:
                given_up = TransactionAbortedError("the commit was given up for an abort")
                machine.transition_to(_S.ABORTABLE_ERROR, given_up)
                machine.transition_to(_S.ABORTING_TRANSACTION)
            self._drop_requests_not_needed_for_abort()
            if end_txn.result is not result:
                end_txn.turn_into_abort(result)

        return self._pending.start(_S.ABORTING_TRANSACTION, "abort_transaction", start)

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
        operation = "send_offsets_to_transaction"
        self.share.check(operation)
        self._ensure_transactional()
        result = TransactionalRequestResult(operation)
        if not offsets:
            result.done()
            return result
        self.check_call(operation)
        self.check_in_transaction("offsets cannot be sent")
        progress, is_v2 = self.progress, self.identity.is_transaction_v2_enabled
        commit = TxnOffsetCommitHandler(
            progress, result, offsets, group_metadata, is_transaction_v2_enabled=is_v2
        )
        handler = commit if is_v2 else AddOffsetsToTxnHandler(progress, commit)
        self.set_half_way(True)
        if is_v2:
            progress.open.start()
        self.requests.queue.push(handler)
        self.set_half_way(False)
        return result

    def check_can_append(self) -> None:
        """Refuse a record that has no place in the present state, before it is appended.

        Raises:
            IllegalStateError: no transaction is open, or a call has to be repeated first.
            ProducerFencedError, InvalidProducerEpochError: `send` returns these as failed futures.
            KafkaError: the producer is in another error state.
        """
        self.fail_with_error()
        if self.is_transactional:
            self._pending.refuse_others("send")
            if self.identity.is_due:
                raise IllegalStateError(f"{self.name}: call init_transactions() before send()")
            self.check_in_transaction("records cannot be sent")
        self.share.check("send")

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Make sure that a partition is in the transaction, or will be; raise as above if not."""
        self.check_can_append()
        if self.is_transactional:
            self.progress.open.name_partition(
                topic_partition, is_transaction_v2=self.identity.is_transaction_v2_enabled
            )

    # --- how operations follow each other -------------------------------------------------------

    def _ensure_transactional(self) -> None:
        if not self.is_transactional:
            raise IllegalStateError("transactions need a transactional_id in the configuration")

    def check_call(self, call: str) -> None:
        """Refuse a call in an error state, or while the end of another call was not seen."""
        self._ensure_transactional()
        self._pending.refuse_others(call)
        self.fail_with_error()

    def check_in_transaction(self, refusal: str) -> None:
        """Refuse what needs an open transaction, where there is none."""
        state = self.machine.state
        if state is not _S.IN_TRANSACTION:
            raise IllegalStateError(
                f"{self.name}: {refusal} in state {state.name}; call begin_transaction()"
            )

    def begin_operation(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
        check: Callable[[], None] | None = None,
    ) -> TransactionalRequestResult:
        """Begin an operation, or return the result of the same one that is under way.

        Args:
            kind: the state it begins with.
            operation: the public call's name.
            start: its steps; each looks first whether it is done, since they may be made again.
            check: refuses the call, once it is known to be a new one.
        """
        pending = self._pending.unseen()
        if pending is not None and pending.kind is kind:
            return pending.result
        self._pending.refuse_others(operation)
        if check is not None:
            check()
        self.machine.check_transition(kind)
        return self._pending.start(kind, operation, start)

    def set_half_way(self, is_half_way: bool, /) -> None:
        """Note that a call is half-way, or is no longer: an exception may come between."""
        self.is_half_way = is_half_way

    def finish_interrupted_call(self) -> None:
        """Make whole what an exception has left half-way: see `Appender`."""
        self._pending.finish_start()
        if self.is_half_way:
            self.progress.maybe_transition_to_error_state(
                TransactionAbortableError(
                    "an exception, as of a signal handler, came in the middle of a call: it is not"
                    " certain what of it belongs to the transaction; abort, and do it again"
                )
            )
            self.set_half_way(False)
        machine = self.machine
        if machine.has_fatal_error and machine.last_error is not None:
            self.progress.fail_all(machine.last_error)

    def fail_with_error(self) -> None:
        """Raise what an error state has to say to a call."""
        machine, progress = self.machine, self.progress
        error = machine.last_error
        if not machine.has_error or error is None:
            return
        if isinstance(error, ProducerFencedError | InvalidProducerEpochError):
            raise progress.explained(type(error)(str(error), recovery=error.recovery))
        keeps_class = isinstance(error, IllegalStateError | InvalidTxnTimeoutError)
        kind = type(error) if keeps_class else KafkaError
        state = f"{progress.description}, in state {machine.state.name}"
        raise progress.explained(self._caused(f"{error} ({state})", error, kind))

    @staticmethod
    def _caused(text: str, cause: KafkaError, kind: type[KafkaError] = KafkaError) -> KafkaError:
        error = kind(text, recovery=cause.recovery)
        # A record to be mended says "fix", its transaction "abort"; the cause is the record's.
        own = cause.__cause__
        is_of_record = isinstance(own, KafkaError) and own.recovery == "fix" != cause.recovery
        error.__cause__ = own if is_of_record else cause
        return error
