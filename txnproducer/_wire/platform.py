"""The system under a producer: clock, threads, locks, selector, sockets.

Why it exists: the shell and the wire meet the system here and nowhere else, so a test can replace
it under the producer that ships. A cluster in memory opens sockets without a network. The
simulator of the whole stack has its own time, and decides which thread runs.
Owns: `Platform`, and the one that ships. Must not know: who replaces it, or what a thread does.

Users never see it: a producer passes it to its I/O thread and its client, and the client to each
attempt to connect.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from txnproducer._sync.core_lock import CoreLock, new_lock

from .tcp import BufferSizes, open_tcp
from .wakeup import Wakeup

__all__ = ["SYSTEM", "Platform"]


class Platform:
    """The system under a producer, as the operating system gives it."""

    # A waiting thread looks up this often even if it is not woken: on platforms where a lock's
    # acquire cannot be interrupted, Ctrl-C arrives then.
    wait_slice_s: ClassVar[float] = 0.5

    # --- time -----------------------------------------------------------------------------------

    def monotonic_ns(self) -> int:
        """Return the time of the core's clock in nanoseconds. It starts anywhere."""
        return time.monotonic_ns()

    def monotonic_ms(self) -> int:
        """Return the time of the core's clock in milliseconds."""
        # Not by `monotonic_ns`: without the compiled parts each record asks, and a call costs.
        return time.monotonic_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the time of the core's clock in seconds."""
        return self.monotonic_ns() / 1_000_000_000

    def wall_clock_ms(self) -> int:
        """Return the time for records' timestamps, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def rng(self) -> random.Random:
        """Return the source of a producer's jitter."""
        return random.Random()  # noqa: S311 - no secret

    # --- threads --------------------------------------------------------------------------------

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Return a thread that has not started. It does not keep the process alive."""
        # A daemon, since a name look-up can hang for longer than the process should take to end.
        return threading.Thread(target=target, name=name, daemon=True)

    def current_thread(self) -> threading.Thread:
        """Return the calling thread."""
        return threading.current_thread()

    def core_lock(self) -> CoreLock:
        """Return a lock for the core, which knows its owner."""
        return new_lock()

    def lock(self) -> threading.Lock:
        """Return a plain lock."""
        return threading.Lock()

    def condition(self) -> threading.Condition:
        """Return a condition with a lock of its own."""
        return threading.Condition()

    def event(self) -> threading.Event:
        """Return an event that is not set."""
        return threading.Event()

    # --- sockets --------------------------------------------------------------------------------

    def selector(self) -> selectors.BaseSelector:
        """Return a selector for sockets and for `wakeup`."""
        return selectors.DefaultSelector()

    def wakeup(self) -> Wakeup:
        """Return a descriptor by which another thread ends a `select`."""
        return Wakeup()

    def look_up(self, host: str, port: int) -> list[Any]:
        """Return the addresses of a name, as `socket.getaddrinfo` does."""
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))

    def new_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        """Return a socket that is not connected."""
        return socket.socket(family, kind, protocol)

    def open_socket(
        self,
        host: str,
        port: int,
        buffers: BufferSizes,
        remaining_s: Callable[[], float],
        on_socket: Callable[[socket.socket], None],
        first: int = 0,
    ) -> socket.socket:
        """Connect to the first address of a name that accepts (see `open_tcp`)."""
        return open_tcp(self, host, port, buffers, remaining_s, on_socket, first)


SYSTEM: Final = Platform()
"""The platform that ships."""
