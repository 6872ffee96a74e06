"""A request to a coordinator on its way: the behavior that all six kinds share.

Owns: `TxnRequestHandler`, the priorities, the execution of verdicts, and `TransactionActions`, all
that handlers may ask of the transaction's progress. Must not know: queues, connections.

Rules:
* A handler stays the same object through all its attempts; each `build_request` is an attempt.
* After a fatal error an answer only fails the caller; it changes nothing.
* If there is no answer (disconnected, timed out), the coordinator is looked up, and the request is
  repeated. The broker may have acted; all requests of a transaction may be repeated.
* A request without an answer may also arrive later, during another transaction (KAFKA-17754,
  KAFKA-14402). A handler whose request could do harm there informs the manager, which takes a new
  epoch before that transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias

from txnproducer._core.failed_tries import Refusal
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.identity import ProducerIdentity
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionStateMachine
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.backoff import doubled
from txnproducer._protocol.events import ClientResponse, ResponseFailure
from txnproducer._protocol.messages import BrokerNode, CoordinatorType, Request, Response
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    RetriableError,
    TransactionAbortedError,
    UnknownServerError,
    UnsupportedVersionError,
    class_for_code,
)
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

Offsets: TypeAlias = Sequence[tuple[TopicPartition, OffsetAndMetadata]]

# The previous transaction's markers usually take half a millisecond. So the first retry comes
# soon, and each further one waits twice as long. Java waits 20 ms, and only before it adds the
# first partitions.
FIRST_MARKERS_BACKOFF_MS: Final = 1

# With these codes the coordinator refuses before it writes to its log.
_NOT_CARRIED_OUT: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def may_have_taken_effect(verdict: Verdict, code: int) -> bool:
    """Return whether the coordinator may have executed a request that it refused."""
    if code != ErrorCode.NONE and class_for_code(code) is UnknownServerError:
        # Something broke inside the coordinator, before its write or after it. The code of a newer
        # broker, which this version does not know, may mean the same.
        return True
    # If its log is too slow, or has too few replicas, the coordinator answers that it is not
    # available itself. The log may have kept the write.
    return verdict.action.is_retry and code not in _NOT_CARRIED_OUT


class RequestPriority(IntEnum):
    """The order of requests: the lower goes first, equals in the order of their first queueing."""

    # Most other requests go to a coordinator, which must be known first.
    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    # The coordinator must know all partitions and groups before EndTxn: it writes their markers.
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    # A bump during the transaction would abort it.
    EPOCH_BUMP = 4


class RequestActions(Protocol):
    """The calls that a handler may make on the coordinator requests."""

    def retry(self, handler: TxnRequestHandler) -> None:
        """Queue a request again, in its old place."""
        ...

    def coordinator(self, key_type: CoordinatorType) -> BrokerNode | None:
        """Return the coordinator, or None if it is not known."""
        ...

    def lookup_coordinator(self, handler: TxnRequestHandler) -> None:
        """Forget a request's coordinator, and queue its look-up."""
        ...

    def coordinator_found(self, key_type: CoordinatorType, key: str, node: BrokerNode) -> None:
        """Take in a coordinator's address."""
        ...


class TransactionActions(Protocol):
    """The transaction's progress as a handler sees it: facts to read, and calls to make."""

    @property
    def machine(self) -> TransactionStateMachine:
        """The state machine."""
        ...

    @property
    def identity(self) -> ProducerIdentity:
        """The producer's id and epoch, and the rules of epoch bumps."""
        ...

    @property
    def requests(self) -> RequestActions:
        """The coordinator requests, and the coordinators' addresses."""
        ...

    @property
    def transactional_id(self) -> str | None:
        """None for an idempotent producer."""
        ...

    @property
    def retry_backoff_ms(self) -> int:
        """How long to wait before another attempt."""
        ...

    @property
    def may_have_begun(self) -> bool:
        """Whether the transaction may have begun, but only by requests of unknown success."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another process has a lease of the transaction, and may have ended it."""
        ...

    def init_request_lost(self) -> None:
        """Note that an InitProducerId has no answer. It may still raise the epoch, or fence."""
        ...

    def request_lost(self, *, may_begin_transaction: bool) -> None:
        """Note that a request which could do harm later has no answer."""
        ...

    def offsets_lost(self, group_id: str, offsets: Offsets) -> None:
        """Note that offsets of the open transaction were sent, and have no answer."""
        ...

    def begun_perhaps(self) -> None:
        """Note that a refused request may have begun the transaction nevertheless."""
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

    @property
    def transaction_timeout_ms(self) -> int:
        """After which the coordinator aborts a transaction by itself."""
        ...

    def has_begun_at(self, node: BrokerNode | None) -> bool:
        """Return whether a broker, as the coordinator, knows the open transaction (v1)."""
        ...

    def has_begun_elsewhere(self, node: BrokerNode | None) -> bool:
        """Return whether another broker, as the coordinator, knows the open transaction (v1)."""
        ...

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool, by: BrokerNode | None
    ) -> None:
        """Note that partitions are, or are not, in the transaction."""
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
            on_end: called when the epoch bump, if there is one, has ended as well.
            outcome: how it ended.
        """
        ...


class TxnRequestHandler(ABC):
    """One request, until it has an answer that counts.

    Args:
        actions: the transaction's progress.
        result: the end that the caller waits for.

    Attributes:
        priority: its class in the queue.
        answer_type: the type of its answer.
        is_harmful_when_late: whether a late copy could act on a later transaction of the epoch.
        may_begin_transaction: whether the coordinator begins the transaction with it.
        needs_coordinator: the kind of coordinator that it goes to; None for any broker.
        is_retry: whether it is queued again after an attempt.
        is_taken: whether it has left the queue to be sent.
        refusal: why the last attempt has to be repeated; None if there was none.
        order: its place among equals; given with the first queueing, kept in later ones.
        asked: the coordinator that the latest attempt went to; None for any broker.
    """

    priority: RequestPriority
    answer_type: type
    needs_coordinator: CoordinatorType | None = CoordinatorType.TRANSACTION
    is_end_txn = False
    # The safe default: at worst one epoch bump too many.
    is_harmful_when_late = True
    may_begin_transaction = False

    def __init__(self, actions: TransactionActions, result: TransactionalRequestResult) -> None:
        self._actions = actions
        self.result = result
        self.is_retry = False
        self.is_taken = False
        self.refusal: Refusal | None = None
        self.order = -1
        self.asked: BrokerNode | None = None
        self._is_in_doubt = False
        self._markers_awaited_count = 0

    def report_to(self, result: TransactionalRequestResult) -> None:
        """Let another caller wait for its end."""
        self.result = result

    def take_place(self, order: int) -> None:
        """Take a place among equals. Later queueings keep it."""
        self.order = order

    def taken(self) -> None:
        """Note that it has left the queue to be sent."""
        self.is_taken = True

    def put_back(self) -> None:
        """Note that it goes back to the queue for another attempt."""
        self.is_retry = True
        self.is_taken = False

    @property
    def coordinator_key(self) -> str:
        """The key by which its coordinator is looked up."""
        return self._actions.transactional_id or ""

    @property
    def retry_backoff_ms(self) -> int:
        """The wait before the next attempt. It is short while markers are being written."""
        usual_ms = self._actions.retry_backoff_ms
        if not self._markers_awaited_count:
            return usual_ms
        return doubled(FIRST_MARKERS_BACKOFF_MS, usual_ms, self._markers_awaited_count - 1)

    def build_request(self) -> Request:
        """Begin a new attempt, and return its request."""
        self.is_retry = False
        if self.needs_coordinator is not None:
            self.asked = self._actions.requests.coordinator(self.needs_coordinator)
        return self._build()

    @abstractmethod
    def _build(self) -> Request:
        """Return the request."""

    def on_response(self, response: Response) -> None:
        """Handle the answer."""
        # The state first: after a fatal error even a success is reported as that error.
        if self._actions.machine.has_fatal_error:
            self.fail(self._actions.machine.last_error or KafkaError())
            return
        if not self._is_answer(response):
            raise IllegalStateError(f"not the answer to this request: {response!r}")
        is_early = ErrorCode.CONCURRENT_TRANSACTIONS in [p.error_code for p in _parts(response)]
        self._markers_awaited_count = self._markers_awaited_count + 1 if is_early else 0
        self._handle(response)

    def _is_answer(self, response: Response) -> bool:
        return isinstance(response, self.answer_type)

    def note_refusal(self, response: ClientResponse, now_ms: int) -> None:
        """Note the code by which a broker has asked for another attempt, or the lack of one."""
        if response.body is None:
            self.refusal = Refusal.of_lost(self._request_name, response, now_ms, self.refusal)
        node = response.request.connection.node_id
        for part in _parts(response.body):
            # Other partitions may be accepted, or denied for good.
            if part.error_code and issubclass(class_for_code(part.error_code), RetriableError):
                place = getattr(part, "topic_partition", None)
                where = "" if place is None else f" for {place.topic}-{place.partition}"
                self.refusal = Refusal(self._request_name + where, node, part.error_code, now_ms)

    @property
    def _request_name(self) -> str:
        return type(self).__name__.removesuffix("Handler")

    @abstractmethod
    def _handle(self, response: Any) -> None:
        """Judge the answer, which is of `answer_type`, and act."""

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Handle the end of an attempt without an answer."""
        self._markers_awaited_count = 0
        self._is_in_doubt |= failure.was_sent and self.may_begin_transaction
        # Before the retry: a copy of this attempt may arrive even after the retry has succeeded.
        if failure.was_sent and self.is_harmful_when_late:
            self._actions.request_lost(may_begin_transaction=self.may_begin_transaction)
        if self._actions.machine.has_fatal_error:
            self.fail(self._actions.machine.last_error or KafkaError())
        # Nothing was sent, and a repetition would end likewise.
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
            f"the broker supports no version of {self._request_name}"
            f" that this producer can use{detail}"
        )

    @property
    def is_for_commit_only(self) -> bool:
        """Whether an abort can do without it, because only a commit needs its effect.

        A request that may have begun the transaction is repeated until that is known. Otherwise
        the answer to EndTxn could be about the previous transaction.
        """
        return self.priority is RequestPriority.ADD_PARTITIONS_OR_OFFSETS and not self._is_in_doubt

    def _retry(self, *, looks_up: bool = False) -> None:
        # It was out when the abort dropped the queued requests that only a commit needs.
        if self.is_for_commit_only and self._actions.machine.is_aborting:
            self.give_up()
            return
        if looks_up and self.needs_coordinator is not None:
            self._actions.requests.lookup_coordinator(self)
        self._actions.requests.retry(self)

    def give_up(self) -> None:
        """Fail because the transaction is aborted. Otherwise the abort would wait for this."""
        self.fail(TransactionAbortedError("the transaction was aborted before this was done"))

    def _note_doubt(self, verdict: Verdict, code: int) -> None:
        """Note it if the request was refused, and may have begun the transaction nevertheless."""
        if self.may_begin_transaction and may_have_taken_effect(verdict, code):
            self._is_in_doubt = True
            self._actions.begun_perhaps()

    def _execute(self, verdict: Verdict, error: KafkaError | None) -> None:
        """Execute a verdict. Each handler treats COMPLETE and COLLECT itself."""
        identity = self._actions.identity
        if verdict.action is Action.LOOK_UP:
            self._retry(looks_up=True)
        elif verdict.action is Action.RETRY or error is None:
            self._retry()
        elif verdict.action is Action.ABORTABLE:
            self.abortable_error(error)
        # Only a new epoch helps (KIP-360), and before InitProducerId v3 none can be asked for.
        elif verdict.action is Action.BUMP_OR_FATAL and identity.can_handle_abortable_error:
            identity.require_epoch_bump()
            self.abortable_error(error)
        else:
            self.fatal_error(error)

    def fatal_error(self, error: KafkaError) -> None:
        """Fail, and end the producer."""
        # The caller first: the transition fails all other requests with the state's first error.
        self.fail(error)
        self._actions.transition_to_fatal_error(error)

    def abortable_error(self, error: KafkaError) -> None:
        """Fail, and have the transaction aborted."""
        self.fail(error)
        self._actions.transition_to_abortable_error(error)

    def fail(self, error: KafkaError) -> None:
        """Fail the caller. The state is not changed."""
        self.result.fail(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' retry' if self.is_retry else ''} {self.result}>"


def _parts(response: Any) -> Sequence[Any]:
    """Return the parts of a coordinator's answer that have an error code each."""
    if hasattr(response, "error_code"):
        return (response,)
    results: Sequence[Any] = getattr(response, "results", ())
    return results or getattr(response, "coordinators", ())
