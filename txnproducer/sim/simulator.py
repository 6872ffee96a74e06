"""A run: the world, the programs, the trouble, the judges, and the phases.

Why it exists: one seed makes one run, and the same run each time.
Owns: `Simulator`: the phases, the result; `run_seed`. Must not know: the details of checks and of
applications.

Phases: in the safety phase any fault may occur. After enough requests and transactions, the faults
end. In the liveness phase every application has to finish in bounded virtual time, from any state.
Then time passes until the coordinators have cleaned up, and the checkers judge.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from txnproducer.sim.apps.programs import Programs
from txnproducer.sim.judges.checkers import Checkers
from txnproducer.sim.trouble import Trouble
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.history import CallbackError
from txnproducer.sim.world.options import RunKind, SimOptions
from txnproducer.sim.world.trace import Trace
from txnproducer.sim.world.world import World

# The safety phase ends after this time, even if the faults leave few requests.
_LONGEST_SAFETY_MS = 240_000
_CONSUME_EVERY_MS = 700
# The longest time for which idle applications may sleep between their last attempts.
_LONGEST_REST_MS = 600_000
_CORE_LOGGER = logging.getLogger("txnproducer._core")


@dataclass(slots=True)
class SeedResult:
    """The result of a run.

    Attributes:
        seed: the seed.
        requests: how many requests producers sent.
        transactions: how many there were, by claim.
        faults: how often each kind took effect.
        virtual_ms: the virtual time that it took.
        violations: the checker and the text of each violation.
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
        kind: the kind of the run; None lets the seed draw it.
    """
    options = SimOptions.draw(seed, kind)
    return Simulator(options, Trace(emit)).run()


class Simulator:
    """One run of the simulator.

    Args:
        options: the options of the run.
        trace: takes the lines of the trace.
    """

    def __init__(self, options: SimOptions, trace: Trace) -> None:
        self.world = World(options, trace)
        self.checkers = Checkers(self.world)
        self.programs = Programs(self.world, self.checkers)
        self.trouble = Trouble(self.world, self.programs, self.world.new_rng("trouble"))

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> SeedResult:
        """Run all phases and return the result."""
        with _listening(partial(self.world.history.violate, "logged")):
            try:
                self._run_phases()
                # A run that was stopped by a violation has unfinished transactions, which the last
                # checks would report instead.
                if not self.world.history.violations:
                    self.checkers.finish()
            except Exception as error:  # noqa: BLE001 - every exception of the core is a violation
                # A violation and no exception of the judge: the trace and the seed are what is
                # needed to find it.
                self.world.history.violate("crash", _told(error))
        return self._result()

    def _run_phases(self) -> None:
        self.programs.start_all()
        self.trouble.start()
        self.world.call_at(_CONSUME_EVERY_MS, self._consume)
        self.world.run_until(lambda: self.programs.has_enough, _LONGEST_SAFETY_MS)
        self._live()

    def _live(self) -> None:
        """End the faults, and let the applications finish and the coordinators clean up."""
        world = self.world
        self.trouble.heal(world.now_ms)
        world.note_healing()
        settings = world.options.settings
        longest_ms = int(settings["transaction_timeout_ms"])
        # Several calls may follow each other, and each may take its whole time-out.
        bound_ms = _LONGEST_REST_MS + 20 * (
            int(settings["delivery_timeout_ms"]) + int(settings["max_block_ms"]) + longest_ms
        )
        if not world.run_until(self.programs.are_all_done, world.now_ms + bound_ms):
            late = [p.describe() for p in self.programs.processes if not p.is_done]
            world.history.violate("hangs", f"not finished {bound_ms} ms after healing: {late}")
        # A crashed producer leaves its transaction to the coordinator, which aborts it only
        # after the transaction's time-out.
        world.run_until(
            lambda: not world.cluster.open_transactions, world.now_ms + 2 * longest_ms + 10_000
        )
        self.checkers.consume()

    def _consume(self, now_ms: int) -> None:
        self.checkers.consume()
        for process in self.programs.processes:
            self.checkers.poisoned(process)
        self.world.call_at(now_ms + _CONSUME_EVERY_MS, self._consume)

    def _result(self) -> SeedResult:
        counts, own = self.world.faults.counts, self.world.cluster.counts
        # These happen inside the model of the cluster, which knows nothing of faults.
        counts[FaultKind.METADATA_STALE] += own["stale"]
        counts[FaultKind.TRANSACTION_TIMED_OUT] += own["timed out"]
        counts[FaultKind.ID_EXPIRED] += own["expired"]
        counts[FaultKind.PRODUCER_FORGOTTEN] += own["forgotten"]
        counts[FaultKind.EPOCHS_EXHAUSTED] += own["rotated"]
        claims = Counter(a.final_claim for a in self.world.history.attempts if a.owner is not None)
        return SeedResult(
            self.world.options.seed,
            self.world.request_count,
            Counter({str(claim): count for claim, count in claims.items()}),
            Counter({kind: count for kind, count in counts.items() if count}),
            self.world.now_ms,
            self.world.history.violations,
        )


def _told(error: Exception) -> str:
    places = traceback.extract_tb(error.__traceback__)[-3:]
    way = " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(places))
    return f"{error!r} ({way})"


def _listener(take: Callable[[str], None]) -> logging.Handler:
    """Return a handler for the exceptions that the core logs."""

    def emit(record: logging.LogRecord) -> None:
        # The simulated callbacks raise this on purpose, and the core is right to log it.
        if record.exc_info and not isinstance(record.exc_info[1], CallbackError):
            take(f"{record.getMessage()}: {record.exc_info[1]!r}")

    handler = logging.Handler(logging.ERROR)
    # This is not a class of its own: `logging` keeps weak references to handlers, which the
    # classes of compiled modules do not support (`tests/sim/compiled.py`).
    handler.emit = emit  # type: ignore[method-assign]
    return handler


@contextmanager
def _listening(take: Callable[[str], None]) -> Iterator[None]:
    handler = _listener(take)
    was_propagating, level = _CORE_LOGGER.propagate, _CORE_LOGGER.level
    _CORE_LOGGER.addHandler(handler)
    # Otherwise a campaign would print every error that a fault causes.
    _CORE_LOGGER.propagate = False
    _CORE_LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CORE_LOGGER.removeHandler(handler)
        _CORE_LOGGER.propagate = was_propagating
        _CORE_LOGGER.setLevel(level)
