"""The modelled cluster in virtual time, in which a test's waits take no real time.

Owns: the time, and the calls of a test. Must not know: the protocol, the threads of producers.

Rules:
* Time stands still while the test's own code runs, and passes while a call of it waits.
* The thread that makes it is the only one that may use it, or its producers. Of a producer's calls
  those are refused that may wait.
* A producer's callbacks run on another thread, while a call of the test waits. They can use the
  cluster, and cannot close it: it ends the threads.
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
from ._memory_producer import ClosedWithCluster
from ._own_process import OwnProcess

__all__ = ["VirtualServer"]

_T = TypeVar("_T")


class VirtualServer:
    """The modelled cluster in virtual time, with the calls of `MemoryServer`.

    Args:
        cluster: the model.
        users: the users that may log in; None for listeners without a login.

    Attributes:
        platform: of the producers.
        is_closing: whether the server was closed or abandoned.

    Raises:
        RuntimeError: the compiled parts are in use.
    """

    def __init__(self, cluster: BrokerCluster, users: Users | None = None) -> None:
        self._process = OwnProcess(
            "the threads of its producers: make a new InMemoryKafka in the child"
        )
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
        self._producers: WeakSet[ClosedWithCluster] = WeakSet()
        self.is_closing = False

    @property
    def script(self) -> Script:
        """The faults to come."""
        return self._network.script

    def call(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        """Do something with the model, at the present time.

        Raises:
            RuntimeError: as `check_caller`.
        """
        self.check_caller()
        return run_whole(lambda: self._made(action))

    def _made(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        self._cluster.advance(self._baton.now_ms)
        return action(self._cluster, self._baton.now_ms)

    def sleep(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            RuntimeError: as `check_caller`.
        """
        self.check_caller()
        # Producers run meanwhile: the wait passes the baton on, and only its end can end it.
        self._baton.wait(lambda: False, seconds)

    def check_caller(self) -> None:
        """Refuse a caller that cannot use the cluster.

        Raises:
            RuntimeError: this process was forked after the server was made, or the caller is a
                thread that takes no part in virtual time.
        """
        self._process.refuse_fork()
        # Another thread has no turn in virtual time, and would change the model beside a producer.
        self._baton.check_thread()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked after the server was made."""
        return self._process.is_forked

    def adopt(self, producer: ClosedWithCluster) -> None:
        """Take a producer that is closed with the cluster."""
        self._producers.add(producer)

    def stop_node(self, node_id: int) -> None:
        """Stop a broker, and end its connections."""
        self.call(lambda cluster, now_ms: cluster.stop_node(node_id, now_ms))
        # After the stop: the clients that notice the end find the broker down.
        run_whole(lambda: self._network.cut(node_id))

    def listen(self, _: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Refuse to open a port.

        Raises:
            RuntimeError: there is no port in virtual time, or as `check_caller`.
        """
        self.check_caller()
        raise RuntimeError('clock="virtual" has no ports: listen() needs clock="real"')

    def close(self) -> None:
        """End every connection and every producer. In a forked child: nothing.

        Raises:
            RuntimeError: the caller is not the thread that made the cluster.
        """
        # The threads that would be ended and waited for are the parent's.
        if self.is_forked:
            return
        # Before anything is ended, since the call that waits for a callback goes on after it.
        self._baton.check_can_end()
        self.is_closing = True
        # Before the cut: a producer that notices it at once must not get a new connection.
        self._network.is_closed = True
        run_whole(self._network.cut)
        # Nothing passes the baton on after this: threads that are left would stay for ever.
        for producer in list(self._producers):
            producer.close_with_cluster()
        self._baton.end_threads()

    def abandon(self) -> None:
        """Note that the cluster was dropped."""
        # The producers' threads cannot be ended here: the collector may run in any thread, and a
        # thread without a turn ends only when the baton is passed to it. They wait until the
        # process ends.
        self.is_closing = True
