"""One run of the whole stack: the world, the services, the phases.

Owns: `run_stack_seed`, `StackRun`. Must not know: the work of services, the bytes.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.login import Users
from txnproducer._shell import live_producers
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.baton import Baton, StuckError, VirtualThread
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.events import ClusterEvents
from txnproducer.sim.stack.faults import ByteFaults
from txnproducer.sim.stack.judge import PROOFS, StackJudge
from txnproducer.sim.stack.network import VirtualNetwork
from txnproducer.sim.stack.options import (
    GROUP_TOPIC,
    OTHER_TOPICS,
    PARTITIONS,
    TOPIC,
    StackOptions,
)
from txnproducer.sim.stack.platform import VirtualPlatform
from txnproducer.sim.stack.service import Service
from txnproducer.sim.world.history import Attempt, History

__all__ = ["StackResult", "StackRun", "run_stack_seed"]

_LOGGER: Final = logging.getLogger("txnproducer")
_LONGEST_RUN_S: Final = 3_600.0
_SETTLED_S: Final = 10.0


@dataclass(slots=True)
class StackResult:
    """The result of a run.

    Attributes:
        seed: of the run.
        requests: that the brokers have read.
        claims: how many transactions ended how.
        faults: how often each kind was drawn.
        violations: the check and the text of each.
        digest: of the trace.
        virtual_s: how long it took in virtual time.
    """

    seed: int
    requests: int
    claims: Counter[str]
    faults: Counter[str]
    violations: list[tuple[str, str]]
    digest: str
    virtual_s: float


def run_stack_seed(seed: int, emit: Callable[[str], None] | None = None) -> StackResult:
    """Run one seed.

    Args:
        seed: draws everything.
        emit: takes each line of the trace; None for no trace.
    """
    return StackRun(StackOptions.draw(seed), emit).run()


class StackRun:
    """See the module.

    Args:
        options: of the run.
        emit: takes the lines of the trace.
    """

    def __init__(self, options: StackOptions, emit: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._emit = emit
        self._digest = hashlib.sha256()
        self.history = History()
        self.cluster = BrokerCluster(options.cluster, self.new_rng("cluster"))
        self.cluster.create_topic(TOPIC, PARTITIONS)
        self.cluster.create_topic(GROUP_TOPIC, 1)
        for topic in OTHER_TOPICS:
            self.cluster.create_topic(topic, 1)
        self.baton = Baton(self.new_rng("threads"), self.cluster, options.switch_rate)
        self.baton.tick_ns = options.tick_ns
        self.baton.longest_stall_s = options.longest_stall_s
        self.faults = ByteFaults(options.byte_rates, self.new_rng("bytes"))
        self.users = Users({"user": "secret"}, session_lifetime_ms=options.session_ms)
        self.network = VirtualNetwork(
            self.baton,
            self.cluster,
            self.faults,
            self.new_rng("network"),
            options.latency_ms,
            self.trace,
            self.users if options.users else None,
        )
        self._jitter = self.new_rng("jitter")
        # Of the service's own threads. Each producer has a platform of its own.
        self.platform = VirtualPlatform(self.baton, self.network, self._jitter)
        self.watches: dict[TransactionalProducer, ClientWatch] = {}
        self.is_ending = False
        self.healed_ms = 0
        self.jumped_ms = 0
        self.services: list[Service] = []
        self.events = ClusterEvents(self, self.new_rng("events"))
        self.judge = StackJudge(self)
        self._producers: list[TransactionalProducer] = []
        self._offsets = 0

    def new_rng(self, name: str) -> random.Random:
        """Return the source of randomness for one part of the run."""
        return random.Random(f"{name} {self.options.seed}")  # noqa: S311 - seeded on purpose

    def trace(self, line: str) -> None:
        """Note an event."""
        told = f"{self.baton.now_ns // 1000:>12} {self.baton.current.name:<24} {line}"
        self._digest.update(told.encode())
        if self._emit is not None:
            self._emit(told)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> StackResult:
        """Run all phases and return the result."""
        with _listening(self.judge.logged):
            try:
                self._run_phases()
            except StuckError as stuck:
                kind = "spins" if "pause" in str(stuck) else "hangs"
                self.history.violate(kind, str(stuck))
            except Exception as error:  # noqa: BLE001 - each exception is a violation
                self.history.violate("crash", repr(error))
            finally:
                self._kill_all()
        claims = Counter(str(each.final_claim) for each in self.history.attempts)
        return StackResult(
            self.options.seed,
            self.network.request_count,
            claims,
            Counter(self.faults.counts) + self.events.counts,
            self.history.violations,
            self._digest.hexdigest()[:16],
            self.baton.now_ns / 1e9,
        )

    def _run_phases(self) -> None:
        for number in range(self.options.services):
            self.start_service(f"service-{number}", f"id-{number}")
        if self.options.has_rival:
            self.start_service("rival", "id-0", is_rival=True)
        self.events.start()
        self._wait(lambda: all(s.made >= self.options.transactions for s in self.regulars), 600.0)
        self.trace("the faults end")
        self.events.heal()
        self.network.heal()
        self.is_ending, self.healed_ms = True, self.baton.now_ms
        if not self._wait(lambda: all(s.is_done for s in self.services), _LONGEST_RUN_S):
            late = [s.name for s in self.services if not s.is_done]
            self.history.violate("progress", f"not done an hour after the faults ended: {late}")
        self._settle()

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        # The first violation ends the run: what follows is mostly its consequence.
        self.baton.wait(lambda: condition() or bool(self.history.violations), seconds)
        return condition() or bool(self.history.violations)

    def _settle(self) -> None:
        longest_s = self.options.settings["transaction_timeout_ms"] / 1000
        # Dropped producers deliver for half a minute, and time-outs of transactions follow.
        self._wait(lambda: not self.baton.others, 40.0)
        self._wait(lambda: not self.cluster.open_transactions, longest_s * 2 + _SETTLED_S)
        # The markers of the last one.
        self.baton.wait(lambda: False, 1.0)
        if not self.history.violations:
            self.judge.finish()

    def _kill_all(self) -> None:
        """End the threads that are left, after a violation."""
        for process in {*(s.name for s in self.services), ""}:
            if process:
                self.baton.kill(process)
        try:
            self.baton.wait(lambda: not self.baton.others, 3_600)
        except StuckError as stuck:
            self.history.violate("hangs", f"at the end: {stuck}")
        for producer in self._producers:
            _forget(producer)

    # --- services -------------------------------------------------------------------------------

    @property
    def regulars(self) -> list[Service]:
        """The services that have to prove their progress."""
        return [service for service in self.services if not service.is_rival]

    def start_service(self, name: str, transactional_id: str, *, is_rival: bool = False) -> None:
        """Start a process."""
        service = Service(self, name, transactional_id, is_rival=is_rival)
        self.services.append(service)
        self._start(service)

    def _start(self, service: Service) -> None:
        before, self.baton.process = self.baton.process, service.name
        VirtualThread(self.baton, service.main, service.name).start()
        self.baton.process = before

    def kill(self, service: Service) -> None:
        """Kill a process, as `kill -9` does, and start it again."""
        self.trace(f"{service.name} is killed")
        self.baton.kill(service.name)
        self.network.close_sockets(service.name)
        for attempt in self.history.attempts:
            if attempt.owner_process == service.name and attempt.claim == "open":
                attempt.is_crashed = True
        self.services.remove(service)
        again = Service(self, f"{service.name}'", service.transactional_id)
        again.made = service.made
        self.services.append(again)
        self._start(again)

    def wants_more(self, service: Service) -> bool:
        """Return whether a service shall go on."""
        if self.history.violations:
            return False
        if not self.is_ending:
            return True
        return not service.is_rival and service.proofs < PROOFS

    def open_producer(self, transactional_id: str) -> TransactionalProducer:
        """Make a producer, as users do."""
        settings: dict[str, Any] = dict(self.options.settings)
        if self.options.users:
            settings |= {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "user",
                "sasl_plain_password": "secret",
            }
        addresses = [f"{node.host}:{node.port}" for node in self.cluster.nodes.values()]
        watch = ClientWatch(settings, self.history.violate, is_steady=self.options.is_loop_steady)
        platform = VirtualPlatform(self.baton, self.network, self._jitter, watch)
        # A class of its own, since a constructor starts threads that ask for its platform.
        kind = type("TransactionalProducer", (TransactionalProducer,), {"_platform": platform})
        producer: TransactionalProducer = kind(addresses, transactional_id, **settings)
        client: Any = producer._io._client  # noqa: SLF001 - the judge looks inside
        watch.is_ending = lambda: client._is_closed  # noqa: SLF001
        self.watches[producer] = watch
        self._producers.append(producer)
        return producer

    def new_attempt(self, service: Service) -> Attempt:
        """Return a new record of a transaction."""
        number = len(self.history.attempts)
        attempt = Attempt(
            f"{service.name}.{service.incarnation}.{number}",
            service.name,
            service.transactional_id,
            service.incarnation,
            number,
        )
        self.history.attempts.append(attempt)
        return attempt

    def next_offset(self) -> int:
        """Return an offset that was never used before."""
        self._offsets += 1
        return self._offsets

    @property
    def producer_count(self) -> int:
        """How many producers were made."""
        return len(self._producers)

    @property
    def max_block_ms(self) -> int:
        """The limit of a call that waits for brokers."""
        return int(self.options.settings["max_block_ms"])

    @property
    def delivery_ms(self) -> int:
        """The limit of a flush or a close."""
        return int(self.options.settings["delivery_timeout_ms"]) + 2_000


def _forget(producer: TransactionalProducer) -> None:
    """Let neither the finalizer nor the interpreter's exit wait for a producer of a run."""
    live_producers.forget(producer)
    producer._refusal = partial(_ended)  # noqa: SLF001
    producer._io._must_stop = producer._io._has_stopped = True  # noqa: SLF001


def _ended(call: str) -> KafkaError:
    return KafkaError(f"{call}: the run has ended")


@contextmanager
def _listening(take: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    handler = logging.Handler(logging.ERROR)
    handler.emit = take  # type: ignore[assignment, method-assign]
    was_propagating, level = _LOGGER.propagate, _LOGGER.level
    _LOGGER.addHandler(handler)
    # Otherwise a campaign would print every error that a fault causes.
    _LOGGER.propagate = False
    _LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.propagate = was_propagating
        _LOGGER.setLevel(level)
