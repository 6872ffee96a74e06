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
from txnproducer.sim.stack.platform import VirtualPlatform
from txnproducer.sim.stack.token_provider import ServiceTokens
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
        # Of all token providers, since each would have the same faults otherwise.
        self._rng = world.new_rng("token provider")

    def open(self, transactional_id: str) -> WatchedProducer:
        """Make a producer."""
        world = self._world
        settings: dict[str, Any] = dict(world.options.settings)
        leaver, is_steady = world.options.leaver, world.options.is_loop_steady
        steady = [node for n, node in world.cluster.nodes.items() if n != leaver]
        addresses = [f"{node.host}:{node.port}" for node in steady]
        hosts = [node.host for node in steady]
        logins = LoginWatch(hosts, partial(self._coordinators, transactional_id), leaver)
        watch = ClientWatch(
            settings,
            logins,
            world.history.violate,
            is_steady=is_steady,
            keeps_connections=world.options.keeps_connections,
        )
        if world.options.users:
            settings |= self._login(watch)
        # A class of its own, since a constructor starts threads that ask for its platform.
        own: dict[str, Any] = {"_platform": world.new_platform(watch), "end": EndWatch(world)}
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
        watch.tokens.connections = partial(_connections, client, own["_platform"])
        self._watches[producer] = watch
        return producer

    def _login(self, watch: ClientWatch) -> dict[str, Any]:
        """Return the settings of a login."""
        world = self._world
        login: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": world.options.mechanism,
        }
        if world.options.tokens is not None:
            provider = ServiceTokens(world, world.options.tokens, watch.tokens, self._rng)
            return login | {"sasl_oauth_token_provider": provider}
        return login | {"sasl_plain_username": "user", "sasl_plain_password": "secret"}

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


def _connections(client: Any, platform: VirtualPlatform) -> int:
    """Return how many connections of a client may log in, 0 if that is not known."""
    # An attempt that a closed client has given up may be about to log in.
    if client._is_closed:  # noqa: SLF001 - the judge looks inside
        return 0
    # The question for an outcome has a client of its own, and one connection to each broker.
    questions = len(platform.selectors) - 1
    return len(client._links) * (1 + questions)  # noqa: SLF001


def _forget(producer: TransactionalProducer) -> None:
    live_producers.forget(producer)
    # So that its finalizer does not warn of a producer that was never closed.
    producer._refusal = partial(_ended)  # noqa: SLF001
    # Its thread was killed, and has not noted its end.
    producer._io._must_stop = producer._io._has_stopped = True  # noqa: SLF001


def _ended(call: str) -> KafkaError:
    return KafkaError(f"{call}: the run has ended")
