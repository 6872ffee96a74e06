"""A TCP proxy before a broker: it cuts connections, and delivers their requests afterwards.

Why it exists: "a request of a dead connection arrives later" is what a network does and no broker
does by itself. Here it is done to one request of one kind, exactly when a test wants it.
Owns: `DelayingProxy`. It listens on 127.0.0.1 only, and knows of the protocol only that a frame is
its length, the API's key and the version, and where the answers to what it holds have their code.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from txnproducer._protocol.messages import ApiKey
from txnproducer._wire import kafka_python as kp
from txnproducer.errors import ErrorCode

HOST = "127.0.0.1"
_LENGTH_BYTES = 4
_LARGEST_FRAME_BYTES = 100 * 1024 * 1024
_PATIENCE_S = 20.0


_CODES: dict[ApiKey, tuple[Any, Callable[[Any], Iterable[int]]]] = {
    ApiKey.PRODUCE: (
        kp.ProduceResponse,
        lambda answer: (
            part.error_code for topic in answer.responses for part in topic.partition_responses
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        kp.AddPartitionsToTxnResponse,
        lambda answer: (
            part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (kp.AddOffsetsToTxnResponse, lambda answer: [answer.error_code]),
    ApiKey.END_TXN: (kp.EndTxnResponse, lambda answer: [answer.error_code]),
    ApiKey.TXN_OFFSET_COMMIT: (
        kp.TxnOffsetCommitResponse,
        lambda answer: (part.error_code for topic in answer.topics for part in topic.partitions),
    ),
}


@dataclass(frozen=True)
class Held:
    """A request that the broker has not seen. It may arrive as often as a test likes."""

    api_key: ApiKey
    frame: bytes
    address: tuple[str, int]

    def deliver(self) -> ErrorCode:
        """Let the request arrive, and return the code of the broker's answer."""
        # On a connection of its own, for the client's is closed: the broker knows no difference.
        with socket.create_connection(self.address, _PATIENCE_S) as upstream:
            upstream.sendall(self.frame)
            answer = _read_frame(upstream)
        if answer is None:
            raise AssertionError("the broker closed the connection of a late request")
        schema, codes = _CODES[self.api_key]
        version = int.from_bytes(self.frame[6:8], "big")
        told = schema.decode(memoryview(answer)[_LENGTH_BYTES:], version=version, header=True)
        (code,) = set(codes(told))
        return ErrorCode(code)


@dataclass
class _Rules:
    """The treatment of the next request of a kind."""

    hold: list[ApiKey] = field(default_factory=list)
    hold_in_silence: list[ApiKey] = field(default_factory=list)
    drop_answer: list[ApiKey] = field(default_factory=list)
    before: dict[ApiKey, Callable[[], object]] = field(default_factory=dict)


class DelayingProxy:
    """A proxy that cuts a connection and delivers its request later. It is a context manager.

    Args:
        address: of the broker.

    Attributes:
        port: where it listens.
        held: what was held back, in order.
        is_open: whether new connections are served.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._rules = _Rules()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.held: list[Held] = []
        self.is_open = True

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        for each in sockets:
            each.close()

    def hold_next(self, api_key: ApiKey) -> None:
        """Keep the next request of a kind, and cut its connection for the client."""
        self._rules.hold.append(api_key)

    def hold_next_in_silence(self, api_key: ApiKey) -> None:
        """Keep the next request of a kind. Its connection stays, and is dead from then on."""
        self._rules.hold_in_silence.append(api_key)

    def do_before_next(self, api_key: ApiKey, act: Callable[[], object]) -> None:
        """Act before the next request of a kind goes on to the broker."""
        self._rules.before[api_key] = act

    def drop_next_answer(self, api_key: ApiKey) -> None:
        """Let the broker act upon the next request of a kind, but cut off its answer."""
        self._rules.drop_answer.append(api_key)

    def _run(self, target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self, one: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.append(one)
        return one

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_open:
                upstream = socket.create_connection(self._address, _PATIENCE_S)
                upstream.settimeout(None)  # it may be idle for as long as it likes
                self._run(self._serve, self._keep(client), self._keep(upstream))
            else:
                client.close()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        """Carry requests one way and answers the other, each in their order."""
        pending: list[bool] = []
        answers = threading.Thread(target=_copy, args=(upstream, client, pending), daemon=True)
        self._threads.append(answers)
        answers.start()
        while (frame := _read_frame(client)) is not None:
            kind = int.from_bytes(frame[4:6], "big")
            if kind in self._rules.hold:
                self._rules.hold.remove(ApiKey(kind))
                self._hold(frame)
                break
            if kind in self._rules.hold_in_silence:
                self._rules.hold_in_silence.remove(ApiKey(kind))
                self._hold(frame)
                while _read_frame(client) is not None:
                    pass
                break
            if kind in self._rules.drop_answer:
                self._rules.drop_answer.remove(ApiKey(kind))
                pending.append(True)
            if kind in self._rules.before:
                self._rules.before.pop(ApiKey(kind))()
            with contextlib.suppress(OSError):
                upstream.sendall(frame)
        _shut(client)
        _shut(upstream)

    def _hold(self, frame: bytes) -> None:
        api_key = ApiKey(int.from_bytes(frame[4:6], "big"))
        self.held.append(Held(api_key, frame, self._address))


def _copy(upstream: socket.socket, client: socket.socket, is_cut: list[bool]) -> None:
    while (frame := _read_frame(upstream)) is not None:
        if is_cut:
            break
        with contextlib.suppress(OSError):
            client.sendall(frame)
    _shut(client)


def _read_frame(source: socket.socket) -> bytes | None:
    """Return a length with the bytes that it counts, or None at the end of the connection."""
    head = _read(source, _LENGTH_BYTES)
    if head is None or int.from_bytes(head, "big") > _LARGEST_FRAME_BYTES:
        # A broker hangs up as well on what is too large, such as the greeting of TLS by which a
        # client finds out why a connection was closed.
        return None
    body = _read(source, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _read(source: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        try:
            part = source.recv(count - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data


def _shut(one: socket.socket) -> None:
    # Closed at the very end: another thread may be reading, and the number would be given to the
    # next connection, whose bytes it would then take.
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
