"""The platform of a producer in virtual time.

Owns: which virtual part stands for which part of the system. Must not know: the run.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, cast

from txnproducer._record.implementation import IMPL
from txnproducer._sync.core_lock import CoreLock
from txnproducer._wire.platform import Platform
from txnproducer._wire.wakeup import Wakeup
from txnproducer.sim.stack.baton import Baton, VirtualThread
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.locks import (
    VirtualCondition,
    VirtualCoreLock,
    VirtualEvent,
    VirtualLock,
)
from txnproducer.sim.stack.network import VirtualNetwork
from txnproducer.sim.stack.sockets import VirtualSelector, VirtualWakeup

__all__ = ["VirtualPlatform"]


class VirtualPlatform(Platform):
    """Give a producer virtual threads, locks, sockets and time.

    Args:
        baton: has the threads and the time.
        network: has the sockets.
        rng: draws the seeds of the producers' jitter.
        watch: judges the connections of the one producer that uses it; None for no judge.

    Attributes:
        told_ms: by thread, what it was told when it last asked for the time of day.

    Raises:
        RuntimeError: the compiled parts are in use, which make system calls of their own.
    """

    # No look without a wake-up: a lost one shows as a call that takes all of its time.
    wait_slice_s = 1e9

    def __init__(
        self,
        baton: Baton,
        network: VirtualNetwork,
        rng: random.Random,
        watch: ClientWatch | None = None,
    ) -> None:
        if IMPL != "python":
            raise RuntimeError(
                "virtual time needs the parts in Python, and the compiled ones are in use. Set the"
                " environment variable TXNPRODUCER_IMPL=python before txnproducer is imported"
            )
        self._baton = baton
        self._network = network
        self._rng = rng
        self._watch = watch
        self.told_ms: dict[threading.Thread, int] = {}
        self.selectors: list[VirtualSelector] = []

    def monotonic_ns(self) -> int:
        """Return the virtual time."""
        return self._baton.read_clock()

    def monotonic_ms(self) -> int:
        """Return the virtual time in milliseconds."""
        return self._baton.read_clock() // 1_000_000

    def wall_clock_ms(self) -> int:
        """Return the virtual time since the epoch, which may jump."""
        told = self._baton.now_ms + self._baton.wall_ahead_ms
        self.told_ms[self._baton.current] = told
        return told

    def rng(self) -> random.Random:
        """Return a seeded source."""
        return random.Random(self._rng.random())  # noqa: S311 - seeded on purpose

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Return a thread that takes part in the baton."""
        return VirtualThread(self._baton, target, name)

    def core_lock(self) -> CoreLock:
        """Return a lock that passes the baton on."""
        return VirtualCoreLock(self._baton)

    def lock(self) -> threading.Lock:
        """Return a lock that passes the baton on."""
        return cast(threading.Lock, VirtualLock(self._baton))

    def condition(self) -> threading.Condition:
        """Return a condition that passes the baton on."""
        return cast(threading.Condition, VirtualCondition(self._baton))

    def event(self) -> threading.Event:
        """Return an event that passes the baton on."""
        return cast(threading.Event, VirtualEvent(self._baton))

    def selector(self) -> VirtualSelector:
        """Return a selector of virtual sockets."""
        selector = VirtualSelector(self._baton)
        self.selectors.append(selector)
        return selector

    def wakeup(self) -> Wakeup:
        """Return a virtual descriptor."""
        return cast(Wakeup, VirtualWakeup(self._baton))

    def look_up(self, host: str, port: int) -> list[Any]:
        """Return the addresses of a name."""
        baton, watch = self._baton, self._watch
        if watch is None:
            return _as_found(self._network.look_up(host, port))
        thread = baton.current
        watch.looks_up(host)
        watch.look_up_begins(thread, baton.now_ms)
        is_found = False
        try:
            found = _as_found(self._network.look_up(host, port))
            is_found = True
        finally:
            # Also after a failure: from then on the client has its back-off to try again.
            watch.look_up_ends(thread, baton.now_ms, is_found=is_found)
        return found

    def new_socket(self, *_: int) -> Any:
        """Return a virtual socket."""
        sock = self._network.new_socket()
        if self._watch is not None:
            sock.watch = self._watch
            # The client makes the sockets of an attempt on the thread of its look-up.
            self._watch.opens(self._baton.current, sock)
        return sock


def _as_found(addresses: list[tuple[str, int]]) -> list[Any]:
    return [(0, 0, 0, "", address) for address in addresses]
