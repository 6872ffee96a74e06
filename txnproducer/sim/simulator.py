"""The loop: a clock that jumps from event to event, and the phases of a run.

Why it exists: one seed, one run, the same run each time.
Owns: `Simulator`: the event queue, the processes, the phases, the counts; `run_seed`. Must not
know: what a checker looks at, what an application does.

Phases: in the safety phase everything may go wrong. When enough was done, everything heals, and in
the liveness phase every application has to finish in bounded virtual time, whatever state it was
left in. Then time passes until the coordinators have cleaned up, and the checkers judge.
"""

from __future__ import annotations

import heapq
import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._leases import claim_id
from txnproducer._protocol.events import ClientRequest
from txnproducer._protocol.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceResponse,
    Request,
    Response,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.sim.checkers import Checkers
from txnproducer.sim.faults import FaultKind, Faults
from txnproducer.sim.history import Attempt, CallbackError, Fence, History
from txnproducer.sim.interrupts import Interrupts
from txnproducer.sim.options import (
    COMPACTED_TOPIC,
    MIN_REQUESTS,
    MIN_TRANSACTIONS,
    TOPIC,
    RunKind,
    SimOptions,
)
from txnproducer.sim.process import Process, Script
from txnproducer.sim.sharing import sharing_script
from txnproducer.sim.trace import Trace
from txnproducer.sim.trouble import Trouble
from txnproducer.sim.workload import idempotent_script, transactional_script

# The safety phase ends after this, even if requests are rare because everything is broken.
_LONGEST_SAFETY_MS = 240_000
_CONSUME_EVERY_MS = 700
# Of the records of a run; the second where that topic is made again.
_COMPACTED_RATE = 0.1
_RECREATED_RATE = 0.4
# So many attempts each application makes after the healing, the last one a success.
_PROOFS = 3
# What markers, look-ups and reconnections may take, besides what the settings say.
_LONGEST_CLEAN_UP_MS = 60_000
_OF_MEMBERS = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
)
# What idle applications may rest in all, between the attempts that prove them well.
_LONGEST_REST_MS = 600_000
_BUSIEST_RUN_EVENTS = 400_000
_CORE_LOGGER = logging.getLogger("txnproducer._core")


@dataclass(slots=True)
class SeedResult:
    """What a run showed.

    Attributes:
        seed: which.
        requests: sent by producers.
        transactions: by claim.
        faults: how often each kind took effect.
        virtual_ms: how long it took, by its own clock.
        violations: checker and text of everything that must not be.
    """

    seed: int
    requests: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    faults: Counter[FaultKind] = field(default_factory=Counter)
    virtual_ms: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)


def run_seed(
    seed: int,
    emit: Callable[[str], None] | None = None,
    *,
    kind: RunKind | None = None,
) -> SeedResult:
    """Run one seed.

    Args:
        seed: draws everything.
        emit: takes each line of the trace; None for no trace.
        kind: make the run of this kind, whatever the seed draws.
    """
    options = SimOptions.draw(seed, kind)
    return Simulator(options, Trace(emit)).run()


class Simulator:
    """See the module.

    Args:
        options: of the run.
        trace: takes the lines.

    Attributes:
        now_ms: the time.
        request_count: how many requests producers have sent.
        healed_at: how many attempts there were when everything healed.
        healed_ms: when that was.
        is_ending: whether it was.
        slack_ms: what a bounded call may take longer than its bound.
    """

    def __init__(self, options: SimOptions, trace: Trace) -> None:
        self.options = options
        self.trace = trace
        self.now_ms = 0
        self.request_count = 0
        self.slack_ms = 1
        self._queue: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = 0
        seed = options.seed
        self._dice = random.Random(f"simulator {seed}")  # noqa: S311 - seeded on purpose
        self.history = History()
        self.cluster = BrokerCluster(options.cluster, self._new_dice("cluster"))
        self.cluster.create_topic(TOPIC, options.partition_count)
        self.cluster.create_topic(COMPACTED_TOPIC, options.partition_count)
        self.cluster.compacted.add(COMPACTED_TOPIC)
        self.faults = Faults(
            options.rates,
            self._new_dice("faults"),
            self._new_dice("later faults"),
            options.burst,
            options.settings["request_timeout_ms"],
        )
        self.interrupts = Interrupts(
            self.faults, self._new_dice("interrupts"), is_inside=options.is_interrupted_inside
        )
        self.checkers = Checkers(self)
        self.trouble = Trouble(self, self._new_dice("trouble"))
        self.transactional_ids = [f"txn-{n}" for n in range(options.transactional_producers)]
        self.processes: list[Process] = []
        self._incarnations: Counter[str] = Counter()
        self._offsets = 0
        self._transactions = 0
        self.healed_at = 0
        self._acts_when_healed: Counter[str] = Counter()
        self.healed_ms = 0
        self.is_ending = False
        self._finished: set[str] = set()

    def _new_dice(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.options.seed}")  # noqa: S311 - seeded on purpose

    # --- what the parts ask for -----------------------------------------------------------------

    def call_at(self, at_ms: int, action: Callable[[int], None]) -> None:
        """Have something done at a time."""
        self._order += 1
        heapq.heappush(self._queue, (at_ms, self._order, action))

    def next_incarnation(self, transactional_id: str | None) -> int:
        """Return the number of a producer's life under an id."""
        name = transactional_id or ""
        self._incarnations[name] += 1
        return self._incarnations[name]

    def next_offset(self) -> int:
        """Return an offset that no transaction has committed."""
        self._offsets += 1
        return self._offsets

    @property
    def compacted_rate(self) -> float:
        """How many records, at most, go to the compacted topic."""
        is_recreated = FaultKind.TOPIC_RECREATED in self.options.intervals_ms
        return _RECREATED_RATE if is_recreated else _COMPACTED_RATE

    def partition_count(self, topic: str) -> int:
        """Return how many partitions applications count upon."""
        given = self.options.partition_count
        may_grow = FaultKind.PARTITIONS_ADDED in self.options.intervals_ms
        return self.cluster.topics.get(topic, given) if may_grow else given

    def group_of(self, process: Process) -> str:
        """Return the consumer group that a transactional id reads with."""
        return f"group-{process.transactional_id}"

    def new_attempt(self, process: Process) -> Attempt:
        """Begin to note what an application does."""
        number = len(self.history.attempts)
        attempt = Attempt(
            f"{process.name}.{process.incarnation}.{number}",
            process.name,
            process.transactional_id,
            process.incarnation,
            number,
        )
        self.history.attempts.append(attempt)
        attempt.is_idempotent = process.core.transaction_manager is not None
        attempt.is_acknowledged = process.config.acks != "0"
        attempt.is_calm = process.is_calm
        attempt.late_before = self.history.late[attempt.owner or ""]
        attempt.commits_in_doubt_before = process.network.commits_in_doubt
        attempt.delivery_timeout_ms = process.config.delivery_timeout_ms
        return attempt

    def count_transaction(self, attempt: Attempt) -> None:
        """Count a transaction that comes to its end, if there is anything in it."""
        self._transactions += bool(attempt.records or attempt.group_id)

    def wants_more(self, process: Process) -> bool:
        """Tell whether an application shall go on."""
        if not self.is_ending:
            return not process.is_second or process.dice.random() < 0.9
        # After the healing each one has to show that it still can.
        own = [
            attempt
            for attempt in self.history.attempts[self.healed_at :]
            if attempt.owner_process == process.name and attempt.is_calm
        ]
        is_proven = len(own) >= _PROOFS and (own[-1].owner is None or own[-1].is_fruitful)
        return not process.is_second and not (is_proven and self._has_enough)

    def is_calm(self, process: Process) -> bool:
        """Tell whether all is well, and nobody else uses the process's transactional id."""
        if process.holder is not None:
            return process.holder.is_calm
        name = process.transactional_id
        others = [
            p
            for p in self.processes
            if p is not process and p.transactional_id == name and not (p.holder and p.is_calm)
        ]
        is_alone = name is None or (not process.is_second and all(p.is_done for p in others))
        return self.is_ending and is_alone

    def has_time_acted(self, transactional_id: str | None) -> bool:
        """Tell whether an id was timed out, or forgotten, since the healing."""
        name = transactional_id or ""
        return self.cluster.acts_of_time[name] != self._acts_when_healed[name]

    @property
    def longest_call_ms(self) -> int:
        """How long any call may take once all is well: to its result, or to its error."""
        settings = self.options.settings
        lasting = ("transaction_timeout_ms", "delivery_timeout_ms", "max_block_ms")
        return _LONGEST_CLEAN_UP_MS + sum(int(settings[name]) for name in lasting)

    def must_begin_anew(self, process: Process) -> bool:
        """Tell whether an application has to go on with a producer that has seen no trouble."""
        return not process.is_calm and self.is_calm(process)

    @property
    def _has_enough(self) -> bool:
        wanted = MIN_REQUESTS if self.is_ending else self.options.requests
        return self._transactions >= MIN_TRANSACTIONS and self.request_count >= wanted

    def handle(self, node_id: int, request: ClientRequest, sender: str, now_ms: int) -> Response:
        """Let a broker answer a request of a process."""
        if isinstance(request.body, InitProducerIdRequest):
            self.history.asked_for_identity[request.body.transactional_id or ""].add(sender)
        body = self.cluster.handle(node_id, request.body, now_ms)
        if isinstance(body, InitProducerIdResponse) and not body.error_code:
            self._note_fence(request.body, body, sender)
        elif isinstance(body, ProduceResponse):
            self._count_refusals(body)
        elif isinstance(body, TxnOffsetCommitResponse):
            self._count_members_refused(body)
        return body

    def _count_members_refused(self, body: TxnOffsetCommitResponse) -> None:
        if any(result.error_code in _OF_MEMBERS for result in body.results):
            self.faults.counts[FaultKind.MEMBER_FENCED] += 1

    def _count_refusals(self, body: ProduceResponse) -> None:
        for partition in body.partitions:
            if partition.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                self.faults.counts[FaultKind.BATCH_TOO_LARGE] += 1
            elif partition.error_code == ErrorCode.INVALID_RECORD:
                self.faults.counts[FaultKind.RECORD_INVALID] += 1

    def _note_fence(self, request: Request, body: InitProducerIdResponse, sender: str) -> None:
        if not isinstance(request, InitProducerIdRequest) or request.transactional_id is None:
            return
        logs = self.cluster.topology.all_logs()
        ends = {life: log.log_end_offset for life, log in logs.items()}
        name = request.transactional_id
        acts = self.cluster.acts_of_time[name]
        self.history.fences.append(
            Fence(name, body.producer_id, body.producer_epoch, ends, sender, acts)
        )

    # --- processes ------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        for name in self.transactional_ids:
            self._start_process(name, name)
            group_id = f"group-{name}"
            group = self.cluster.group_offsets(group_id).group(group_id)
            group.generation_id, group.members = 1, {f"member-{name}": None}
            if self.options.initial_epoch >= 0:
                self._preset_epochs(name)
        for number in range(self.options.idempotent_producers):
            self._start_process(f"idem-{number}", None)
        for number in range(self.options.plain_producers):
            acks = self._dice.choice(("all", "1", "0"))
            self._start_process(f"plain-{number}", None, enable_idempotence=False, acks=acks)

    def _preset_epochs(self, transactional_id: str) -> None:
        """Have the epochs of an id near their end, and those of its claims, where it has any."""
        self.cluster.preset_epoch(transactional_id, self.options.initial_epoch)
        for claim in range(self.options.partition_count if self.options.is_shared else 0):
            self.cluster.preset_epoch(
                claim_id(transactional_id, claim), self.options.initial_epoch
            )

    def _start_process(self, name: str, transactional_id: str | None, **own: Any) -> Process:
        script = idempotent_script if transactional_id is None else self._transactional_script
        settings = {**self.options.settings, **own}
        process = Process(self, name, transactional_id, settings, self._new_dice(name), script)
        self.processes.append(process)
        process.start()
        return process

    @property
    def _transactional_script(self) -> Callable[[Process], Script]:
        return sharing_script if self.options.is_shared else transactional_script

    def start_participant(
        self, holder: Process, make_script: Callable[[Process], Script]
    ) -> Process:
        """Start a process that takes part in another one's transaction."""
        name = f"{holder.name}.p{len(self.processes)}"
        dice = random.Random(f"{name} {self.options.seed}")  # noqa: S311 - seeded on purpose
        settings = dict(self.options.settings)
        process = Process(self, name, holder.transactional_id, settings, dice, make_script, holder)
        self.processes.append(process)
        process.start()
        return process

    def start_second(self, transactional_id: str) -> None:
        """Start another process under an id; the older one becomes a zombie."""
        name = f"{transactional_id}b{len(self.processes)}"
        self._start_process(name, transactional_id).is_second = True

    def crash(self, process: Process) -> None:
        """End a process, whatever it is in the midst of."""
        for attempt in self.history.attempts:
            if (attempt.owner_process, attempt.incarnation) == (process.name, process.incarnation):
                attempt.is_crashed = True
        process.crash()

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> SeedResult:
        """Run; see the module."""
        with _listening(partial(self.history.violate, "logged")):
            try:
                self._run_phases()
                if not self.history.violations:
                    self.checkers.finish()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is its fault
                self.history.violate("crash", _told(error))
        return self._result()

    def _run_phases(self) -> None:
        self._start_processes()
        self.trouble.start()
        self.call_at(_CONSUME_EVERY_MS, self._consume)
        self._run_until(lambda: self._has_enough, _LONGEST_SAFETY_MS)
        self._live()

    def _live(self) -> None:
        """Let everything heal, everybody finish, and the coordinators clean up."""
        self.trouble.heal(self.now_ms)
        self.is_ending = True
        self.healed_at, self.healed_ms = len(self.history.attempts), self.now_ms
        self._acts_when_healed = self.cluster.acts_of_time.copy()
        settings = self.options.settings
        longest_ms = int(settings["transaction_timeout_ms"])
        bound_ms = _LONGEST_REST_MS + 20 * (
            int(settings["delivery_timeout_ms"]) + int(settings["max_block_ms"]) + longest_ms
        )
        if not self._run_until(self._are_all_done, self.now_ms + bound_ms):
            late = [p.describe() for p in self.processes if not p.is_done]
            self.history.violate("hangs", f"not finished {bound_ms} ms after healing: {late}")
        self._run_until(
            lambda: not self.cluster.open_transactions, self.now_ms + 2 * longest_ms + 10_000
        )
        self.checkers.consume()

    def _are_all_done(self) -> bool:
        return all(process.is_done for process in self.processes)

    def _consume(self, now_ms: int) -> None:
        self.checkers.consume()
        for process in self.processes:
            self.checkers.poisoned(process)
        self.call_at(now_ms + _CONSUME_EVERY_MS, self._consume)

    def _run_until(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Take events until a condition holds or the time is up; return what it says last."""
        queue, cluster = self._queue, self.cluster
        events = 0
        while not condition() and not self.history.violations:
            next_ms = cluster.next_event_ms()
            if queue and queue[0][0] <= next_ms:
                at_ms, _, action = heapq.heappop(queue)
                if at_ms > until_ms:
                    self.call_at(at_ms, action)
                    break
                self.now_ms = at_ms
                action(at_ms)
            elif next_ms > until_ms:
                break
            else:
                self.now_ms = next_ms
                cluster.advance(next_ms)
            events += 1
            if events > _BUSIEST_RUN_EVENTS:
                self.history.violate("spins", f"{events} events in one phase")
        return condition()

    def _result(self) -> SeedResult:
        counts, own = self.faults.counts, self.cluster.counts
        counts[FaultKind.METADATA_STALE] += own["stale"]
        counts[FaultKind.TRANSACTION_TIMED_OUT] += own["timed out"]
        counts[FaultKind.ID_EXPIRED] += own["expired"]
        counts[FaultKind.PRODUCER_FORGOTTEN] += own["forgotten"]
        counts[FaultKind.EPOCHS_EXHAUSTED] += own["rotated"]
        claims = Counter(a.final_claim for a in self.history.attempts if a.owner is not None)
        return SeedResult(
            self.options.seed,
            self.request_count,
            Counter({str(claim): count for claim, count in claims.items()}),
            Counter({kind: count for kind, count in counts.items() if count}),
            self.now_ms,
            self.history.violations,
        )


def _told(error: Exception) -> str:
    places = traceback.extract_tb(error.__traceback__)[-3:]
    way = " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(places))
    return f"{error!r} ({way})"


def _listener(take: Callable[[str], None]) -> logging.Handler:
    """Return what takes the exceptions that the core logs."""

    def emit(record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], CallbackError):
            take(f"{record.getMessage()}: {record.exc_info[1]!r}")

    handler = logging.Handler(logging.ERROR)
    # No class of its own: `logging` keeps weak references to handlers, which the classes of
    # compiled modules do not bear (`tests/sim/compiled.py`).
    handler.emit = emit  # type: ignore[method-assign]
    return handler


@contextmanager
def _listening(take: Callable[[str], None]) -> Iterator[None]:
    handler = _listener(take)
    was_propagating, level = _CORE_LOGGER.propagate, _CORE_LOGGER.level
    _CORE_LOGGER.addHandler(handler)
    _CORE_LOGGER.propagate = False
    _CORE_LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CORE_LOGGER.removeHandler(handler)
        _CORE_LOGGER.propagate = was_propagating
        _CORE_LOGGER.setLevel(level)
