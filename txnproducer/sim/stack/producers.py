"""The producers of a run: each made as a user makes it, on a platform of its own.

Owns: their settings, the judges of each one's connections and end, the drop of a producer, the end
of those that a violation has left. Must not know: services, calls, transactions.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from txnproducer._protocol.messages import CoordinatorType
from txnproducer._shell import live_producers
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.broker_watch import BrokerWatch
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.end_watch import EndWatch, WatchedProducer
from txnproducer.sim.stack.listeners import ASKS
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.options import group_of
from txnproducer.sim.stack.verdict_watch import VerdictWatch
from txnproducer.sim.stack.world import StackWorld

__all__ = ["StackProducers"]

_ON_THIS_THREAD: Final = 0.5


class StackProducers:
    """Make the producers of a run as a user makes them, and end those that a violation has left.

    Args:
        world: where they run.
    """

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self._watches: dict[TransactionalProducer, ClientWatch] = {}
        self._collector = world.new_rng("collector")

    @property
    def count(self) -> int:
        """How many producers were made."""
        return len(self._watches)

    def open(self, transactional_id: str) -> WatchedProducer:
        """Make a producer."""
        world = self._world
        settings: dict[str, Any] = dict(world.options.settings)
        if world.options.users:
            settings |= {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": world.options.mechanism,
                "sasl_plain_username": "user",
                "sasl_plain_password": "secret",
            }
        leaver, is_steady = world.options.leaver, world.options.is_loop_steady
        steady = [node for n, node in world.cluster.nodes.items() if n != leaver]
        addresses = [f"{node.host}:{node.port}" for node in steady]
        hosts = [node.host for node in steady]
        logins = LoginWatch(hosts, partial(self._coordinators, transactional_id), leaver)
        watch = ClientWatch(settings, logins, world.history.violate, is_steady=is_steady)
        # A class of its own, since a constructor starts threads that ask for its platform.
        own = {"_platform": world.new_platform(watch), "end": EndWatch(world)}
        kind = type("TransactionalProducer", (WatchedProducer,), own)
        producer: WatchedProducer = kind(addresses, transactional_id, **settings)
        producer.watch_force()
        client: Any = producer._io._client  # noqa: SLF001 - the judge looks inside
        watch.is_ending = lambda: client._is_closed  # noqa: SLF001
        if is_steady:
            watch.brokers = BrokerWatch(hosts, lambda: world.baton.now_ms, world.history.violate)
            watch.brokers.listen(client)
        if ASKS in world.options.event_s:
            now_ms, violate = (lambda: world.baton.now_ms), world.history.violate
            watch.verdicts = VerdictWatch(client, now_ms, violate)
        self._watches[producer] = watch
        return producer

    def _coordinators(self, transactional_id: str) -> tuple[int, int]:
        """Return the brokers that coordinate an id, and the group of its service, now."""
        find = self._world.cluster.coordinator_node
        return (
            find(CoordinatorType.TRANSACTION, transactional_id),
            find(CoordinatorType.GROUP, group_of(transactional_id)),
        )

    def watch_of(self, producer: TransactionalProducer) -> ClientWatch:
        """Return the judge of a producer's connections."""
        return self._watches[producer]

    def drop(self, producer: WatchedProducer) -> None:
        """Let a finalizer end a producer, on this thread or on the producer's own.

        The garbage collector runs on any thread, also on the loop's between two of its turns.
        There a finalizer of the application may close the producer that it has.
        """
        if self._collector.random() < _ON_THIS_THREAD:
            producer.end.is_dropped()
            producer._io.orphan()  # noqa: SLF001 - as the finalizer does
            return

        def finalize() -> None:
            producer.end.is_finalizing = True
            producer.close()

        platform: Any = producer._platform  # noqa: SLF001 - the collector runs anywhere
        platform.selectors[0].finalizers.append(finalize)
        client: Any = producer._io._client  # noqa: SLF001
        client.wakeup()

    def forget_all(self) -> None:
        """Let neither a finalizer nor the interpreter's exit wait for a producer of the run."""
        for producer in self._watches:
            _forget(producer)


def _forget(producer: TransactionalProducer) -> None:
    live_producers.forget(producer)
    # So that its finalizer does not warn of a producer that was never closed.
    producer._refusal = partial(_ended)  # noqa: SLF001
    # Its thread was killed, and has not noted its end.
    producer._io._must_stop = producer._io._has_stopped = True  # noqa: SLF001


def _ended(call: str) -> KafkaError:
    return KafkaError(f"{call}: the run has ended")
