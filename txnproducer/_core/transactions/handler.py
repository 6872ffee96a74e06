"""A request to a coordinator on its way: what all six kinds have in common.

Owns: `TxnRequestHandler`, the priorities, how a verdict is carried out, and `TransactionActions`,
all that handlers may ask of the transaction's progress. Must not know: queues, connections.

Rules:
* A handler stays the same object through all its attempts; each `build_request` is an attempt.
* After a fatal error answers are only told to whoever waits; they change nothing.
* No answer (disconnected, timed out) means: look the coordinator up, and ask again. The broker may
  have acted; all requests of a transaction may be repeated.
* A request without an answer may also arrive later, in the midst of another transaction
  (KAFKA-17754, KAFKA-14402). Those that could do harm there tell the manager, which takes a new
  epoch before that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias

from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.identity import ProducerIdentity
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionStateMachine
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.backoff import doubled
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import BrokerNode, CoordinatorType, Request, Response
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

Offsets: TypeAlias = Sequence[tuple[TopicPartition, OffsetAndMetadata]]

# The markers of the transaction before take half a millisecond where all is well: so soon it is
# asked again, and after twice as long each time it was in vain.
FIRST_MARKERS_BACKOFF_MS: Final = 1

_PASSING: Final = frozenset({Action.RETRY, Action.LOOK_UP})
# Refused before the coordinator's log is written to.
_NOT_CARRIED_OUT: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def may_be_carried_out(verdict: Verdict, code: int) -> bool:
    """Return whether the coordinator may have done all the same what it answered with an error."""
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        # Something broke inside the coordinator, before it had written or after.
        return True
    # It answers a log that was too slow, or had too few replicas, as if it were not available;
    # the log may have kept the write.
    return verdict.action in _PASSING and code not in _NOT_CARRIED_OUT


class Priority(IntEnum):
    """The lower goes first; equals go in the order in which they were asked for."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class RequestActions(Protocol):
    """What a handler may ask of the requests to coordinators."""

    def retry(self, handler: TxnRequestHandler) -> None:
        """Queue a request again, where it was."""
        ...

    def lookup_coordinator(self, handler: TxnRequestHandler) -> None:
        """Forget a request's coordinator, and queue its look-up."""
        ...

    def coordinator_found(self, key_type: CoordinatorType, key: str, node: BrokerNode) -> None:
        """Take in a coordinator's address."""
        ...


class TransactionActions(Protocol):
    """What a handler may know of the transaction's progress, and ask of it."""

    @property
    def machine(self) -> TransactionStateMachine:
        """The state."""
        ...

    @property
    def identity(self) -> ProducerIdentity:
        """Id and epoch, and when that is raised."""
        ...

    @property
    def requests(self) -> RequestActions:
        """What is queued, and where it goes."""
        ...

    @property
    def transactional_id(self) -> str | None:
        """None for an idempotent producer."""
        ...

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The present identity."""
        ...

    @property
    def retry_backoff_ms(self) -> int:
        """How long to wait before another attempt."""
        ...

    @property
    def may_have_begun(self) -> bool:
        """Whether only requests whose success nobody knows could have begun the transaction."""
        ...

    def init_request_lost(self) -> None:
        """Take in that an InitProducerId has no answer; it may yet raise the epoch, or fence."""
        ...

    def request_lost(self, *, may_begin_transaction: bool) -> None:
        """Take in that a request which could do harm later has no answer."""
        ...

    def offsets_lost(self, group_id: str, offsets: Offsets) -> None:
        """Take in that offsets of the open transaction were sent, and have no answer."""
        ...

    def begun_perhaps(self) -> None:
        """Take in that a refused request may have begun the transaction all the same."""
        ...

    def transition_to_abortable_error(self, error: KafkaError) -> None:
        """Have the transaction aborted."""
        ...

    def transition_to_fatal_error(self, error: KafkaError) -> None:
        """End the producer."""
        ...

    def initialized(self, producer: ProducerIdAndEpoch, *, is_epoch_bump: bool) -> None:
        """Take in the producer's identity."""
        ...

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool
    ) -> None:
        """Take in that partitions are, or are not, in the transaction."""
        ...

    def offsets_added(self, follower: TxnRequestHandler, leader: TxnRequestHandler) -> None:
        """Go on from AddOffsetsToTxn to TxnOffsetCommit."""
        ...

    def transaction_ended(
        self,
        producer: ProducerIdAndEpoch,
        result: TransactionalRequestResult,
        on_end: Callable[[], None],
        outcome: ResolvedOutcome,
    ) -> None:
        """Take in the end of the transaction, and perhaps the identity for the next one.

        Args:
            producer: the identity; `ProducerIdAndEpoch.NONE` if it stays.
            result: of the operation that ended it.
            on_end: called when all that follows has ended as well.
            outcome: how it ended.
        """
        ...


class TxnRequestHandler(ABC):
    """One request, until it has an answer that counts.

    Args:
        actions: the transaction's progress.
        result: whoever waits for this.

    Attributes:
        priority: when its turn is.
        answer_type: what its answer has to be.
        is_harmful_when_late: whether it could act upon a later transaction of the same epoch.
        may_begin_transaction: whether the coordinator begins the transaction with it.
        needs_coordinator: which one it goes to; None for any broker.
        is_retry: whether it is queued again after an attempt.
        is_taken: whether it has left the queue to be sent.
        order: its place among equals; given with the first queueing, kept in later ones.
    """

    priority: Priority
    answer_type: type
    needs_coordinator: CoordinatorType | None = CoordinatorType.TRANSACTION
    is_end_txn = False
    is_harmful_when_late = True
    may_begin_transaction = False

    def __init__(self, actions: TransactionActions, result: TransactionalRequestResult) -> None:
        self._actions = actions
        self.result = result
        self.is_retry = False
        self.is_taken = False
        self.order = -1
        self._is_in_doubt = False
        self._markers_awaited_count = 0

    @property
    def coordinator_key(self) -> str:
        """Whose coordinator it needs."""
        return self._actions.transactional_id or ""

    @property
    def retry_backoff_ms(self) -> int:
        """How long to wait before the next attempt; not long while markers are being written."""
        usual_ms = self._actions.retry_backoff_ms
        if not self._markers_awaited_count:
            return usual_ms
        return doubled(FIRST_MARKERS_BACKOFF_MS, usual_ms, self._markers_awaited_count - 1)

    def build_request(self) -> Request:
        """Return what to send now; a new attempt begins."""
        self.is_retry = False
        return self._build()

    @abstractmethod
    def _build(self) -> Request:
        """Return the request."""

    def on_response(self, response: Response) -> None:
        """Take in the answer."""
        if self._actions.machine.has_fatal_error:
            self.fail(self._actions.machine.last_error or KafkaError())
            return
        if not isinstance(response, self.answer_type):
            raise IllegalStateError(f"not the answer to this request: {response!r}")
        is_early = ErrorCode.CONCURRENT_TRANSACTIONS in _codes(response)
        self._markers_awaited_count = self._markers_awaited_count + 1 if is_early else 0
        self._handle(response)

    @abstractmethod
    def _handle(self, response: Any) -> None:
        """Judge the answer, which is of `answer_type`, and act."""

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Take in that there is no answer."""
        self._markers_awaited_count = 0
        self._is_in_doubt |= failure.was_sent and self.may_begin_transaction
        if failure.was_sent and self.is_harmful_when_late:
            self._actions.request_lost(may_begin_transaction=self.may_begin_transaction)
        if self._actions.machine.has_fatal_error:
            self.fail(self._actions.machine.last_error or KafkaError())
        elif failure is ResponseFailure.UNSUPPORTED_VERSION:
            is_told = isinstance(error, UnsupportedVersionError)
            self.fatal_error(error if error is not None and is_told else self._unsupported(error))
        elif failure is ResponseFailure.UNENCODABLE:
            self.fatal_error(error or KafkaError("a request could not be put into bytes"))
        else:
            self._retry(looks_up=True)

    def _unsupported(self, error: KafkaError | None) -> KafkaError:
        detail = "" if error is None else f": {error}"
        return UnsupportedVersionError(
            f"the broker supports no version of {type(self).__name__.removesuffix('Handler')}"
            f" that this producer can use{detail}"
        )

    @property
    def is_of_no_use_for_an_abort(self) -> bool:
        """Whether an abort goes without it: it makes ready what would be committed.

        One that may have begun the transaction is repeated until that is known: the answer to
        EndTxn could still be about the transaction before.
        """
        return self.priority is Priority.ADD_PARTITIONS_OR_OFFSETS and not self._is_in_doubt

    def _retry(self, *, looks_up: bool = False) -> None:
        if self.is_of_no_use_for_an_abort and self._actions.machine.is_aborting:
            self.give_up()
            return
        if looks_up and self.needs_coordinator is not None:
            self._actions.requests.lookup_coordinator(self)
        self._actions.requests.retry(self)

    def give_up(self) -> None:
        """Fail because the transaction is aborted: without an end an abort would wait for it."""
        self.fail(TransactionAbortedError("the transaction was aborted before this was done"))

    def _note_doubt(self, verdict: Verdict, code: int) -> None:
        """Tell if a request that may begin the transaction may have done so, though refused."""
        if self.may_begin_transaction and may_be_carried_out(verdict, code):
            self._is_in_doubt = True
            self._actions.begun_perhaps()

    def _carry_out(self, verdict: Verdict, error: KafkaError | None) -> None:
        """Do what a verdict says; COMPLETE and COLLECT are the handler's own."""
        identity = self._actions.identity
        if verdict.action is Action.LOOK_UP:
            self._retry(looks_up=True)
        elif verdict.action is Action.RETRY or error is None:
            self._retry()
        elif verdict.action is Action.ABORTABLE:
            self.abortable_error(error)
        elif verdict.action is Action.BUMP_OR_FATAL and identity.can_handle_abortable_error:
            identity.require_epoch_bump()
            self.abortable_error(error)
        else:
            self.fatal_error(error)

    def fatal_error(self, error: KafkaError) -> None:
        """Fail, and end the producer."""
        self.fail(error)
        self._actions.transition_to_fatal_error(error)

    def abortable_error(self, error: KafkaError) -> None:
        """Fail, and have the transaction aborted."""
        self.fail(error)
        self._actions.transition_to_abortable_error(error)

    def fail(self, error: KafkaError) -> None:
        """Fail for whoever waits; the state is not changed."""
        self.result.fail(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' retry' if self.is_retry else ''} {self.result}>"


def _codes(response: Any) -> tuple[int, ...]:
    """Return the error codes of a coordinator's answer."""
    if hasattr(response, "error_code"):
        return (response.error_code,)
    return tuple(result.error_code for result in getattr(response, "results", ()))
