"""One established connection, which sends requests and receives answers without blocking.

Why it exists: this is the hot path of the wire. Batches go from the core's buffers to the kernel
without a copy, and an answer costs one `recv`.
Owns: the socket after its handshake, the bytes under way, the requests that await their answers,
deadlines, the broker's pauses (KIP-219), re-authentication (KIP-368).
Must not know: other connections, selectors, reconnecting, the meaning of an answer.
Rules: answers arrive in the order of the requests, otherwise the connection is given up. Every
error that ends it is raised as a `KafkaError`; `close` then returns the requests without an
answer, so that each request ends exactly once. No request leaves while a re-authentication is due
or under way: the broker would close the connection.
"""

from __future__ import annotations

import random
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from txnproducer._protocol.events import ClientEvent, ClientRequest, ClientResponse, ConnectionId
from txnproducer._protocol.messages import (
    API_KEY_OF,
    DescribeTransactionsRequest,
    MetadataRequest,
    ProduceRequest,
    Response,
)
from txnproducer.errors import DisconnectError, KafkaTimeoutError

from .codec import WireCodec
from .connector import FRAME_SIZE, MAX_HANDSHAKE_ANSWER_BYTES, Connected
from .handshake import ExchangeStep
from .io_calls import Calls
from .output import WOULD_BLOCK, Output
from .platform import SYSTEM, Platform
from .produce_codec import unacknowledged
from .reauthentication import Reauthentication
from .version_choice import CLIENT_THROTTLES_FROM

NEVER_MS = 2**62

_HEAD = struct.Struct(">ii")  # size, correlation id
_RECEIVE_BYTES = 65_536
_MAX_ANSWER_BYTES = 1024 * 1024
# Metadata of 100,000 partitions takes 3 to 5 MB. An answer to Produce may carry a text for each
# refused record (a compacted topic, records without keys), so it can exceed its request.
_MAX_LARGE_ANSWER_BYTES = 16 * _MAX_ANSWER_BYTES
_LARGE_ANSWERS = (MetadataRequest, DescribeTransactionsRequest, ProduceRequest)
_MOST_READS = 16  # of one connection in a turn, so that the others get theirs
_MAX_REAUTHENTICATION_MS = 30_000


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    request: ClientRequest
    version: int
    deadline_ms: int


@dataclass(slots=True)
class _Unanswered(_InFlight):
    """A request with acks=0, which ends once it is written."""

    end: ClientResponse


class Connection:
    """One connection, made by a connector.

    Args:
        connection_id: the broker and the channel.
        connected: the socket and the results of its handshake.
        codec: the client's codec.
        calls: the loop's calls; sockets with TLS have their own.
        max_in_flight: the largest number of requests that await their answers.
        now_ms: the time.
        rng: spreads the times of re-authentication.
        wake: wakes the loop from another thread; the loop then calls `continue_login`.
        platform: has the threads of a login.

    Attributes:
        output: the bytes that wait for the socket to take them.
        is_watching_writes: kept for the loop, which owns the selector.
        reauthentication: the one that is under way, which `continue_login` goes on with.
    """

    def __init__(
        self,
        connection_id: ConnectionId,
        connected: Connected,
        codec: WireCodec,
        calls: Calls,
        max_in_flight: int,
        now_ms: int,
        rng: random.Random,
        wake: Callable[[], None],
        platform: Platform = SYSTEM,
    ) -> None:
        self.id = connection_id
        self.sock = connected.sock
        self.muted_until_ms = 0
        self.last_used_ms = now_ms
        self.has_answered = False
        self.is_watching_writes = False
        self._is_tls = isinstance(connected.sock, ssl.SSLSocket)
        self._codec = codec
        self._calls = calls
        sock = connected.sock
        self._receive = sock.recv if self._is_tls else partial(calls.receive, sock)
        self._max_in_flight = max_in_flight
        self._rng = rng
        self._wake = wake
        self._platform = platform
        self._correlation_ids = connected.correlation_ids
        self._in_flight: deque[_InFlight] = deque()
        self._output: Output[_Unanswered] = Output(sock, calls)
        self._unanswered = self._output.unanswered
        self.output = self._output.parts
        self.flush = self._output.flush
        self._received = bytearray()
        self._login = connected.login
        self.reauthentication: Reauthentication | None = None
        self._login_ms = connected.login_ms
        self._reauthentication_due_ms = self._next_login_ms(connected.session_lifetime_ms)
        self._reauthentication_deadline_ms = NEVER_MS

    # --- sending --------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """The number of requests that await their end."""
        return len(self._in_flight) + len(self._unanswered)

    @property
    def must_log_in_again(self) -> bool:
        """Whether `tick` will begin a re-authentication at its time."""
        return self._reauthentication_due_ms < NEVER_MS and self.reauthentication is None

    @property
    def login_step(self) -> ExchangeStep | None:
        """The last step of the re-authentication that is under way, or None."""
        return None if self.reauthentication is None else self.reauthentication.step

    def can_send(self, now_ms: int) -> bool:
        """Return whether a request may be put on the connection now."""
        return (
            len(self._in_flight) + len(self._unanswered) < self._max_in_flight
            and now_ms >= self.muted_until_ms
            and now_ms < self._reauthentication_due_ms
        )

    def send_request(self, request: ClientRequest, version: int, now_ms: int) -> None:
        """Put a request into the queue of bytes, which `flush` writes."""
        correlation_id = next(self._correlation_ids)
        self._output.put(self._codec.encode(request.body, version, correlation_id))
        self.last_used_ms = now_ms
        deadline_ms, body = now_ms + request.timeout_ms, request.body
        if isinstance(body, ProduceRequest) and body.acks == 0:
            end = ClientResponse(request, unacknowledged(body))
            self._output.end_when_written(
                _Unanswered(correlation_id, request, version, deadline_ms, end)
            )
        else:
            self._in_flight.append(_InFlight(correlation_id, request, version, deadline_ms))

    def take_written(self) -> list[ClientResponse]:
        """Return the ends of requests without an answer, and forget them. Call after a flush."""
        written, self._output.written = self._output.written, []
        return [entry.end for entry in written]

    # --- receiving ------------------------------------------------------------------------------

    def receive(self, now_ms: int, events: list[ClientEvent]) -> None:
        """Read the received bytes and append their answers to `events`.

        Args:
            now_ms: the time.
            events: gets the answers, including those that arrived just before an error.

        Raises:
            KafkaError: the connection has ended, or must end.
        """
        reads = 0
        while True:
            try:
                data = self._receive(_RECEIVE_BYTES)
            except WOULD_BLOCK:
                return
            except OSError as error:
                raise DisconnectError(f"the connection broke: {error}") from error
            if not data:
                raise DisconnectError("the broker closed the connection")
            self._received += data
            self.last_used_ms = now_ms
            # Before the next read, so that at most one incomplete frame is buffered.
            self._take_frames(now_ms, events)
            reads += 1
            # The rest is left to the selector, since other connections wait as well. TLS may hold
            # decrypted bytes that no selector sees, of one record at most.
            if isinstance(self.sock, ssl.SSLSocket):
                if reads >= _MOST_READS and not self.sock.pending():
                    return
            elif len(data) < _RECEIVE_BYTES or reads >= _MOST_READS:
                return

    def _take_frames(self, now_ms: int, events: list[ClientEvent]) -> None:
        at, received = 0, self._received
        while len(received) - at >= FRAME_SIZE.size:
            (size,) = FRAME_SIZE.unpack_from(received, at)
            # Size and number are checked before the frame is complete: a wrong frame may never be.
            self._check_size(size)
            if len(received) - at < _HEAD.size:
                break
            self._check_number(_HEAD.unpack_from(received, at)[1])
            end = at + FRAME_SIZE.size + size
            if len(received) < end:
                break
            # A copy of the frame: a view would forbid the deletion below (BufferError).
            payload = memoryview(received[at + FRAME_SIZE.size : end])
            at = end
            self._take_frame(payload, now_ms, events)
        if at:
            del received[:at]

    def _check_size(self, size: int) -> None:
        most = _MAX_ANSWER_BYTES
        if self.reauthentication is not None:
            most = MAX_HANDSHAKE_ANSWER_BYTES
        elif self._in_flight and isinstance(self._in_flight[0].request.body, _LARGE_ANSWERS):
            most = _MAX_LARGE_ANSWER_BYTES
        if not FRAME_SIZE.size <= size <= most:
            raise DisconnectError(f"the broker sent a frame of {size} bytes: giving up")

    def _check_number(self, correlation_id: int) -> None:
        """Refuse a frame that answers no request, before its body has arrived."""
        if self.reauthentication is not None:
            return  # its exchange checks the number
        if not self._in_flight:
            raise DisconnectError("the broker sent an answer that the client did not ask for")
        due = self._in_flight[0].correlation_id
        if correlation_id != due:
            raise DisconnectError(
                f"the broker answered request {correlation_id} where the answer to {due} was due"
            )

    def _take_frame(self, payload: memoryview, now_ms: int, events: list[ClientEvent]) -> None:
        if self.reauthentication is not None:
            self.reauthentication.answer(payload, now_ms)
            return
        entry = self._in_flight[0]
        body = self._codec.decode(entry.request.body, entry.version, payload)
        # After the decoding: if that fails, `close` still returns the request.
        self._in_flight.popleft()
        self.has_answered = True
        if body.throttle_time_ms > 0:
            self._heed_throttle(entry, body, now_ms)
        events.append(ClientResponse(entry.request, body))

    def _heed_throttle(self, entry: _InFlight, body: Response, now_ms: int) -> None:
        throttle_ms, api_key = body.throttle_time_ms, API_KEY_OF[type(entry.request.body)]
        if entry.version >= CLIENT_THROTTLES_FROM[api_key]:
            self.muted_until_ms = max(self.muted_until_ms, now_ms + throttle_ms)

    # --- time -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int:
        """Return the time of the next useful call of `tick`."""
        deadline = self._reauthentication_deadline_ms
        if self.reauthentication is None and not self.in_flight_count:
            # Only with nothing in flight: `tick` can't begin before, and the loop would spin.
            deadline = min(deadline, self._reauthentication_due_ms)
        return min([deadline, *(entry.deadline_ms for entry in self._under_way())])

    def _under_way(self) -> list[_InFlight]:
        return [*self._in_flight, *(entry for _, entry in self._unanswered)]

    def tick(self, now_ms: int) -> None:
        """Begin a re-authentication that is due.

        Raises:
            KafkaTimeoutError: a request, or the re-authentication, was not answered in time.
        """
        if any(entry.deadline_ms <= now_ms for entry in self._in_flight):
            raise KafkaTimeoutError("a request was not answered within its time-out")
        if any(entry.deadline_ms <= now_ms for _, entry in self._unanswered):
            raise KafkaTimeoutError("the broker did not take a request within its time-out")
        if now_ms >= self._reauthentication_deadline_ms:
            raise KafkaTimeoutError(self._late_login())
        if (
            now_ms >= self._reauthentication_due_ms
            and self.reauthentication is None
            and not self.in_flight_count
            and self._login is not None
        ):
            # Only with nothing in flight: from here on every frame is an answer of the login.
            self._reauthentication_deadline_ms = now_ms + _MAX_REAUTHENTICATION_MS
            self.reauthentication = Reauthentication(
                self._login, self._correlation_ids, self._wake, self._platform
            )
            self._login_ms = now_ms
            self._output.put([self.reauthentication.begin()])
            self.flush()

    def _late_login(self) -> str:
        if self.reauthentication is not None and self.reauthentication.is_in_step:
            return (
                f"our side of a re-authentication took longer than {_MAX_REAUTHENTICATION_MS} ms: "
                "is its token provider waiting for something?"
            )
        return "the broker did not answer a re-authentication"

    def continue_login(self, now_ms: int) -> None:
        """Go on with a re-authentication if one of its steps has ended.

        Raises:
            KafkaError: the login failed, or the connection is broken.
        """
        if self.reauthentication is None:
            return
        outcome = self.reauthentication.collect()
        if isinstance(outcome, bytes):
            self._login_ms = now_ms
            self._output.put([outcome])
            self.flush()
        elif outcome is not None:
            self.reauthentication = None
            self._reauthentication_deadline_ms = NEVER_MS
            self._reauthentication_due_ms = self._next_login_ms(outcome)

    def _next_login_ms(self, session_lifetime_ms: int) -> int:
        """Return the time of the next login. It is early, and differs between connections.

        The broker counts from the moment it took the login's last message, so this counts from the
        sending of that message. The Java client counts from the answer, which is later.
        """
        if session_lifetime_ms <= 0:
            return NEVER_MS
        return self._login_ms + int(session_lifetime_ms * self._rng.uniform(0.85, 0.95))

    # --- the end --------------------------------------------------------------------------------

    def close(self, now_ms: int) -> list[tuple[ClientRequest, bool]]:
        """Close the socket.

        Returns:
            The requests without an answer, in order, each with whether its time was up.
        """
        self.sock.close()
        self.reauthentication = None  # a step under way ends by itself
        under_way = sorted(self._under_way(), key=lambda entry: entry.correlation_id)
        self._in_flight.clear()
        self._unanswered.clear()
        self.output.clear()
        return [(entry.request, entry.deadline_ms <= now_ms) for entry in under_way]
