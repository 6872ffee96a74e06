"""One connection of a client to a modelled broker: bytes in, answers out.

Owns: frames, headers, ApiVersions, the login, the faults that a script asks for. Must not know:
sockets, the meaning of requests.

Rules:
* A broker answers a connection's requests in their order. An answer that comes late holds up those
  that follow it.
* A request that cannot be read, or that may not come before the login, ends the connection, as
  with a real broker.
* Each request is answered by the model at once, even if its answer is sent later.
* An error in the model ends the connection too, and is logged: it is a defect of this package.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.handlers import handle
from txnproducer._protocol import messages as m
from txnproducer._protocol.messages import ApiKey
from txnproducer._protocol.versions import ApiVersionRange
from txnproducer._server import schemas as s
from txnproducer._server.api import Ask, ClusterView, MalformedRequestError
from txnproducer._server.apis import APIS
from txnproducer._server.fetch import FETCH, FETCH_VERSIONS, refuse_fetch
from txnproducer._server.login import LoginExchange, LoginFailedError, Users, new_exchange
from txnproducer._server.refusals import refuse
from txnproducer._server.script import Script, ScriptedFault
from txnproducer.errors import ErrorCode

_LOG = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")  # api key, version, correlation id
# Kafka's `socket.request.max.bytes`.
_MOST_BYTES: Final = 100 * 1024 * 1024

_API_VERSIONS: Final = 18
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_OF_THE_HANDSHAKE: Final[Mapping[int, ApiVersionRange]] = {
    _API_VERSIONS: ApiVersionRange(0, 4),
    _SASL_HANDSHAKE: ApiVersionRange(0, 1),
    _SASL_AUTHENTICATE: ApiVersionRange(0, 2),
}
# From this version on the tokens of a login travel in SaslAuthenticate (KIP-152).
_FRAMED_LOGIN: Final = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes to send.

    Attributes:
        data: a framed answer.
        due_ms: when to send it.
    """

    data: bytes
    due_ms: int


class _HangUpError(Exception):
    """The broker ends the connection."""


def _decoded(schema: Any, version: int, frame: bytes) -> Any:
    """Return a client's request, or end the connection if its bytes do not fit the schema."""
    try:
        return schema.decode(frame, version=version, header=True)
    # The schemas' errors for bytes that are too few, that have no such meaning, or that say a
    # length beyond all memory.
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise _HangUpError from error


def _served(serve: Callable[[], Any], asked: Any) -> Any:
    """Return the answer to a request, or end the connection."""
    try:
        return serve()
    except _HangUpError:
        raise
    except MalformedRequestError as error:
        raise _HangUpError from error
    except Exception as error:
        # The schemas also read a null where the protocol has none.
        _LOG.exception(
            "A request cannot be answered. This is a defect of this package, unless the request"
            " has a null that the protocol forbids: %r",
            asked,
        )
        raise _HangUpError from error


class _Refusal:
    """The refusal of one request: the error stands in each answer that has a place for it.

    Attributes:
        has_refused: whether an answer carries the error.
    """

    def __init__(self, model: Ask, code: int) -> None:
        self._model = model
        self._code = code
        self.has_refused = False

    def ask(self, request: m.Request) -> m.Response:
        """Answer a message."""
        answer = refuse(request, self._code, self._model)
        if answer is not None:
            self.has_refused = True
        else:
            # Nothing in it can be refused, so the fault waits for the next request.
            answer = self._model(request)
        return answer


class ServerConnection:
    """A client's connection to one modelled broker.

    Args:
        cluster: answers messages.
        node_id: the broker that the client has connected to.
        script: the faults to come.
        users: the users that may log in; None if the listener has no login.
        advertised: host and port of each broker for the listener's clients.

    Attributes:
        is_closed: whether the broker has ended the connection. Answers that are not due yet are
            still sent.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        node_id: int,
        script: Script,
        users: Users | None = None,
        advertised: Mapping[int, tuple[str, int]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._script = script
        self._users = users
        topology = cluster.topology
        self._view = ClusterView(topology.ids, topology.partition_counts, advertised or {})
        self._received = bytearray()
        self._login: LoginExchange | None = None
        self._is_logged_in = users is None
        self._session_end_ms: int | None = None
        self._due_ms = 0
        self.is_closed = False

    def receive(self, data: bytes, now_ms: int) -> list[Answer]:
        """Take bytes in, in pieces of any size. Return the answers of the requests they complete.

        After the connection was closed nothing more is read.
        """
        self._received += data
        answers: list[Answer] = []
        try:
            while not self.is_closed and (frame := self._next_frame()) is not None:
                answer = self._answer(frame, now_ms)
                if answer is not None:
                    answers.append(Answer(answer, self._due_ms))
        except _HangUpError:
            self.is_closed = True
        return answers

    def _next_frame(self) -> bytes | None:
        received = self._received
        if len(received) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(received)
        # A broker closes the connection for a request of a size that it does not take, and sends
        # nothing.
        if not _HEAD.size <= size <= _MOST_BYTES:
            raise _HangUpError
        if len(received) < _SIZE.size + size:
            return None  # the rest comes with a later piece
        # A copy, and the view is dropped at once: a bytearray with a view cannot shrink.
        frame = bytes(memoryview(received)[_SIZE.size : _SIZE.size + size])
        del received[: _SIZE.size + size]
        return frame

    def _answer(self, frame: bytes, now_ms: int) -> bytes | None:
        key, version, correlation_id = _HEAD.unpack_from(frame)
        # A broker answers the requests of a connection in their order, so no answer overtakes a
        # slow one.
        self._due_ms = max(self._due_ms, now_ms)
        if self._session_end_ms is not None and now_ms >= self._session_end_ms:
            # The broker closes at the first request after the end, unless that logs in again.
            self._is_logged_in = False
        # Before the login as well: a client has to know the versions of the login's own requests.
        if key in _OF_THE_HANDSHAKE:
            answer = self._shake_hands(key, version, frame, now_ms)
        elif not self._is_logged_in:
            raise _HangUpError
        else:
            answer = self._serve(key, version, frame, now_ms)
        if answer is None:
            return None
        try:
            answer.with_header(correlation_id=correlation_id)
            return bytes(answer.encode(header=True, framed=True))
        except Exception as error:
            # The model's answer does not fit the schema.
            _LOG.exception("An answer to API %d, version %d, cannot be encoded", key, version)
            raise _HangUpError from error

    # --- requests -------------------------------------------------------------------------------

    def _serve(self, number: int, version: int, frame: bytes, now_ms: int) -> Any:
        offered = self._offered()
        # As a broker does: only ApiVersions has an answer for a version that is not known.
        if number not in offered or not _is_within(version, offered[number]):
            raise _HangUpError
        if number == FETCH:
            return refuse_fetch(_decoded(s.FetchRequest, version, frame))
        key = ApiKey(number)
        api = APIS[key]
        asked = _decoded(api.request, version, frame)
        fault = self._script.next_fault(key)
        kind = None if fault is None else fault.kind
        if kind is ScriptedFault.REQUEST_LOST:
            self._script.use_up(key)
            raise _HangUpError
        # Time-outs and elections that are due come before the request that finds them.
        self._cluster.advance(now_ms)
        if fault is not None and kind is ScriptedFault.REFUSED:
            refusal = _Refusal(self._model(now_ms), fault.code)
            answer = _served(lambda: api.serve(asked, refusal.ask, self._view), asked)
            if refusal.has_refused:
                self._script.use_up(key)
            return answer
        answer = _served(lambda: api.serve(asked, self._model(now_ms), self._view), asked)
        if fault is not None:
            self._script.use_up(key)
            self._due_ms += fault.delay_ms
        # Last: the request has taken effect.
        if kind is ScriptedFault.ANSWER_LOST:
            raise _HangUpError
        return answer

    def _model(self, now_ms: int) -> Ask:
        def ask(request: m.Request) -> m.Response:
            return handle(self._cluster, self._node_id, request, now_ms)

        return ask

    def _offered(self) -> dict[int, ApiVersionRange]:
        """Return the APIs that the broker offers on this listener, with their versions."""
        offered: dict[int, ApiVersionRange] = {}
        ranges = self._cluster.api_versions(self._node_id)
        for key in APIS:
            newest = ranges.max_version(key)
            if newest is not None:
                offered[key] = ranges.ranges[key]
        # No consumer is served, but librdkafka needs the offer; see `fetch.py`.
        offered[FETCH] = FETCH_VERSIONS
        offered[_API_VERSIONS] = _OF_THE_HANDSHAKE[_API_VERSIONS]
        if self._users is not None:
            offered |= _OF_THE_HANDSHAKE
        return offered

    # --- the handshake --------------------------------------------------------------------------

    def _shake_hands(self, key: int, version: int, frame: bytes, now_ms: int) -> Any:
        if key == _API_VERSIONS:
            return self._api_versions(version)
        if not _is_within(version, _OF_THE_HANDSHAKE[key]):
            raise _HangUpError
        is_handshake = key == _SASL_HANDSHAKE
        schema = s.SaslHandshakeRequest if is_handshake else s.SaslAuthenticateRequest
        asked = _decoded(schema, version, frame)
        if is_handshake:
            return _served(lambda: self._begin_login(asked), asked)
        return _served(lambda: self._continue_login(asked, now_ms), asked)

    def _api_versions(self, version: int) -> Any:
        response = s.ApiVersionsResponse
        entry = response.ApiVersion
        if not _is_within(version, _OF_THE_HANDSHAKE[_API_VERSIONS]):
            # Version 0 is what every client can read (KIP-511).
            known = _OF_THE_HANDSHAKE[_API_VERSIONS]
            return response(
                version=0,
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[
                    entry(
                        api_key=_API_VERSIONS,
                        min_version=known.min_version,
                        max_version=known.max_version,
                    )
                ],
            )
        features = self._cluster.features
        return response(
            version=version,
            api_keys=[
                entry(api_key=key, min_version=known.min_version, max_version=known.max_version)
                for key, known in sorted(self._offered().items())
            ],
            finalized_features_epoch=features.epoch,
            finalized_features=[
                response.FinalizedFeatureKey(
                    name=name, max_version_level=level, min_version_level=level
                )
                for name, level in features.levels.items()
                # Level 0 is a feature that is switched off, and brokers name only those that are
                # finalized (KIP-584).
                if level
            ],
        )

    def _begin_login(self, asked: Any) -> Any:
        if self._users is None:
            return s.SaslHandshakeResponse(
                version=asked.version, error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]
            )
        if asked.version < _FRAMED_LOGIN:
            raise _HangUpError  # tokens without Kafka's framing, as before Kafka 1.0
        self._login = new_exchange(asked.mechanism, self._users)
        code = ErrorCode.NONE if self._login else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return s.SaslHandshakeResponse(
            version=asked.version, error_code=code, mechanisms=list(self._users.mechanisms)
        )

    def _continue_login(self, asked: Any, now_ms: int) -> Any:
        if self._login is None or self._users is None:
            return s.SaslAuthenticateResponse(
                version=asked.version,
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate came without SaslHandshake",
            )
        try:
            token = self._login.answer(asked.auth_bytes)
        except LoginFailedError as error:
            self._is_logged_in = False
            self.is_closed = True  # once the refusal is sent
            return s.SaslAuthenticateResponse(
                version=asked.version,
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=str(error),
            )
        lifetime_ms = 0
        if self._login.is_done:
            self._is_logged_in = True
            # Until then the client has to log in again, on the same connection (KIP-368).
            lifetime_ms = self._users.lifetime_ms(self._login.lifetime_ms)
            self._login = None
            self._session_end_ms = now_ms + lifetime_ms if lifetime_ms else None
        return s.SaslAuthenticateResponse(
            version=asked.version, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )


def _is_within(version: int, known: ApiVersionRange) -> bool:
    return known.min_version <= version <= known.max_version
