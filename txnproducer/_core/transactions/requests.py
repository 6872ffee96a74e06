"""The six requests to coordinators: how each is built, and how its answer is handled.

Owns: the handlers. Must not know: the queue, connections, the state machine's table. The meaning
of a code is in `verdicts.py`; its effect on the state is the transaction manager's.

    FindCoordinator     where the coordinator of a transactional id or a group is
    InitProducerId      the producer's identity, or (with the present one) its next epoch
    AddPartitionsToTxn  transactions v1 only; v2 adds a partition with its first batch (KIP-890)
    AddOffsetsToTxn     transactions v1 only; followed by TxnOffsetCommit under the same result
    TxnOffsetCommit     a group's offsets, in the transaction
    EndTxn              in `end_txn.py`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.handler import (
    RequestPriority,
    TransactionActions,
    TxnRequestHandler,
)
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TopicAuthorizationError,
    error_for_code,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)

__all__ = [
    "AddOffsetsToTxnHandler",
    "AddPartitionsToTxnHandler",
    "EndTxnHandler",
    "FindCoordinatorHandler",
    "InitProducerIdHandler",
    "RequestPriority",
    "TransactionActions",
    "TxnOffsetCommitHandler",
    "TxnRequestHandler",
]

# For idempotent producers, which have no transaction to time out; as in Java.
_MAX_TIMEOUT_MS: Final = 2**31 - 1


class FindCoordinatorHandler(TxnRequestHandler):
    """FindCoordinator (key 10): goes to any broker.

    Behavior:
    * An answer names one coordinator. Any other number means a broken broker, and is fatal.
    * A refusal while aborting cannot ask for an abort. If it is about a group, the group's offsets
      are given up, which an abort does not need. If it is about the transaction coordinator, which
      an abort does need, it is fatal.

    Retries: every retriable code, without a look-up of its own.
    """

    priority = RequestPriority.FIND_COORDINATOR
    answer_type = FindCoordinatorResponse
    needs_coordinator: CoordinatorType | None = None
    is_harmful_when_late = False

    def __init__(self, actions: TransactionActions, key: str, key_type: CoordinatorType) -> None:
        super().__init__(actions, TransactionalRequestResult("find_coordinator"))
        self.key = key
        self.key_type = key_type

    @property
    def is_for_commit_only(self) -> bool:
        """Whether an abort can do without it: only offsets need a group's coordinator."""
        return self.key_type is CoordinatorType.GROUP

    def _build(self) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(self.key, self.key_type)

    def _handle(self, response: FindCoordinatorResponse) -> None:
        # Fatal as in Java: one key was asked for, and to pick an answer would be a guess.
        if len(response.coordinators) != 1:
            self.fatal_error(
                IllegalStateError(
                    f"FindCoordinator for {self.key!r} was answered with"
                    f" {len(response.coordinators)} coordinators instead of one"
                )
            )
            return
        found = response.coordinators[0]
        verdict = verdicts.FIND_COORDINATOR.judge(found.error_code)
        if verdict.action is Action.COMPLETE:
            self._actions.requests.coordinator_found(self.key_type, self.key, found.node)
            self.result.done()
            return
        error = verdicts.FIND_COORDINATOR.error(
            verdict, found.error_code, group_id=self.key, detail=found.error_message
        )
        self._execute(verdict, error)

    def abortable_error(self, error: KafkaError) -> None:
        """Fail, and have the transaction aborted. During an abort, give up the group or end."""
        if not self._actions.machine.is_aborting:
            super().abortable_error(error)
        elif self.key_type is CoordinatorType.GROUP:
            self.fail(error)  # the offsets that it was for are given up
        else:
            failure = KafkaError(
                "the transaction could not be aborted: the look-up of its coordinator was refused."
                " The coordinator aborts it at its time-out. Go on with a new producer"
            )
            failure.__cause__ = error
            self.fatal_error(failure)


class InitProducerIdHandler(TxnRequestHandler):
    """InitProducerId (key 22), v0-v5.

    Behavior:
    * With -1/-1 it begins a producer's life: it fences older producers of the id, and aborts their
      open transaction. With the present id and epoch it raises the epoch (v3 and above, KIP-360).
    * As a bump it follows an EndTxn that has decided the outcome. The caller of the commit or the
      abort gets that outcome, even if the bump fails.
    * An idempotent producer has no coordinator; any broker gives an id.

    Late: a late copy raises the epoch or fences, and the producer learns that from the next
    answer. It cannot join another transaction.

    Retries: every retriable code (CONCURRENT_TRANSACTIONS while an older transaction completes).
    """

    answer_type = InitProducerIdResponse
    is_harmful_when_late = False

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        transaction_timeout_ms: int = _MAX_TIMEOUT_MS,
        *,
        current: ProducerIdAndEpoch = ProducerIdAndEpoch.NONE,
        on_bump_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(actions, result)
        self._transaction_timeout_ms = transaction_timeout_ms
        self._current = current
        self._on_bump_end = on_bump_end
        is_idempotent = actions.transactional_id is None
        self.needs_coordinator = None if is_idempotent else CoordinatorType.TRANSACTION
        self.priority = (
            RequestPriority.EPOCH_BUMP if self.is_epoch_bump else RequestPriority.INIT_PRODUCER_ID
        )
        self._table = (
            verdicts.INIT_PRODUCER_ID_IDEMPOTENT if is_idempotent else verdicts.INIT_PRODUCER_ID
        )

    @property
    def is_epoch_bump(self) -> bool:
        """Whether it raises the epoch after a transaction."""
        return self._on_bump_end is not None

    def _build(self) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            self._actions.transactional_id,
            self._transaction_timeout_ms,
            self._current.producer_id,
            self._current.producer_epoch,
        )

    def _handle(self, response: InitProducerIdResponse) -> None:
        code = response.error_code
        verdict = self._table.judge(code)
        if verdict.action is not Action.COMPLETE:
            self._execute(verdict, self._table.error(verdict, code, detail=self._detail(code)))
            return
        self._take_identity(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))

    def _detail(self, code: int) -> str | None:
        if code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return None
        return (
            f"transaction_timeout_ms={self._transaction_timeout_ms} is above the brokers'"
            " transaction.max.timeout.ms: lower the one or raise the other"
        )

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Note that there is no answer. The request may still be executed later."""
        if failure.was_sent:
            self._actions.init_request_lost()
        super().on_failure(failure, error)

    def _take_identity(self, producer: ProducerIdAndEpoch) -> None:
        # First, since the caller may begin the next transaction as soon as it sees the end.
        self._actions.initialized(producer, is_epoch_bump=self.is_epoch_bump)
        if self._on_bump_end is not None:
            self._on_bump_end()
        else:
            self.result.done()

    def fail(self, error: KafkaError) -> None:
        """Fail the caller. A failed bump does not fail the commit or abort before it."""
        if self._on_bump_end is None:
            self.result.fail(error)
        else:
            self._on_bump_end()
            self._actions.identity.epoch_bump_failed()


class AddPartitionsToTxnHandler(TxnRequestHandler):
    """AddPartitionsToTxn (key 24), v0-v3. Transactions v1 only.

    Behavior:
    * The codes are judged partition by partition. The first one decides that is neither a success
      nor to be collected.
    * Denied and not attempted partitions are collected: the error names the denied topics.
    * After all were judged none of them is pending any more, accepted or not. So retried batches
      of partitions that were accepted before can still be sent.

    Retries: every retriable code.
    """

    priority = RequestPriority.ADD_PARTITIONS_OR_OFFSETS
    answer_type = AddPartitionsToTxnResponse
    may_begin_transaction = True

    def __init__(self, actions: TransactionActions, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(actions, TransactionalRequestResult("add_partitions_to_txn"))
        self.partitions = partitions

    def _build(self) -> AddPartitionsToTxnRequest:
        producer = self._actions.identity.producer_id_and_epoch
        return AddPartitionsToTxnRequest(
            self.coordinator_key,
            producer.producer_id,
            producer.producer_epoch,
            # Sorted, since the order of a set differs from process to process.
            tuple(sorted(self.partitions)),
        )

    def _handle(self, response: AddPartitionsToTxnResponse) -> None:
        table = verdicts.ADD_PARTITIONS_TO_TXN
        collected: dict[TopicPartition, int] = {}
        for partition, code in ((r.topic_partition, r.error_code) for r in response.results):
            verdict = table.judge(code)
            self._note_doubt(verdict, code)
            if verdict.action is Action.COLLECT:
                collected[partition] = code
            elif verdict.action is not Action.COMPLETE:
                if (
                    code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    and self._actions.machine.is_aborting
                ):
                    # A retry would not show more: the broker refuses an unknown topic before it
                    # asks the coordinator.
                    self.give_up()
                    return
                self._execute(verdict, table.error(verdict, code))
                return
        answered = frozenset(result.topic_partition for result in response.results)
        # All or none: if one partition is refused, the broker attempts none of the others.
        self._actions.partitions_answered(answered, are_added=not collected, by=self.asked)
        if collected:
            self.abortable_error(_refused_partitions(collected))
        else:
            self.result.done()


def _refused_partitions(codes: Mapping[TopicPartition, int]) -> KafkaError:
    denied = {
        place.topic
        for place, code in codes.items()
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    # The others were not attempted because of these.
    if denied:
        return TopicAuthorizationError(topics=denied)
    reasons = ", ".join(
        f"{place.topic}-{place.partition}: {type(error_for_code(code)).__name__} ({code})"
        for place, code in sorted(codes.items())
    )
    return KafkaError(f"partitions could not be added to the transaction: {reasons}")


class AddOffsetsToTxnHandler(TxnRequestHandler):
    """AddOffsetsToTxn (key 25). Transactions v1 only.

    Behavior: on success TxnOffsetCommit follows, and the caller goes on waiting for that.

    Retries: every retriable code.
    """

    priority = RequestPriority.ADD_PARTITIONS_OR_OFFSETS
    answer_type = AddOffsetsToTxnResponse
    may_begin_transaction = True

    def __init__(self, actions: TransactionActions, follower: TxnOffsetCommitHandler) -> None:
        # Both requests have one result: the caller waits for the end of the second.
        super().__init__(actions, follower.result)
        self._follower = follower

    def _build(self) -> AddOffsetsToTxnRequest:
        producer = self._actions.identity.producer_id_and_epoch
        return AddOffsetsToTxnRequest(
            self.coordinator_key,
            producer.producer_id,
            producer.producer_epoch,
            self._follower.group_id,
        )

    def _handle(self, response: AddOffsetsToTxnResponse) -> None:
        table, code = verdicts.ADD_OFFSETS_TO_TXN, response.error_code
        verdict = table.judge(code)
        self._note_doubt(verdict, code)
        if verdict.action is Action.COMPLETE:
            self._actions.offsets_added(self._follower, self)
        else:
            error = table.error(verdict, code, group_id=self._follower.group_id)
            self._execute(verdict, error)


class TxnOffsetCommitHandler(TxnRequestHandler):
    """TxnOffsetCommit (key 28), v0-v4 with transactions v1, v5 with v2.

    Behavior:
    * It goes to the group's coordinator.
    * It is done when every partition was accepted, perhaps over several attempts.
    * Each attempt sends all offsets again, also those accepted before.
    * The pending offsets belong to this request alone: offsets of an aborted transaction, or of
      another call, are never sent with it. (In Java all requests share one map, and they are.)

    Retries: every retriable code; a lost coordinator, and REQUEST_TIMED_OUT, with one look-up.
    """

    priority = RequestPriority.ADD_PARTITIONS_OR_OFFSETS
    answer_type = TxnOffsetCommitResponse
    needs_coordinator: CoordinatorType | None = CoordinatorType.GROUP

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        *,
        is_transaction_v2_enabled: bool,
    ) -> None:
        super().__init__(actions, result)
        # A copy: the caller may change its mapping while the request waits.
        self.offsets = tuple(offsets.items())
        self._pending = set(offsets)
        self._group_metadata = group_metadata
        self._is_transaction_v2_enabled = is_transaction_v2_enabled

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return self._group_metadata.group_id

    @property
    def coordinator_key(self) -> str:
        """The key by which its coordinator is looked up."""
        return self.group_id

    def _build(self) -> TxnOffsetCommitRequest:
        # By generation and member the coordinator refuses a replaced consumer (KIP-447).
        producer, group = self._actions.identity.producer_id_and_epoch, self._group_metadata
        return TxnOffsetCommitRequest(
            self._actions.transactional_id or "",
            group.group_id,
            producer.producer_id,
            producer.producer_epoch,
            self.offsets,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            self._is_transaction_v2_enabled,
        )

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Note that there is no answer: a copy may still be on its way."""
        if failure.was_sent:
            # Offsets have no sequence numbers, so a late copy would overwrite later ones.
            self._actions.offsets_lost(self.group_id, self.offsets)
        super().on_failure(failure, error)

    def _handle(self, response: TxnOffsetCommitResponse) -> None:
        table = verdicts.TXN_OFFSET_COMMIT
        # One lost coordinator among the codes makes the retry look it up.
        retry = Verdict(Action.RETRY)
        for partition, code in ((r.topic_partition, r.error_code) for r in response.results):
            verdict = table.judge(code)
            if verdict.action is Action.COMPLETE:
                self._pending.discard(partition)
            elif verdict.action is Action.LOOK_UP:
                retry = verdict
            elif verdict.action is not Action.RETRY:
                self._execute(verdict, table.error(verdict, code, group_id=self.group_id))
                return
        if self._pending:
            self._execute(retry, None)
        else:
            self.result.done()
