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
from txnproducer._server.api import Ask, ClusterView, HangUpError, MalformedRequestError
from txnproducer._server.apis import APIS
from txnproducer._server.fetch import FETCH, FETCH_VERSIONS, refuse_fetch
from txnproducer._server.login import Users
from txnproducer._server.login_steps import (
    LoginSteps,
    Step,
    misplaced_handshake,
    misplaced_token,
)
from txnproducer._server.refusals import refuse, refuse_without_a_word
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
# Listed, and not read. Kafka 4 does so too: librdkafka compresses only if it sees these versions
# (KAFKA-18659).
_LISTED_FROM: Final[Mapping[int, int]] = {ApiKey.PRODUCE: 0}
_LOGIN_SCHEMAS: Final[Mapping[int, Any]] = {
    _SASL_HANDSHAKE: s.SaslHandshakeRequest,
    _SASL_AUTHENTICATE: s.SaslAuthenticateRequest,
}
_MISPLACED: Final[Mapping[int, Callable[[Any], Any]]] = {
    _SASL_HANDSHAKE: misplaced_handshake,
    _SASL_AUTHENTICATE: misplaced_token,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes to send.

    Attributes:
        data: a framed answer.
        due_ms: when to send it.
    """

    data: bytes
    due_ms: int


def _decoded(schema: Any, version: int, frame: bytes) -> Any:
    """Return a client's request, or end the connection if its bytes do not fit the schema."""
    try:
        return schema.decode(frame, version=version, header=True)
    # The schemas' errors for bytes that are too few, that have no such meaning, or that say a
    # length beyond all memory.
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise HangUpError from error


def _served(serve: Callable[[], Any], asked: Any) -> Any:
    """Return the answer to a request, or end the connection."""
    try:
        return serve()
    except HangUpError:
        raise
    except MalformedRequestError as error:
        raise HangUpError from error
    except Exception as error:
        # The schemas also read a null where the protocol has none.
        _LOG.exception(
            "A request cannot be answered. This is a defect of this package, unless the request"
            " has a null that the protocol forbids: %r",
            asked,
        )
        raise HangUpError from error


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
        topology = cluster.topology
        self._view = ClusterView(topology.ids, topology.partition_counts, advertised or {})
        self._received = bytearray()
        self._login = None if users is None else LoginSteps(users)
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
        except HangUpError:
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
            raise HangUpError
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
        answer = self._answer_in_turn(key, version, frame, now_ms)
        if answer is None:
            return None
        try:
            answer.with_header(correlation_id=correlation_id)
            return bytes(answer.encode(header=True, framed=True))
        except Exception as error:
            # The model's answer does not fit the schema.
            _LOG.exception("An answer to API %d, version %d, cannot be encoded", key, version)
            raise HangUpError from error

    def _answer_in_turn(self, key: int, version: int, frame: bytes, now_ms: int) -> Any:
        login = self._login
        if login is None:
            return self._serve(key, version, frame, now_ms)
        login.look_at_the_clock(now_ms)
        if key == _SASL_HANDSHAKE and login.may_begin():
            answer = self._ask_login(login.begin, key, version, frame)
        elif login.step is Step.ANY:
            return self._serve(key, version, frame, now_ms)
        elif login.step is Step.VERSIONS_OR_HANDSHAKE and key == _API_VERSIONS:
            answer = self._api_versions(version)
            if _is_within(version, _OF_THE_HANDSHAKE[key]):
                login.versions_were_told()  # otherwise the client asks again (KIP-511)
        elif login.step is not Step.TOKEN:
            raise HangUpError
        elif key == _SASL_AUTHENTICATE:
            answer = self._ask_login(lambda asked: login.go_on(asked, now_ms), key, version, frame)
        elif login.has_changed_mechanism:
            raise HangUpError
        else:
            answer = self._refuse_for_login(key, version, frame)
            self.is_closed = True
        self.is_closed |= login.is_refused  # once the refusal is sent
        return answer

    def _ask_login(self, ask: Callable[[Any], Any], key: int, version: int, frame: bytes) -> Any:
        if not _is_within(version, _OF_THE_HANDSHAKE[key]):
            raise HangUpError
        asked = _decoded(_LOGIN_SCHEMAS[key], version, frame)
        return _served(lambda: ask(asked), asked)

    def _refuse_for_login(self, key: int, version: int, frame: bytes) -> Any:
        """Refuse a request in the midst of a login. The model does not see it."""
        if key == _API_VERSIONS:
            return s.ApiVersionsResponse(
                version=version if _is_within(version, _OF_THE_HANDSHAKE[key]) else 0,
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                api_keys=[],
            )
        if key == _SASL_HANDSHAKE:
            return self._ask_login(misplaced_handshake, key, version, frame)
        offered = self._offered()
        if key not in APIS or key not in offered or not _is_within(version, offered[key]):
            raise HangUpError
        api = APIS[ApiKey(key)]
        asked = _decoded(api.request, version, frame)
        return _served(lambda: api.serve(asked, _refuse_in_login, self._view), asked)

    # --- requests -------------------------------------------------------------------------------

    def _serve(self, number: int, version: int, frame: bytes, now_ms: int) -> Any:
        if number == _API_VERSIONS:
            return self._api_versions(version)
        if number in _MISPLACED:
            return self._ask_login(_MISPLACED[number], number, version, frame)
        offered = self._offered()
        # As a broker does: only ApiVersions has an answer for a version that is not known.
        if number not in offered or not _is_within(version, offered[number]):
            raise HangUpError
        if number == FETCH:
            return refuse_fetch(_decoded(s.FetchRequest, version, frame))
        key = ApiKey(number)
        api = APIS[key]
        asked = _decoded(api.request, version, frame)
        fault = self._script.next_fault(key)
        kind = None if fault is None else fault.kind
        if kind is ScriptedFault.REQUEST_LOST:
            self._script.use_up(key)
            raise HangUpError
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
            raise HangUpError
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
        offered |= _OF_THE_HANDSHAKE
        return offered

    # --- the handshake --------------------------------------------------------------------------

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
                entry(
                    api_key=key,
                    min_version=_LISTED_FROM.get(key, known.min_version),
                    max_version=known.max_version,
                )
                for key, known in sorted(self._offered().items())
            ],
            finalized_features_epoch=features.epoch,
            finalized_features=[
                response.FinalizedFeatureKey(
                    name=name, max_version_level=level, min_version_level=level
                )
                for name, level in features.levels.items()
                # Level 0 is a feature that is switched off, and brokers name only those that are
                # finalized (KIP-584). Kafka 3.9 does not have this one.
                if level and not self._cluster.options.is_before_4
            ],
        )


def _refuse_in_login(request: m.Request) -> m.Response:
    answer = refuse_without_a_word(request, ErrorCode.ILLEGAL_SASL_STATE)
    if answer is None:
        raise HangUpError
    return answer


def _is_within(version: int, known: ApiVersionRange) -> bool:
    return known.min_version <= version <= known.max_version
