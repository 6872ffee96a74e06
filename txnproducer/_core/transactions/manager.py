"""The operations of a transactional producer, as the application calls them.

Why it exists: it is the door to the transaction's state. Each call checks whether it fits, changes
the state, queues the requests to send, and returns a result for its caller to wait for. The sender
does the rest (`progress.py`).

Owns: the order of the calls, and the errors with which they are refused. Must not know: bytes,
connections, time, threads.

Rules:
* An operation returns a result at once. The same call, made again after a time-out, gets the same
  result; every other call is refused until that end was seen. The exception: a commit that timed
  out may be given up by `begin_abort`.
* `init_transactions` checks the state first, and so raises an earlier call's error wrapped. Commit
  and abort raise the earlier call's own error first.
* A refused call changes nothing.
* An exception can come between any two steps of a call (Ctrl-C, a signal handler's).
  `finish_interrupted_call` completes the interrupted call before anything else is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from txnproducer._core.ports import KafkaClient
from txnproducer._core.transactions.commit_evidence import SentCommit
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.leasing import TransactionLeasing
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.progress import Outcome, TransactionProgress
from txnproducer._core.transactions.requests import (
    AddOffsetsToTxnHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
)
from txnproducer._core.transactions.state import PREPARED_ADVICE, TransactionState
from txnproducer._sync.held_logs import held_logger
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

_LOG = held_logger(__name__)

_S = TransactionState


class TransactionManager:
    """The application's calls: each begins an operation, or is refused.

    Args:
        transactional_id, transaction_timeout_ms, retry_backoff_ms, client: see
            `TransactionProgress`.

    Attributes:
        progress: the transaction as the sender drives it.
        machine, requests, identity, share: its parts.
        leasing: how the transaction is shared with other processes.
        sequences: the partitions' sequence numbers.
        commit_result: of the present transaction's commit, or the latest one's; None if none was
            begun.
        last_commit: the latest commit that was begun. If its answer is lost for good, the
            coordinator can be asked for evidence of it.
        is_half_way: whether a call is adding offsets, or leasing. If it is still set when the next
            call comes, an exception has interrupted that call.
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

    @property
    def may_have_begun_again(self) -> bool:
        """Whether another transaction may have begun after `last_commit`'s in its epoch (v1)."""
        # An abort that could not tell the outcome for this reason has cleared the other mark.
        return self.identity.may_begin_again or self.progress.outcome == "unknown"

    # --- the application's calls ----------------------------------------------------------------

    @property
    def unseen_abort(self) -> TransactionalRequestResult | None:
        """An abort that timed out or was interrupted, if its caller has not seen its end."""
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
        """Begin to get an identity. It fences older producers of the transactional id.

        Raises:
            IllegalStateError: initialized already, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self.share.check("init_transactions")
        self._ensure_transactional()
        # Before the pending operation is looked at, unlike in commit and abort: see the rules.
        self.fail_with_error()
        return self.begin_operation(_S.INITIALIZING, "init_transactions", self._start_initializing)

    def _start_initializing(self, result: TransactionalRequestResult) -> None:
        self.machine.go_to(_S.INITIALIZING)
        self.identity.ask_again()
        progress = self.progress
        self.requests.push_once(
            InitProducerIdHandler(progress, result, progress.transaction_timeout_ms)
        )

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is sent.

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
                f"{self.name}: a request of the last transaction had no answer, or a late one. It"
                " could still join the next transaction, and this cluster is too old to prevent"
                " that by a higher epoch (InitProducerId below version 3). Close this producer,"
                " and go on with a new one",
                recovery="restart",
            )
        self.machine.transition_to(_S.IN_TRANSACTION)
        self.transaction_begun()

    def transaction_begun(self) -> None:
        """Note that a transaction is open, begun here or by another process."""
        self.progress.begin()
        # The result of an earlier commit says nothing about this transaction.
        self.commit_result = None

    def begin_commit(self) -> TransactionalRequestResult:
        """Begin to commit: batches and offsets go first, then EndTxn.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self.share.check("commit_transaction")
        # In another state this repeats a commit whose receipts were checked.
        if self.machine.state is _S.IN_TRANSACTION:
            self.share.check_receipts()
        self._ensure_transactional()
        return self.begin_operation(
            _S.COMMITTING_TRANSACTION,
            "commit_transaction",
            self._start_commit,
            check=self.fail_with_error,
        )

    @property
    def unseen_end(self) -> str | None:
        """See `PendingOperations.unseen_end`."""
        return self._pending.unseen_end

    def _start_commit(self, result: TransactionalRequestResult) -> None:
        self.commit_result = result
        self.machine.go_to(_S.COMMITTING_TRANSACTION)
        identity = self.identity
        # Taken now: the end of the transaction may change both.
        self.last_commit = SentCommit(
            identity.producer_id_and_epoch, identity.is_transaction_v2_enabled
        )
        self._queue_end_txn(result, is_commit=True)

    def begin_abort(self) -> TransactionalRequestResult:
        """Begin to abort, and give up a commit that has timed out.

        Raises:
            IllegalStateError: no transaction is open, the commit has succeeded meanwhile, or
                another call has to be repeated first.
            CommitOutcomeUnknownError: a commit was sent, and the producer failed before it could
                learn the outcome.
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
            # An abortable error is no reason to refuse: the abort is the way out of it.
            check=None if self.machine.has_abortable_error else self.fail_with_error,
        )

    def _start_abort(self, result: TransactionalRequestResult) -> None:
        self.machine.go_to(_S.ABORTING_TRANSACTION)
        self._prepare_abort()
        self._queue_end_txn(result, is_commit=False)

    def _prepare_abort(self) -> None:
        if self.last_commit is not None:
            self.last_commit = replace(self.last_commit, is_given_up=True)
        # The coordinator was not asked to add these, so there is nothing to abort in them.
        self.progress.open.new_partitions.clear()
        self.requests.drop_requests_not_needed_for_abort()

    def _queue_end_txn(self, result: TransactionalRequestResult, *, is_commit: bool) -> None:
        opened = self.progress.open
        # An interrupted start may have made the handler already.
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
                # The commit's caller knows of the doubt, or asks no more. The abort's caller has
                # to learn of it as well.
                end_txn.inherit(failed)
            opened.end_with(end_txn)
        # Read now, so that the bump for a change to v2 is due when EndTxn ends.
        self.identity.update_transaction_version(on_initialization=False)
        self.requests.push_once(end_txn)

    def _commit_to_give_up(self) -> EndTxnHandler | None:
        """Return a commit under way whose caller has timed out. Acknowledge one that failed."""
        pending, machine = self._pending.unseen(), self.machine
        if pending is None or pending.kind is not _S.COMMITTING_TRANSACTION:
            return None
        # In INITIALIZING EndTxn has ended well, and only the epoch bump after it is under way.
        if pending.result.is_successful or machine.state is _S.INITIALIZING:
            raise IllegalStateError(
                f"{self.name}: the transaction is committed, it cannot be aborted any more; call"
                " commit_transaction() again to see its end"
            )
        end_txn = self.progress.open.end_txn
        if machine.state is _S.COMMITTING_TRANSACTION:
            return end_txn
        if machine.has_abortable_error and end_txn is not None:
            # The commit is not sent any more. Its caller need not repeat it before the abort.
            error = machine.last_error or KafkaError()
            end_txn.fail(error)
            self.requests.fail_end_txn(error)
        pending.result.acknowledge()
        lost = pending.result.error
        if machine.has_fatal_error and isinstance(lost, CommitOutcomeUnknownError):
            # The unknown outcome says more than the producer's failure, and the caller does not
            # know it yet.
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
                # The table has no direct way from a commit to an abort.
                machine.transition_to(_S.ABORTABLE_ERROR, given_up)
                machine.transition_to(_S.ABORTING_TRANSACTION)
            self._prepare_abort()
            if end_txn.result is not result:
                end_txn.turn_into_abort(result)

        return self._pending.start(_S.ABORTING_TRANSACTION, "abort_transaction", start)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """Begin to commit a consumer group's offsets in the transaction.

        Each call is an operation of its own, even after a time-out.

        Raises:
            IllegalStateError: no transaction is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        operation = "send_offsets_to_transaction"
        self.share.check(operation)
        self._ensure_transactional()
        result = TransactionalRequestResult(operation)
        # As in Java, no offsets are no request, and begin nothing at the coordinator.
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
        # If an exception comes in between, the offsets may be queued or not: abort is the way out.
        self.set_half_way(True)
        if is_v2:
            # The group's coordinator adds the group by itself, so EndTxn is needed from now on.
            progress.open.start()
        self.requests.queue.push(handler)
        self.set_half_way(False)
        return result

    def check_can_append(self) -> None:
        """Refuse a record that the present state does not allow, before it is appended.

        Raises:
            IllegalStateError: no transaction is open, or a call has to be repeated first.
            ProducerFencedError, InvalidProducerEpochError: `send` returns these as failed futures.
            KafkaError: the producer is in another error state.
        """
        # Each batch asks this, so what is usual is seen without a call.
        machine = self.machine
        if machine.has_error:
            self.fail_with_error()
        if self.is_transactional:
            if self._pending.held is not None:
                self._pending.refuse_others("send")
            if self.identity.is_due:
                raise IllegalStateError(f"{self.name}: call init_transactions() before send()")
            if machine.state is not _S.IN_TRANSACTION:
                self.check_in_transaction("records cannot be sent")
        self.share.check("send")

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a record that `check_can_append` has allowed."""
        if self.is_transactional:
            self.progress.open.name_partition(
                topic_partition, is_transaction_v2=self.identity.is_transaction_v2_enabled
            )

    # --- how operations follow each other -------------------------------------------------------

    def _ensure_transactional(self) -> None:
        if not self.is_transactional:
            raise IllegalStateError("transactions need a transactional_id in the configuration")

    def check_call(self, call: str) -> None:
        """Refuse a call in an error state, or while another call's end was not seen."""
        self._ensure_transactional()
        self._pending.refuse_others(call)
        self.fail_with_error()

    def check_in_transaction(self, refusal: str) -> None:
        """Refuse a call that needs an open transaction when there is none."""
        state = self.machine.state
        if state is not _S.IN_TRANSACTION:
            is_prepared = state is _S.PREPARED_TRANSACTION
            advice = PREPARED_ADVICE if is_prepared else "call begin_transaction()"
            raise IllegalStateError(f"{self.name}: {refusal} in state {state.name}; {advice}")

    def begin_operation(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
        check: Callable[[], None] | None = None,
    ) -> TransactionalRequestResult:
        """Begin an operation, or return the result of the same one that is under way.

        Args:
            kind: the state that it begins with.
            operation: the public call's name.
            start: its steps. An interrupted start is made again, so each step first looks whether
                it is done.
            check: refuses a new call; a repeated one is not checked.
        """
        pending = self._pending.unseen()
        # The same call, made again after a time-out, waits for the same end.
        if pending is not None and pending.kind is kind:
            return pending.result
        self._pending.refuse_others(operation)
        if check is not None:
            check()
        # Before the operation is held, so that a refused call changes nothing.
        self.machine.check_transition(kind)
        return self._pending.start(kind, operation, start)

    def set_half_way(self, is_half_way: bool, /) -> None:
        """Note whether a call is half-way, since an exception may interrupt it there."""
        self.is_half_way = is_half_way

    def finish_interrupted_call(self) -> None:
        """Complete a call that an exception has interrupted: see `Appender`."""
        held = self._pending.held
        if held is not None and held.start is not None:
            held.finish_start(held.start)
        if self.is_half_way:
            self.progress.maybe_transition_to_error_state(
                TransactionAbortableError(
                    "an exception, such as one of a signal handler, interrupted a call that sends"
                    " offsets or leases the transaction. It may have been done in part: abort the"
                    " transaction, and do its work again"
                )
            )
            self.set_half_way(False)
        machine = self.machine
        # The exception may have come after the fatal error and before everything had failed.
        if machine.last_error is not None and machine.has_fatal_error:
            self.progress.fail_all(machine.last_error)

    def fail_with_error(self) -> None:
        """Raise the error of the state, if it is an error state."""
        machine, progress = self.machine, self.progress
        error = machine.last_error
        if not machine.has_error or error is None:
            return
        # A new error without the old traceback, as in Java: another call was the one that failed.
        if isinstance(error, ProducerFencedError | InvalidProducerEpochError):
            raise progress.explained(type(error)(str(error), recovery=error.recovery))
        keeps_class = isinstance(error, IllegalStateError | InvalidTxnTimeoutError)
        kind = type(error) if keeps_class else KafkaError
        state = f"{progress.description}, in state {machine.state.name}"
        raise progress.explained(self._caused(f"{error} ({state})", error, kind))

    @staticmethod
    def _caused(text: str, cause: KafkaError, kind: type[KafkaError] = KafkaError) -> KafkaError:
        error = kind(text, recovery=cause.recovery)
        # A record's own error says "fix", its transaction's error "abort". The cause is the first.
        own = cause.__cause__
        is_of_record = isinstance(own, KafkaError) and own.recovery == "fix" != cause.recovery
        error.__cause__ = own if is_of_record else cause
        return error
