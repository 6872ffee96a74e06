"""The world of one run: brokers, time, threads, faults, the trace.

Owns: the things that all parts of a run share, the fate of each request, deaths and pauses of
processes. Must not know: drivers, tasks, what is judged.
"""

from __future__ import annotations

import enum
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from tests.spark.parts.options import LEDGER, PLAN_GROUP, TOPIC, PartsOptions
from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster
from txnproducer._protocol.messages import (
    CoordinatorType,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    Request,
    Response,
)
from txnproducer.ledger.topic_log import TopicLog
from txnproducer.sim.stack.baton import Baton
from txnproducer.sim.world.trace import show_message

# As long as a batch takes at most from its leases to its decision.
_MINUTES_S = 300
_PRESENT: list[World] = []
_HARMLESS = (MetadataRequest, FindCoordinatorRequest, DescribeTransactionsRequest)


def present() -> World:
    """Return the world that runs: the shipping code has no other way to it."""
    return _PRESENT[-1]


class Fate(enum.Enum):
    """The fate of a request."""

    DONE = enum.auto()
    LOST = enum.auto()
    ANSWER_LOST = enum.auto()


@dataclass(frozen=True)
class Part:
    """A transaction of a part."""

    name: str
    producer_id: int
    epoch: int


class Process(Protocol):
    """A driver, or an attempt of a task."""

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""

    def pauses(self, seconds: float) -> None:
        """Note that it stands still for so long from now on."""


class World:
    """The world of one run.

    Args:
        options: of the run.
        emit: takes each line of the trace; None for no trace.

    Attributes:
        cluster: the brokers.
        baton: the threads and the time.
        network_rng: draws what happens to requests.
        on_request: called before a request takes effect, with the request.
        on_answered: called after it, with the request and its answer.
        on_look: called when a process has read some groups.
        is_late: whether the request that takes effect is a late one.
        processes: those that run, by name.
        logs: their readers of the ledger's topic.
        attempts: how many attempts of tasks there were.
        requests: how many requests took effect.
        counts: how often each thing happened.
        violations: the check and the text of each.
        is_healed: whether nothing goes wrong any more.
        decisions: how many decisions were committed.
        undone: the parts that are decided and not committed; the judge notes both.
    """

    def __init__(self, options: PartsOptions, emit: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._emit = emit
        self._digest = hashlib.sha256()
        self.cluster = BrokerCluster(options.cluster, self.rng("cluster"))
        self.cluster.create_topic(TOPIC, options.topic_partitions)
        if options.has_names:
            self.cluster.create_topic(LEDGER, 1)
        self.baton = Baton(self.rng("threads"), self.cluster)
        self.network_rng = self.rng("network")
        self._jitter = self.rng("jitter")
        self._trouble = self.rng("trouble")
        self.on_request: Callable[[Request], None] = _nothing
        self.on_answered: Callable[[Request, Response], None] = _nothing
        self.processes: dict[str, Process] = {}
        self.logs: dict[str, TopicLog] = {}
        self.counts: Counter[str] = Counter()
        self.violations: list[tuple[str, str]] = []
        self.is_healed = False
        self.requests = self.attempts = self.decisions = 0
        self.undone: list[Part] = []
        self._stood: list[tuple[str, int, int]] = []
        self._outage: tuple[int, int] = (-1, 0)  # the broker, and the end
        self.on_look: Callable[[Iterable[str]], None] = _nothing
        self.is_late = False
        self._move_coordinators()

    def rng(self, name: str) -> random.Random:
        """Return the source of one part of the run."""
        return random.Random(f"{name} {self.options.seed}")

    def jitter(self) -> random.Random:
        """Return the source of one producer."""
        return random.Random(self._jitter.random())

    def __enter__(self) -> Self:
        _PRESENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _PRESENT.pop()

    # --- time -----------------------------------------------------------------------------------

    def rest(self, seconds: float) -> None:
        """Let time pass for the thread that runs."""
        self.baton.wait(_never, seconds)

    def on_the_way(self) -> None:
        """Let a message travel. The thread that sent it may stand still, or die, meanwhile."""
        self._trouble_thread()
        self.rest(self.network_rng.uniform(0.0002, 0.003))

    def _trouble_thread(self) -> None:
        options, rng = self.options, self._trouble
        process = self.processes.get(self.baton.process)
        if self.is_healed or process is None:
            return
        # The moments between a decision and the ends are short, and the ones that count.
        is_between = bool(self.undone)
        if rng.random() < (options.kill_rate_between if is_between else options.kill_rate):
            self.count("kill a process")
            self.trace("is killed")
            process.kill()
        if rng.random() < (options.pause_rate_between if is_between else options.pause_rate):
            self._pause(process)
        if is_between and options.outage_rate_between:
            self._maybe_outage(options.outage_rate_between)

    def look(self, groups: Iterable[str]) -> None:
        """Note that a process has read groups. It may stand still after a look at the plan."""
        self.on_look(groups)
        options, process = self.options, self.processes.get(self.baton.process)
        if self.is_healed or process is None or PLAN_GROUP not in groups:
            return
        if (
            options.pause_rate_after_look
            and self._trouble.random() < options.pause_rate_after_look
        ):
            self._pause(process)

    def _pause(self, process: Process) -> None:
        options, rng = self.options, self._trouble
        seconds = options.longest_pause_s * 10 ** rng.uniform(-3, 0)
        ends_with_decision = rng.random() < 0.5
        self.count("pause until a decision" if ends_with_decision else "pause a process")
        self.trace(f"stands still for {seconds:.3f} s")
        process.pauses(seconds)
        before, before_ms = self.decisions, self.baton.now_ms
        self.baton.wait(lambda: ends_with_decision and self.decisions > before, seconds)
        self.trace("goes on")
        self._stood.append((self.baton.process, before_ms, self.baton.now_ms))

    def lost_s(self, process: str) -> float:
        """Return for how long a process stood still, or met an outage, in the last minutes."""
        since_ms = self.baton.now_ms - 1000 * _MINUTES_S
        return sum(
            (end_ms - began_ms) / 1000
            for name, began_ms, end_ms in self._stood
            if name in (process, "") and end_ms > since_ms
        )

    # --- requests -------------------------------------------------------------------------------

    def decided(self) -> None:
        """Note a decision. A broker may be out of reach from then on."""
        self.decisions += 1
        if not self.is_healed:
            self._maybe_outage(self.options.outage_rate)

    def _maybe_outage(self, rate: float) -> None:
        """Let a broker be out of reach from now on, perhaps."""
        rng, now_ms = self._trouble, self.baton.now_ms
        if rng.random() >= rate or now_ms < self._outage[1]:
            return
        node, seconds = rng.choice(list(self.cluster.nodes)), rng.uniform(20, 150)
        self._outage = (node, now_ms + round(1000 * seconds))
        self._stood.append(("", now_ms, self._outage[1]))
        self.count("broker out of reach")
        self.trace(f"broker {node} is out of reach for {seconds:.0f} s")

    def is_out_of_reach(self, node_id: int) -> bool:
        """Return whether no message gets to or from a broker."""
        node, until_ms = self._outage
        return not self.is_healed and node == node_id and self.baton.now_ms < until_ms

    def fate_of(self, node_id: int, body: Request) -> Fate:
        """Draw the fate of a request."""
        rng, options = self.network_rng, self.options
        if self.is_healed:
            return Fate.DONE
        if self.is_out_of_reach(node_id):
            return Fate.LOST
        drawn = rng.random()
        if drawn < options.loss_rate:
            self.count("lose a request")
            self.trace(f"loses {self._shown(body)}")
            return Fate.LOST
        if drawn < 2 * options.loss_rate:
            self.count("lose an answer")
            self.trace(f"loses the answer to {self._shown(body)}")
            return Fate.ANSWER_LOST
        return Fate.DONE

    def handle(self, node_id: int, body: Request) -> Response:
        """Let a request take effect."""
        self.requests += 1
        self.on_request(body)
        answer = handlers.handle(self.cluster, node_id, body, self.baton.now_ms)
        if not isinstance(body, MetadataRequest | FindCoordinatorRequest):
            self.trace(f"{self._shown(body)} -> {self._shown(answer)}")
        self.on_answered(body, answer)
        return answer

    def maybe_late(self, node_id: int, body: Request) -> None:
        """Let a request of a connection that is gone arrive later, perhaps."""
        rng = self.network_rng
        if self.is_healed or isinstance(body, _HARMLESS) or rng.random() >= self.options.late_rate:
            return
        self.count("late request")
        self.baton.call_after(
            rng.uniform(1, self.options.latest_ms), lambda: self._late(node_id, body)
        )

    def _late(self, node_id: int, body: Request) -> None:
        if not self.is_healed:
            self.trace("late:")
            self.is_late = True
            self.handle(node_id, body)
            self.is_late = False

    def draws_no_answer(self) -> bool:
        """Return whether a question to the cluster gets no answer."""
        return not self.is_healed and self.network_rng.random() < self.options.loss_rate

    def all_groups(self) -> list[str]:
        """Return the names of all groups."""
        return [name for one in self.cluster._group_offsets for name in one.groups]

    def _move_coordinators(self) -> None:
        options, rng = self.options, self._trouble
        if self.is_healed or not options.moves_every_s:
            return
        kind = rng.choice(list(CoordinatorType))
        number, node = rng.randrange(options.cluster.coordinator_count), self.cluster.pick_node()
        if self.baton.now_ms > 1000:
            self.count("move a coordinator")
            self.cluster.move_coordinator(kind, number, node, self.baton.now_ms, resigning_ms=20)
        after_s = rng.expovariate(1 / options.moves_every_s)
        self.baton.call_after(1000 * after_s, self._move_coordinators)

    # --- notes ----------------------------------------------------------------------------------

    def count(self, name: str) -> None:
        """Count that something has happened."""
        self.counts[name] += 1

    def violate(self, check: str, text: str) -> None:
        """Note that a promise was broken."""
        self.trace(f"VIOLATION {check}: {text}")
        self.violations.append((check, text))

    def trace(self, line: str) -> None:
        """Note an event."""
        told = f"{self.baton.now_ns // 1000:>12} {self.baton.process:<14} "
        # The first word alone: without `emit` messages are not shown whole.
        self._digest.update(f"{told}{line.partition('(')[0]}".encode())
        if self._emit is not None:
            self._emit(told + line)

    def _shown(self, body: object) -> str:
        # To show a message whole takes as long as to handle it.
        return type(body).__name__ if self._emit is None else show_message(body)

    @property
    def digest(self) -> str:
        """The digest of the trace until now."""
        return self._digest.hexdigest()[:16]


def _never() -> bool:
    return False


def _nothing(*_: object) -> None:
    """Do nothing."""
