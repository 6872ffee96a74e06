"""The producers of a run: each made as a user makes it, on a platform of its own.

Owns: their settings, the judge of each one's connections, the end of those that a violation has
left. Must not know: services, calls, transactions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from txnproducer._protocol.messages import CoordinatorType
from txnproducer._shell import live_producers
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.options import group_of
from txnproducer.sim.stack.platform import VirtualPlatform
from txnproducer.sim.stack.token_provider import ServiceTokens
from txnproducer.sim.stack.world import StackWorld

__all__ = ["StackProducers"]


class StackProducers:
    """Make the producers of a run as a user makes them, and end those that a violation has left.

    Args:
        world: where they run.
    """

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self._watches: dict[TransactionalProducer, ClientWatch] = {}
        # Of all token providers, since each would have the same faults otherwise.
        self._rng = world.new_rng("token provider")

    @property
    def count(self) -> int:
        """How many producers were made."""
        return len(self._watches)

    def open(self, transactional_id: str) -> TransactionalProducer:
        """Make a producer."""
        world = self._world
        settings: dict[str, Any] = dict(world.options.settings)
        addresses = [f"{node.host}:{node.port}" for node in world.cluster.nodes.values()]
        is_steady = world.options.is_loop_steady
        hosts = [node.host for node in world.cluster.nodes.values()]
        logins = LoginWatch(hosts, partial(self._coordinators, transactional_id))
        watch = ClientWatch(settings, logins, world.history.violate, is_steady=is_steady)
        if world.options.users:
            settings |= self._login(watch)
        # A class of its own, since a constructor starts threads that ask for its platform.
        own = {"_platform": world.new_platform(watch)}
        kind = type("TransactionalProducer", (TransactionalProducer,), own)
        producer: TransactionalProducer = kind(addresses, transactional_id, **settings)
        client: Any = producer._io._client  # noqa: SLF001 - the judge looks inside
        watch.is_ending = lambda: client._is_closed  # noqa: SLF001
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
