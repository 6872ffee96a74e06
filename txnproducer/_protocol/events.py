"""Requests with their envelopes, answers, and news of connections.

Owns: `ClientRequest`, `ClientResponse`, `ConnectionEvent`. Must not know: sockets or policy. The
carrier (the wire adapter, the simulator's network, a test's script) answers every `ClientRequest`
with exactly one `ClientResponse`: a body, or the reason why there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from txnproducer._protocol.messages import Request, Response
from txnproducer.errors import KafkaError


class Channel(IntEnum):  # an int's hash is fast: it is a part of every connection's key
    """One of a broker's connections. Coordinators have their own, which Produce cannot block."""

    DATA = auto()
    COORDINATOR = auto()


class ConnectionId(NamedTuple):
    """One connection to one broker."""

    node_id: int
    channel: Channel = Channel.DATA


# Each step names connections, so they are made once. Beyond the limit they are made again.
@lru_cache(maxsize=1_024)
def data_connection(node_id: int) -> ConnectionId:
    """Return the name of a broker's connection for records and metadata."""
    return ConnectionId(node_id)


@lru_cache(maxsize=1_024)
def coordinator_connection(node_id: int) -> ConnectionId:
    """Return the name of a broker's connection for requests to it as a coordinator."""
    return ConnectionId(node_id, Channel.COORDINATOR)


class ClientRequest(NamedTuple):
    """A request on its way. `correlation_id` is the core's own token, not the wire's number."""

    # A number of the wire is unique within one connection only.
    correlation_id: int
    connection: ConnectionId
    body: Request
    created_ms: int
    timeout_ms: int


class ResponseFailure(Enum):
    """Why a request ended without an answer."""

    DISCONNECTED = auto()  # the connection ended first: the broker may or may not have acted
    TIMED_OUT = auto()  # no answer within its time-out: the broker may or may not have acted
    UNSUPPORTED_VERSION = auto()  # never sent: the broker offers no version that can carry it
    UNENCODABLE = auto()  # never sent: a value in it has no form on the wire

    @property
    def was_sent(self) -> bool:
        """Whether the request was put on the wire, so that the broker may have acted on it."""
        return self in (ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT)


class ClientResponse(NamedTuple):
    """The end of one request: either `body` or `failure` is set."""

    request: ClientRequest
    body: Response | None = None
    failure: ResponseFailure | None = None
    error: KafkaError | None = None  # details of the failure, where any are known


class ConnectionState(Enum):
    """The new state of a connection."""

    READY = auto()  # handshake done; the node's API versions are known now
    DISCONNECTED = auto()  # was ready, or was being made, and is gone; `error` says why if known
    AUTHENTICATION_FAILED = auto()  # the broker refused the credentials, or TLS could not trust it


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A connection changed its state."""

    connection: ConnectionId
    state: ConnectionState
    error: KafkaError | None = None


ClientEvent: TypeAlias = ClientResponse | ConnectionEvent
