"""Many seeds: what they showed in sum, and the file that a long campaign goes on from.

Why it exists: a hundred million requests do not fit into one evening.
Owns: `Totals`, their lines in a results file, the fingerprint that tells which code was run. Must
not know: how seeds are spread over processors (the command does that).
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txnproducer.sim.faults import FaultKind
from txnproducer.sim.simulator import SeedResult, run_seed

_JUDGED_AND_JUDGE = ("_core", "_broker", "_record", "_protocol", "sim")
# From so many seeds on, a kind of fault that never took effect is a hole in the simulation.
SEEDS_THAT_SHOW_ALL = 1000


@dataclass(slots=True)
class Totals:
    """What some seeds showed.

    Attributes:
        seeds: how many.
        requests: sent by producers.
        virtual_ms: of all runs.
        transactions: by claim.
        faults: by name, how often each took effect.
        failures: seed, checker and text of each seed that failed.
    """

    seeds: int = 0
    requests: int = 0
    virtual_ms: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add what other seeds showed."""
        self.seeds += other.seeds
        self.requests += other.requests
        self.virtual_ms += other.virtual_ms
        self.transactions.update(other.transactions)
        self.faults.update(other.faults)
        self.failures += other.failures

    @property
    def kinds_without_effect(self) -> list[str]:
        """The kinds of faults that never took effect."""
        return [kind.value for kind in FaultKind if not self.faults[kind.value]]

    def to_json(self) -> dict[str, Any]:
        """Return the totals as plain values."""
        return {
            "seeds": self.seeds,
            "requests": self.requests,
            "virtual_ms": self.virtual_ms,
            "transactions": dict(self.transactions),
            "faults": dict(self.faults),
            "failures": self.failures,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> Totals:
        """Return the totals of plain values."""
        return Totals(
            values["seeds"],
            values["requests"],
            values["virtual_ms"],
            Counter(values["transactions"]),
            Counter(values["faults"]),
            [(seed, checker, text) for seed, checker, text in values["failures"]],
        )


def run_seeds(seeds: Iterable[int]) -> Totals:
    """Run seeds one after the other."""
    totals = Totals()
    for seed in seeds:
        result = _run_without_collector(seed)
        faults = Counter({kind.value: count for kind, count in result.faults.items()})
        failures = [(seed, *violation) for violation in result.violations[:1]]
        totals.add(
            Totals(1, result.requests, result.virtual_ms, result.transactions, faults, failures)
        )
    return totals


def _run_without_collector(seed: int) -> SeedResult:
    """Run a seed; looking for garbage in between would take a seventh of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return run_seed(seed)
    finally:
        if was_enabled:
            gc.enable()


def fingerprint() -> str:
    """Return what tells apart two versions of the judged code and of its judge."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for name in _JUDGED_AND_JUDGE:
        for path in sorted((package / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class ResultsFile:
    """A file of finished chunks, one JSON line each.

    Args:
        path: where; made if it is not there.
        version: only lines of this fingerprint count.
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        self._version = version

    def read(self) -> tuple[Totals, set[int]]:
        """Return the sum of this version's chunks, and their first seeds."""
        totals, firsts = Totals(), set()
        if self._path.exists():
            for line in self._path.read_text("utf-8").splitlines():
                values = json.loads(line)
                if values["version"] == self._version:
                    totals.add(Totals.from_json(values))
                    firsts.add(values["first_seed"])
        return totals, firsts

    def append(self, first_seed: int, totals: Totals) -> None:
        """Note a finished chunk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        values = {"version": self._version, "first_seed": first_seed, **totals.to_json()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
