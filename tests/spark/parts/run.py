"""One run: its queries, its phases, its judges.

Owns: `run_seed`. Must not know: what is drawn, how drivers work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.spark.parts.judge import Judge
from tests.spark.parts.named import Scheduler
from tests.spark.parts.options import PartsOptions
from tests.spark.parts.query import Query
from tests.spark.parts.system import installed
from tests.spark.parts.world import World
from txnproducer.sim.stack.baton import StuckError

_LONGEST_S = 200_000.0


@dataclass(frozen=True)
class PartsResult:
    """The result of a run."""

    seed: int
    requests: int
    counts: Counter[str]
    violations: list[tuple[str, str]]
    digest: str
    virtual_s: float


def run_seed(
    seed: int, emit: Callable[[str], None] | None = None, *, has_names: bool = False
) -> PartsResult:
    """Run one seed, of batches with numbers or with names."""
    return run(PartsOptions.draw(seed, has_names=has_names), emit)


def run(options: PartsOptions, emit: Callable[[str], None] | None = None) -> PartsResult:
    """Run with given options."""
    world = World(options, emit)
    with installed(world):
        try:
            _Run(world).run()
        except StuckError as stuck:
            world.violate("hangs", str(stuck))
        finally:
            _end(world)
    for name, error in world.baton.failures:
        world.violate("crash", f"{name}: {error!r}")
    return PartsResult(
        options.seed,
        world.requests,
        world.counts,
        world.violations,
        world.digest,
        world.baton.now_ns / 1e9,
    )


class _Run:
    """The phases of a run: trouble, healing, the last transactions, the judge."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._kind = Scheduler if world.options.has_names else Query
        self.queries: list[Query] = [self._kind(world, "q")]
        self.judge = Judge(world, self.queries)

    def run(self) -> None:
        world, baton = self.world, self.world.baton
        self.queries[0].start()
        if world.options.overtaken_s is not None:
            baton.call_after(1000 * world.options.overtaken_s, self._overtake)
        self._wait(lambda: all(query.is_over for query in self.queries), world.options.trouble_s)
        world.trace("nothing goes wrong any more")
        world.is_healed = True
        if not self._wait(lambda: all(query.is_over for query in self.queries), _LONGEST_S):
            late = {query.name: query.done_batches for query in self.queries if not query.is_over}
            world.violate("progress", f"long after the faults, these are done: {late}")
        if not self._wait(lambda: not baton.others, _LONGEST_S):
            world.violate("hangs", f"{[thread.name for thread in baton.others]}")
        self._wait(lambda: False, 2 * world.options.timeout_ms / 1000)
        if not world.violations:
            self.judge.finish()

    def _overtake(self) -> None:
        """Let another query take the sink over."""
        if self.world.is_healed:
            return
        for query in self.queries:
            query.is_overtaken = True
        self.queries.append(self._kind(self.world, "other", takes_over=True))
        self.queries[-1].start()

    def _wait(self, is_ready: Callable[[], bool], seconds: float) -> bool:
        violations, failures = self.world.violations, self.world.baton.failures
        # The first violation ends the run: the rest would be its consequence.
        self.world.baton.wait(lambda: is_ready() or bool(violations or failures), seconds)
        return is_ready() or bool(violations or failures)


def _end(world: World) -> None:
    baton = world.baton
    for thread in baton.others:
        baton.kill(thread.turn.process)  # type: ignore[attr-defined]
    baton.wait(lambda: not baton.others, 60)
