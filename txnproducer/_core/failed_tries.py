"""The addresses that cannot be reached and the requests that are refused, for time-outs' texts.

Why it exists: a misspelt host, a closed port and a port of another protocol all end in a time-out,
and so does a request that a broker refuses again and again. The reason is known long before that.
Owns: the last failure of each address, the warning about it, the certainty that no bootstrap host
exists, the words for a refusal. Must not know: the states of connections, the calls that wait.
Rules:
* A warning is logged once for each address and reason, and again after the reason has changed. A
  connection that was made and lost later is no failure of its address: the next try shows the
  reason.
* A host does not exist if the name service says so twice, a second apart, with no other outcome
  between. "Try again later" (EAI_AGAIN) is another outcome.
* A failed address is the cause of a time-out only if no other broker was reached. One of several
  bootstrap servers may be down for years, and is not the cause of each time-out.
* A refusal is kept by the request or the batch that was refused. So it ends with that, and no
  later call can take it for its own. The same holds for the lack of an answer.
* A request that has no answer is warned of when that happens twice in a row, and not again. One
  answer is lost whenever a broker restarts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from txnproducer._core.metadata import Metadata
from txnproducer._protocol.events import (
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._protocol.messages import BrokerNode
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    DisconnectError,
    ErrorCode,
    InvalidConfigurationError,
    KafkaError,
    UnknownHostError,
    error_for_code,
)

_LOG = held_logger(__name__)

# A name service may be wrong for a moment.
_CERTAIN_AFTER_MS: Final = 1000
# A request is repeated more often. So a refusal that is older says nothing of its present state.
_OLD_AFTER_MS: Final = 5000
_WARNED_LOSS: Final = 2

_OBJECT: Final = re.compile(r"\b0x[0-9A-Fa-f]+\b")

E = TypeVar("E", bound=KafkaError)


class Refusal(NamedTuple):
    """A broker's answer after which the request is repeated, or the lack of an answer.

    Attributes:
        request: the request's name, and the partition that was refused, if it was one.
        node_id: the broker.
        code: the error code of the answer.
        at_ms: the time of the answer, or of the failure.
        failure: why there is no answer; None if there is one.
        lasted_ms: how long the attempt without an answer took.
        losses: the number of attempts in a row that have no answer.
    """

    request: str
    node_id: int
    code: int
    at_ms: int
    failure: KafkaError | None = None
    lasted_ms: int = 0
    losses: int = 0

    @classmethod
    def of_lost(
        cls, request: str, response: ClientResponse, now_ms: int, before: Refusal | None
    ) -> Refusal:
        """Return the lack of an answer, `before` being the end of the attempt before."""
        failure = response.error or DisconnectError("the connection was lost")
        sent, code = response.request, ErrorCode.NETWORK_EXCEPTION
        lasted_ms = now_ms - sent.created_ms
        losses = 1 if before is None else before.losses + 1
        return cls(request, sent.connection.node_id, code, now_ms, failure, lasted_ms, losses)


class FailedTries:
    """The failures of connections, by address, and the words for refusals.

    Args:
        metadata: has the brokers' addresses.

    Attributes:
        lost_metadata: the latest request for metadata, if it has no answer.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._last: dict[str, KafkaError] = {}
        self._unknown_since_ms: dict[str, int] = {}
        self._nonexistent: set[str] = set()
        self._ready: set[ConnectionId] = set()
        self.lost_metadata: Refusal | None = None

    @property
    def last(self) -> tuple[KafkaError, ...]:
        """The last failure of each address that has failed since it was reached."""
        # A broker that has left the cluster is not the cause of a time-out.
        addresses = self._addresses
        return tuple(error for address, error in self._last.items() if address in addresses)

    @property
    def _addresses(self) -> set[str]:
        nodes = (*self._metadata.bootstrap_nodes, *self._metadata.nodes.values())
        return {node.address for node in nodes}

    def are_cause(self, since_ms: int) -> bool:
        """Return whether no broker was reached since then."""
        answered_ms = self._metadata.answered_ms
        # A ready connection shows that a broker can be reached, even if it has not answered yet.
        return answered_ms is None or (answered_ms < since_ms and not self._ready)

    def failure_of(self, node_id: int) -> KafkaError | None:
        """Return the last failure of a broker's address, or None if it was reached since."""
        return self._last.get(self._address(node_id))

    def handle_connection_event(self, event: ConnectionEvent, now_ms: int) -> None:
        """Take in the news of a connection."""
        connection = event.connection
        if event.state is ConnectionState.READY:
            self._ready.add(connection)
            self._forget(self._address(connection.node_id))
        # It was made, so its address is no failure: the next try shows the reason.
        elif connection in self._ready:
            self._ready.discard(connection)
        elif event.error is not None:
            self.note(connection.node_id, event.error, now_ms)

    def note(self, node_id: int, error: KafkaError, now_ms: int) -> None:
        """Take in why a broker could not be used."""
        address = self._address(node_id)
        # Taken out, so that the dict keeps its order by time: the last one becomes the cause.
        known = self._last.pop(address, None)
        # By its text: each try makes a new error, and the same reason has the same words.
        if known is None or not _is_same(str(known), str(error)):
            # The first failure, or one with another reason: a warning for each retry would flood.
            is_refusal = isinstance(error, InvalidConfigurationError)
            _LOG.warning("%s" if is_refusal else "%s; trying again", error)
        self._last[address] = error
        # Any other outcome shows that the name service knows the host, or may know it again.
        if not isinstance(error, UnknownHostError):
            self._unknown_since_ms.pop(address, None)
            self._nonexistent.discard(address)
        elif now_ms - self._unknown_since_ms.setdefault(address, now_ms) >= _CERTAIN_AFTER_MS:
            self._nonexistent.add(address)

    def forget_brokers_that_left(self) -> None:
        """Forget each address that is neither a bootstrap address nor in the metadata."""
        for address in self._last.keys() - self._addresses:
            self._forget(address)

    def _forget(self, address: str) -> None:
        self._last.pop(address, None)
        self._unknown_since_ms.pop(address, None)
        self._nonexistent.discard(address)

    def _address(self, node_id: int) -> str:
        node = self._node(node_id)
        return f"broker {node_id}" if node is None else node.address

    def _node(self, node_id: int) -> BrokerNode | None:
        metadata = self._metadata
        # A bootstrap address has a negative id, and no metadata name it.
        bootstrap = {node.node_id: node for node in metadata.bootstrap_nodes}
        return metadata.nodes.get(node_id) or bootstrap.get(node_id)

    def last_refusal(self, refusals: Iterable[Refusal], now_ms: int) -> KafkaError | None:
        """Return the latest refusal as an error, or None if none is of the last seconds."""
        last = max(refusals, key=lambda refusal: refusal.at_ms, default=None)
        # An attempt without an answer may have lasted longer, and so may the next one.
        if last is None or now_ms - last.at_ms > _OLD_AFTER_MS + last.lasted_ms:
            return None
        return self.refusal_error(last)

    def refusal_error(self, refusal: Refusal) -> KafkaError:
        """Return a refusal as an error."""
        node = self._node(refusal.node_id)
        # The id of a bootstrap address is this producer's own, and would mislead.
        name = "a broker" if refusal.node_id < 0 else f"broker {refusal.node_id}"
        place = name if node is None else f"{name} ({node.address})"
        if refusal.failure is not None:
            reason = str(refusal.failure)
            if node is not None:
                reason = reason.removeprefix(f"{node.address}: ")
            lost = DisconnectError(f"{place} gave no answer to {refusal.request}: {reason}")
            lost.__cause__ = refusal.failure
            return lost
        error = error_for_code(refusal.code)
        return type(error)(f"{place} last answered {refusal.request} with {error}")

    def warn_of_loss(self, end: Refusal | None) -> None:
        """Warn of a request when its second attempt in a row has no answer."""
        if end is not None and end.losses == _WARNED_LOSS:
            _LOG.warning("%s; trying again", self.refusal_error(end))

    def metadata_lost(self, response: ClientResponse, now_ms: int) -> None:
        """Take in that a request for metadata has no answer."""
        lost = Refusal.of_lost("Metadata", response, now_ms, self.lost_metadata)
        self.lost_metadata = lost
        self.warn_of_loss(lost)

    def metadata_came(self) -> None:
        """Take in that a request for metadata was answered."""
        self.lost_metadata = None

    def reason_unknown(self, topic: str) -> KafkaError | None:
        """Return why nothing is known of a topic, or None if the cluster says there is none."""
        if self.lost_metadata is not None:
            return self.refusal_error(self.lost_metadata)
        code = self._metadata.open_code(topic)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if code:
            error = error_for_code(code)
            return type(error)(f"the cluster last answered for it with {error}")
        return KafkaError(
            "no broker has named its partitions. Check that the brokers can be reached and are"
            " well"
        )

    @property
    def has_no_host(self) -> bool:
        """Whether no bootstrap host exists, and no broker was ever reached."""
        # Once metadata have come, the brokers' own addresses are used.
        if not self._nonexistent or self._metadata.last_success_ms is not None:
            return False
        # One host that may exist is enough to go on.
        return self._nonexistent.issuperset(
            node.address for node in self._metadata.bootstrap_nodes
        )

    def no_host_error(self) -> KafkaError:
        """Return the error of a call that can't succeed because no bootstrap host exists."""
        names = ", ".join(sorted(self._nonexistent))
        return caused_by(
            InvalidConfigurationError(
                f"no host of bootstrap_servers exists: {names}. Correct the names, or the name"
                " service of this machine"
            ),
            self.last,
        )


def _is_same(known: str, text: str) -> bool:
    """Return whether two texts have the same reason."""
    # A `repr` in the text of a user's own error has the address of an object.
    return _OBJECT.sub("", known) == _OBJECT.sub("", text)


def in_words(tries: Sequence[KafkaError]) -> str:
    """Return failed tries for an error's text."""
    # Some of the texts begin with these words themselves.
    reasons = [str(each).removeprefix("no connection ") for each in tries]
    return f"no connection ({'; '.join(reasons)})"


def also(tries: Sequence[KafkaError]) -> str:
    """Return failed tries for the end of an error's text that has another cause."""
    return f"; also: {in_words(tries)}" if tries else ""


def caused_by(
    error: E,
    tries: Sequence[KafkaError],
    *,
    are_cause: bool = True,
    refusal: KafkaError | None = None,
) -> E:
    """Return an error with the failed tries in `causes`. If they are the cause, chain the last.

    A refusal is the cause. It becomes the last of `causes`.
    """
    error.causes = tuple(tries) if refusal is None else (*tries, refusal)
    if error.causes and (are_cause or refusal is not None):
        # An exception has one cause only. All of them are in `causes`.
        error.__cause__ = error.causes[-1]
    return error
