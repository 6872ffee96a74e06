"""One run of the whole stack: the world, the services, the phases, the judgement.

Owns: `run_stack_seed`, `StackRun`. Must not know: the work of services, the bytes.

    crash     no thread of a producer ends with an exception, or logs one that is not a user's
    hangs     no call takes longer than its limit; with no fault under way, none takes long
    spins     the threads let time pass
    state     a call that the state forbids is refused; an allowed one is not
    left      a closed producer leaves no thread, socket, selector or memory behind
    progress  after the faults end, each service commits again, also with the producer that it had
    and those of `judges.log_judge`: committed, aborted, unknown, order, offsets, told, content ...
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.login import Users
from txnproducer._shell import live_producers
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.judges.log_judge import LogJudge
from txnproducer.sim.stack.baton import Baton, KilledError, StuckError, VirtualThread
from txnproducer.sim.stack.events import ClusterEvents
from txnproducer.sim.stack.faults import ByteFaults
from txnproducer.sim.stack.network import Network
from txnproducer.sim.stack.options import PARTITIONS, TOPIC, StackOptions
from txnproducer.sim.stack.platform import VirtualPlatform
from txnproducer.sim.stack.service import Service
from txnproducer.sim.world.history import Attempt, CallbackError, History

__all__ = ["StackResult", "StackRun", "run_stack_seed"]

_LOGGER: Final = logging.getLogger("txnproducer")
_LONGEST_RUN_S: Final = 3_600.0
_PROOFS: Final = 2
# Beyond the limit of a call: the coordinator's account of a loss (a second), the looks at the
# clock, the wait for a lock.
_MOMENT_MS: Final = 1_500
# The longest of a call that began when no fault was under way, and a producer's first.
_CALM_MS: Final = 3_000
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


@dataclass(slots=True)
class Watch:
    """The begin of a call."""

    began_ms: int
    jumped_ms: int
    is_calm: bool


@dataclass(slots=True)
class _Ending:
    """A producer that was left to end by itself."""

    producer: TransactionalProducer
    by_ms: int = field(default=0)


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
        self.cluster.create_topic("input", 1)
        self.baton = Baton(self.new_rng("threads"), self.cluster, options.switch_rate)
        self.baton.tick_ns = options.tick_ns
        self.faults = ByteFaults(options.byte_rates, self.new_rng("bytes"))
        self.users = Users({"user": "secret"}, session_lifetime_ms=options.session_ms)
        self.network = Network(
            self.baton,
            self.cluster,
            self.faults,
            self.new_rng("network"),
            options.latency_ms,
            self.trace,
            self.users if options.users else None,
        )
        self.platform = VirtualPlatform(self.baton, self.network, self.new_rng("jitter"))
        self._type = type(
            "TransactionalProducer", (TransactionalProducer,), {"_platform": self.platform}
        )
        self.is_ending = False
        self.healed_ms = 0
        self.jumped_ms = 0
        self.services: list[Service] = []
        self.events = ClusterEvents(self, self.new_rng("events"))
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
        with _listening(self._logged):
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
            self._judge()

    def _kill_all(self) -> None:
        """End what is left of the run's threads, after a violation."""
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
        return not service.is_rival and service.proofs < _PROOFS

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
        producer: TransactionalProducer = self._type(addresses, transactional_id, **settings)
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
    def max_block_ms(self) -> int:
        """The limit of a call that waits for brokers."""
        return int(self.options.settings["max_block_ms"])

    @property
    def delivery_ms(self) -> int:
        """The limit of a flush or a close."""
        return int(self.options.settings["delivery_timeout_ms"]) + 2_000

    def join(self, thread: Any) -> None:
        """Wait for a service's own thread."""
        thread.join()

    # --- judging calls --------------------------------------------------------------------------

    def watch(self) -> Watch:
        """Note the begin of a call."""
        is_calm = self.is_calm_since is not None
        return Watch(self.baton.now_ms, self.jumped_ms, is_calm)

    @property
    def is_calm_since(self) -> int | None:
        """When the last fault ended, or None while there are faults."""
        if self.options.is_calm:
            return 0
        if self.is_ending and self.baton.now_ms >= self.healed_ms + _SETTLED_S * 1000:
            return self.healed_ms
        return None

    def returned(
        self,
        service: Service,
        name: str,
        watch: Watch,
        limit_ms: float,
        error: BaseException | None,
    ) -> None:
        """Judge a call that has returned."""
        took_ms = self.baton.now_ms - watch.began_ms - (self.jumped_ms - watch.jumped_ms)
        self.trace(f"{service.name}: {name}: {took_ms} ms, {error!r}")
        if took_ms > limit_ms + _MOMENT_MS:
            self.history.violate(
                "hangs", f"{service.name}: {name} took {took_ms} ms, and may take {limit_ms}"
            )
        if watch.is_calm and took_ms > _CALM_MS and name != "block":
            self.history.violate(
                "hangs", f"{service.name}: {name} took {took_ms} ms without any fault"
            )
        if watch.is_calm and isinstance(error, KafkaError) and name != "wrong call":
            self.history.violate("needless", f"{service.name}: {name}: {error!r}")

    def judge_end(self, attempt: Attempt) -> None:
        """Judge a transaction whose end has returned."""
        if attempt.claim != "committed":
            return
        for record in attempt.records:
            future = record.future
            if future is None or not future.done() or future.error is not None:
                self.history.violate(
                    "told", f"{attempt.name} is committed with {record.value!r}: {future}"
                )

    # --- judging what is left -------------------------------------------------------------------

    def expect_end(self, producer: TransactionalProducer) -> None:
        """Note that a producer was dropped, and ends by itself."""

    def closed(self, service: Service, producer: TransactionalProducer) -> None:
        """Judge a producer after `close`."""
        io = producer._io  # noqa: SLF001 - the judge looks inside
        if not io.has_ended:
            self.history.violate("left", f"{service.name}: close has returned, the loop goes on")
            return
        with producer._lock:  # noqa: SLF001
            metrics = producer._core.metrics()  # noqa: SLF001
        if metrics["buffer-available-bytes"] != metrics["buffer-total-bytes"]:
            self.history.violate("left", f"{service.name}: memory: {metrics}")

    def _judge(self) -> None:
        history = self.history
        for name, error in self.baton.failures:
            history.violate("crash", f"{name} ended: {error!r}")
        LogJudge(history, self.cluster).judge()
        if self.cluster.open_transactions:
            history.violate("open", f"transactions: {self.cluster.open_transactions}")
        for place, log in self.cluster.logs.items():
            if log.last_stable_offset != log.log_end_offset:
                history.violate("open", f"{place} is not stable")
        left = [thread.name for thread in self.baton.others]
        if left:
            history.violate("left", f"threads: {left}")
        if self.network.open_sockets:
            history.violate("left", f"{len(self.network.open_sockets)} sockets")
        for service in self.regulars:
            if service.proofs < _PROOFS:
                history.violate("progress", f"{service.name} committed {service.proofs}")

    def _logged(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, CallbackError | KafkaError | KilledError):
            self.history.violate("crash", f"logged: {record.getMessage()}: {error!r}")


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
