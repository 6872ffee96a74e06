"""A request about one transactional id, through all its attempts.

It takes the id, ends its transaction, or writes an offset into that.

Owns: the requests, the verdicts on their answers, the errors that callers get. Must not know:
connections, coordinators' addresses, time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple, TypeAlias

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.from_memory import NEW_TERM, may_be_from_memory
from txnproducer._core.transactions.handler import (
    FIRST_MARKERS_BACKOFF_MS,
    may_have_taken_effect,
)
from txnproducer._core.transactions.verdicts import Action
from txnproducer._protocol.backoff import doubled
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    CoordinatorType,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Request,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    DisconnectError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    error_for_code,
)
from txnproducer.records import (
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionLease,
)

Answer: TypeAlias = (
    InitProducerIdResponse | EndTxnResponse | AddOffsetsToTxnResponse | TxnOffsetCommitResponse
)


class Place(NamedTuple):
    """A coordinator, by the key that it is looked up with."""

    kind: CoordinatorType
    key: str


class Next(NamedTuple):
    """The step after an answer.

    Attributes:
        error: of the answer, if the request has to be repeated; None if it has ended.
        looks_up: whether the coordinator has to be looked up before.
        wait_ms: the time until the repetition, if the coordinator stays.
        goes_on: whether another request follows, to another coordinator.
    """

    error: KafkaError | None = None
    looks_up: bool = False
    wait_ms: int = 0
    goes_on: bool = False


_ENDED: Final = Next()


class IdRequest(ABC):
    """A request about one transactional id.

    Args:
        transactional_id: the id.
        lease: of the transaction that it is about; None if it is about the id alone.

    Attributes:
        lease: see above.
        place: the coordinator that the next attempt goes to.
        is_over: whether it is answered, or was given up.
        error: the reason for its failure; None if there is none.
        producer: the identity in a successful answer; NONE if the answer has none.
        failures: attempts in a row without a final answer.
    """

    def __init__(self, transactional_id: str, lease: TransactionLease | None = None) -> None:
        self.transactional_id = transactional_id
        self.lease = lease
        self.place = Place(CoordinatorType.TRANSACTION, transactional_id)
        self.is_over = False
        self.error: KafkaError | None = None
        self.producer = ProducerIdAndEpoch.NONE
        self.failures = 0
        self._last_failure: KafkaError | None = None
        self._markers_awaited = 0

    @abstractmethod
    def begin_attempt(self, node_id: int) -> Request:
        """Return the request for an attempt at a broker."""

    @abstractmethod
    def take(self, answer: Any, retry_backoff_ms: int) -> Next:
        """Take in an answer, and return the next step."""

    @abstractmethod
    def note_lost(self, body: Request) -> None:
        """Note that a request was sent and has no answer. The broker may have acted on it."""

    def note_failure(self, error: KafkaError) -> None:
        """Note the reason for another attempt."""
        self.failures += 1
        self._last_failure = error

    def fail(self, error: KafkaError) -> None:
        """End it with an error."""
        if not self.is_over:
            self.error, self.is_over = error, True

    def give_up(self, timeout_ms: int, tries: str) -> None:
        """End it because its time is over.

        Args:
            timeout_ms: the time that it had.
            tries: the failures to connect, as a text; may be empty.
        """
        last = f": the last attempt failed ({self._last_failure})" if self._last_failure else ""
        self.fail(
            KafkaTimeoutError(
                f"no answer about transactional id {self.transactional_id!r} within"
                f" {timeout_ms} ms{last}{tries}"
            )
        )

    def _succeed(self, producer_id: int, epoch: int) -> Next:
        self.producer, self.is_over = ProducerIdAndEpoch(producer_id, epoch), True
        return _ENDED

    def _judge(self, table: verdicts.VerdictTable, code: int, retry_backoff_ms: int) -> Next:
        """Return the step after a refusal. If the refusal is final, fail with its error."""
        verdict = table.judge(code)
        if not verdict.action.is_retry:
            self.fail(table.error(verdict, code))
            return _ENDED
        wait_ms = retry_backoff_ms
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            # The markers of the transaction before are being written, which is quick.
            wait_ms = doubled(FIRST_MARKERS_BACKOFF_MS, wait_ms, self._markers_awaited)
            self._markers_awaited += 1
        return Next(error_for_code(code), verdict.action is Action.LOOK_UP, wait_ms)


class TakeRequest(IdRequest):
    """InitProducerId: fences the id's holder, and aborts its open transaction.

    Args:
        transactional_id: the id.
        transaction_timeout_ms: of the transactions under it.
    """

    def __init__(self, transactional_id: str, transaction_timeout_ms: int) -> None:
        super().__init__(transactional_id)
        self._request = InitProducerIdRequest(transactional_id, transaction_timeout_ms)

    def begin_attempt(self, node_id: int) -> Request:  # noqa: ARG002 - the same for all brokers
        """Return the request for an attempt at a broker."""
        return self._request

    def take(self, answer: InitProducerIdResponse, retry_backoff_ms: int) -> Next:
        """Take in an answer, and return the next step."""
        if answer.error_code == ErrorCode.NONE:
            return self._succeed(answer.producer_id, answer.producer_epoch)
        return self._judge(verdicts.INIT_PRODUCER_ID, answer.error_code, retry_backoff_ms)

    def note_lost(self, body: Request) -> None:
        """Do nothing: another attempt takes the id all the same."""


class EndRequest(IdRequest):
    """EndTxn under a lease. It may be repeated: the coordinator answers as it did the first time.

    With transactions v1 the lease's epoch must have had no transaction before. Otherwise a broker
    that was replaced as the coordinator could repeat the success of that one.

    Args:
        lease: of the transaction.
        is_commit: whether to commit it.
    """

    def __init__(self, lease: TransactionLease, *, is_commit: bool) -> None:
        super().__init__(lease.transactional_id, lease)
        self._is_commit = is_commit
        self._is_v2 = lease.is_transaction_v2
        self._request = EndTxnRequest(
            lease.transactional_id,
            lease.producer.producer_id,
            lease.producer.producer_epoch,
            is_commit,
            lease.is_transaction_v2,
        )
        self._is_out = self._may_be_done = False
        self._refusal_before: int | None = None
        self._asked: int | None = None

    def begin_attempt(self, node_id: int) -> Request:
        """Return the request for an attempt at a broker."""
        if node_id != self._asked:
            self._asked, self._refusal_before = node_id, None
        self._is_out = True
        return self._request

    def note_lost(self, body: Request) -> None:
        """Note that a request was sent and has no answer. The broker may have acted on it."""
        # A look-up that is lost says nothing about the transaction.
        if body is self._request:
            self._is_out, self._may_be_done = False, True
            # The broker may have been away since, and may not know that it has resigned again.
            self._refusal_before = None

    def take(self, answer: EndTxnResponse, retry_backoff_ms: int) -> Next:
        """Take in an answer, and return the next step."""
        self._is_out = False
        code = answer.error_code
        if code == ErrorCode.NONE:
            return self._succeed(answer.producer_id, answer.producer_epoch)
        if may_be_from_memory(code, is_commit=self._is_commit, is_v2=self._is_v2):
            before, self._refusal_before = self._refusal_before, code
            if before != code:
                return Next(error_for_code(code), looks_up=True)
        if code in NEW_TERM:
            self._refusal_before = None
        table = verdicts.END_TXN_COMMIT if self._is_commit else verdicts.END_TXN_ABORT
        if may_have_taken_effect(table.judge(code), code):
            self._may_be_done = True
        return self._judge(table, code, retry_backoff_ms)

    def fail(self, error: KafkaError) -> None:
        """End it with an error. A commit that may have succeeded ends in doubt."""
        if self._is_commit and (self._is_out or self._may_be_done):
            unknown = CommitOutcomeUnknownError(
                f"the commit of transactional id {self.transactional_id!r} was sent, and its"
                f" answer was lost: {error}"
            )
            unknown.__cause__ = error
            error = unknown
        super().fail(error)


class OffsetRequest(IdRequest):
    """Writes an offset of a group into the transaction of a lease.

    With transactions v1 AddOffsetsToTxn comes first; with v2 the group's coordinator adds the
    group to the transaction by itself (KIP-890).

    Args:
        lease: of the transaction.
        group_id: of the group.
        place: the partition of the offset.
        offset: with its metadata.
    """

    def __init__(
        self,
        lease: TransactionLease,
        group_id: str,
        place: TopicPartition,
        offset: OffsetAndMetadata,
    ) -> None:
        super().__init__(lease.transactional_id, lease)
        self._group_id = group_id
        self._is_v2 = lease.is_transaction_v2
        identity = (lease.producer.producer_id, lease.producer.producer_epoch)
        self._add = AddOffsetsToTxnRequest(lease.transactional_id, *identity, group_id)
        self._commit = TxnOffsetCommitRequest(
            lease.transactional_id,
            group_id,
            *identity,
            ((place, offset),),
            is_transaction_v2_enabled=self._is_v2,
        )
        if self._is_v2:
            self._go_to_the_group()

    def _go_to_the_group(self) -> None:
        self.place = Place(CoordinatorType.GROUP, self._group_id)

    def begin_attempt(self, node_id: int) -> Request:  # noqa: ARG002 - the same for all brokers
        """Return the request for an attempt at a broker."""
        return self._commit if self.place.kind is CoordinatorType.GROUP else self._add

    def take(
        self, answer: AddOffsetsToTxnResponse | TxnOffsetCommitResponse, retry_backoff_ms: int
    ) -> Next:
        """Take in an answer, and return the next step."""
        if isinstance(answer, AddOffsetsToTxnResponse):
            if answer.error_code == ErrorCode.NONE:
                self._go_to_the_group()
                return Next(goes_on=True)
            return self._judge(verdicts.ADD_OFFSETS_TO_TXN, answer.error_code, retry_backoff_ms)
        [result] = answer.results
        if result.error_code == ErrorCode.NONE:
            return self._succeed(-1, -1)
        return self._judge(verdicts.TXN_OFFSET_COMMIT, result.error_code, retry_backoff_ms)

    def note_lost(self, body: Request) -> None:
        """Note that a request was sent and has no answer. The broker may have acted on it."""
        # With v1 nothing in a late copy says that its transaction is over. It would leave an
        # offset that is undecided, and readers of the ledger would wait for it.
        if body is self._commit and not self._is_v2:
            self.fail(DisconnectError("the answer to the ledger's entry was lost"))
