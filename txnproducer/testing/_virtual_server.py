"""The modelled cluster in virtual time, in which a test's waits take no real time.

Owns: the time, and the calls of a test. Must not know: the protocol, the threads of producers.

Rules:
* Time stands still while the test's own code runs, and passes while a call of it waits.
* The thread that makes it is the only one that may use it, or its producers.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.login import Users
from txnproducer._server.script import Script
from txnproducer.sim.stack.faults import ByteFaults
from txnproducer.sim.stack.network import VirtualNetwork
from txnproducer.sim.stack.platform import VirtualPlatform

from ._interruptible_baton import InterruptibleBaton, run_whole
from ._memory_producer import MemoryProducer

__all__ = ["VirtualServer"]

_T = TypeVar("_T")


class VirtualServer:
    """The modelled cluster in virtual time, with the calls of `MemoryServer`.

    Args:
        cluster: the model.
        users: the users that may log in; None for listeners without a login.

    Attributes:
        platform: of the producers.
        producers: those that are closed with the cluster.
        is_closing: whether the server was closed or abandoned.
        is_forked: never true.

    Raises:
        RuntimeError: the compiled parts are in use.
    """

    # A fork has a copy of its own, and there is no thread that it would lack.
    is_forked = False

    def __init__(self, cluster: BrokerCluster, users: Users | None = None) -> None:
        self._cluster = cluster
        self._baton = InterruptibleBaton(cluster)
        # Seeded, and without faults of the bytes: a test asks for its faults by the script.
        self._network = VirtualNetwork(
            self._baton,
            cluster,
            ByteFaults({}, random.Random(1)),
            random.Random(1),
            users=users,
        )
        self.platform = VirtualPlatform(
            self._baton,
            self._network,
            random.Random(1),
        )
        self.producers: WeakSet[MemoryProducer] = WeakSet()
        self.is_closing = False

    @property
    def script(self) -> Script:
        """The faults to come."""
        return self._network.script

    def call(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        """Do something with the model, at the present time.

        Raises:
            RuntimeError: the caller is not the thread that made the cluster.
        """
        # Another thread has no turn in virtual time, and would change the model beside a producer.
        self._baton.check_thread()
        return run_whole(lambda: self._made(action))

    def _made(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        self._cluster.advance(self._baton.now_ms)
        return action(self._cluster, self._baton.now_ms)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        # Producers run meanwhile: the wait passes the baton on, and only its end can end it.
        self._baton.wait(lambda: False, seconds)

    def refuse_fork(self) -> None:
        """Do nothing: a fork has a copy of its own."""

    def stop_node(self, node_id: int) -> None:
        """Stop a broker, and end its connections."""
        self.call(lambda cluster, now_ms: cluster.stop_node(node_id, now_ms))
        # After the stop: the clients that notice the end find the broker down.
        run_whole(lambda: self._network.cut(node_id))

    def listen(self, _: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Refuse to open a port.

        Raises:
            RuntimeError: there is no port in virtual time.
        """
        raise RuntimeError('clock="virtual" has no ports: listen() needs clock="real"')

    def close(self) -> None:
        """End every connection and every producer.

        Raises:
            RuntimeError: the caller is not the thread that made the cluster.
        """
        self._baton.check_thread()
        self.is_closing = True
        # Before the cut: a producer that notices it at once must not get a new connection.
        self._network.is_closed = True
        run_whole(self._network.cut)
        # Nothing passes the baton on after this: threads that are left would stay for ever.
        for producer in list(self.producers):
            producer.close_with_cluster()
        self._baton.end_threads()

    def abandon(self) -> None:
        """Note that the cluster was dropped."""
        # The producers' threads cannot be ended here: the collector may run in any thread, and a
        # thread without a turn ends only when the baton is passed to it. They wait until the
        # process ends.
        self.is_closing = True
