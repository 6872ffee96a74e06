"""Many seeds: what they showed in sum, and the file that a long campaign goes on from.

Why it exists: a hundred million requests do not fit into one evening.
Owns: `Totals`, their lines in a results file, the fingerprint that tells which code was run. Must
not know: how seeds are spread over processors, and any clock (the command has both).

Rules:
* A seed is counted once, whatever the lines of the file overlap in.
* What breaks the judge is a failure of that seed, not the end of the campaign.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txnproducer._core.sending import sender
from txnproducer._record.implementation import IMPL
from txnproducer.sim.simulator import SeedResult, run_seed
from txnproducer.sim.world.faults import FaultKind

# All that the simulator imports of this package, and what that imports in its turn.
_JUDGED_AND_JUDGE = (
    "_core/**/*.py",
    "_broker/**/*.py",
    "_protocol/**/*.py",
    "_record/**/*.py",
    "config/**/*.py",
    "sim/**/*.py",
    "errors/**/*.py",
    "records.py",
)
# What the compiled parts are made of besides.
_COMPILED_FROM = ("../compiled/**/*.pxd", "_record/*.pyx", "_record/*.h")
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
        seconds: that processes spent on it, in sum.
    """

    seeds: int = 0
    requests: int = 0
    virtual_ms: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Totals) -> None:
        """Add what other seeds showed."""
        self.seeds += other.seeds
        self.requests += other.requests
        self.virtual_ms += other.virtual_ms
        self.transactions.update(other.transactions)
        self.faults.update(other.faults)
        self.failures += other.failures
        self.seconds += other.seconds

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
            "seconds": round(self.seconds, 3),
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
            values["seconds"],
        )


def run_seeds(seeds: Iterable[int]) -> Totals:
    """Run seeds one after the other."""
    totals = Totals()
    for seed in seeds:
        try:
            result = _run_without_collector(seed)
        except Exception as error:  # noqa: BLE001 - it has to be told with its seed, whatever it is
            totals.add(Totals(1, failures=[(seed, "crash", _where_and_what(error))]))
            continue
        faults = Counter({kind.value: count for kind, count in result.faults.items()})
        failures = [(seed, *violation) for violation in result.violations[:1]]
        totals.add(
            Totals(1, result.requests, result.virtual_ms, result.transactions, faults, failures)
        )
    return totals


def _where_and_what(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = "".join(traceback.format_exception_only(error)).strip()
    return f"{what} ({Path(frame.filename).name}, line {frame.lineno})"


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
    """Return what tells apart two versions of the judged code and of its judge, and who ran it."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in [*judged_files(), *_files(_COMPILED_FROM)]:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"{digest.hexdigest()[:12]}-{who_runs()}"


def who_runs() -> str:
    """Return how the judged code runs: interpreted, compiled for users, or compiled by mypyc."""
    is_source = str(sender.__file__).endswith(".py")
    return "mypyc" if IMPL == "python" and not is_source else IMPL


def judged_files() -> list[Path]:
    """Return the files whose change makes earlier results those of another version."""
    return _files(_JUDGED_AND_JUDGE)


def _files(patterns: Iterable[str]) -> list[Path]:
    package = Path(__file__).parent.parent
    return sorted(path for pattern in patterns for path in package.glob(pattern))


@dataclass(slots=True)
class Noted:
    """What a results file holds.

    Attributes:
        totals: the sum of this version's chunks.
        seeds: that they ran.
        other_versions: how many lines are of other versions, and left out.
        unreadable: how many lines are torn, and left out.
    """

    totals: Totals = field(default_factory=Totals)
    seeds: set[int] = field(default_factory=set)
    other_versions: int = 0
    unreadable: int = 0


class ResultsFile:
    """A file of finished chunks, one JSON line each.

    Args:
        path: where; made if it is not there.
        version: only lines of this fingerprint count.
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        self._version = version

    def read(self) -> Noted:
        """Return what was done before.

        A process that was killed may have left half a line behind. And two that ran at the same
        time may both have run a seed: the first line with it counts.
        """
        noted = Noted()
        if not self._path.exists():
            return noted
        for line in self._path.read_text("utf-8", errors="replace").splitlines():
            values = _parse(line)
            if values is None:
                noted.unreadable += 1
            elif values["version"] != self._version:
                noted.other_versions += 1
            else:
                _count(noted, values)
        return noted

    def append(self, seeds: range, totals: Totals) -> None:
        """Note a finished chunk, on a line of its own even behind half a line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        place = {"version": self._version, "first_seed": seeds.start, "seed_count": len(seeds)}
        line = json.dumps(place | totals.to_json()).encode() + b"\n"
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and "version" in values else None


def _count(noted: Noted, values: dict[str, Any]) -> None:
    seeds = range(values["first_seed"], values["first_seed"] + values["seed_count"])
    if noted.seeds.isdisjoint(seeds):
        noted.seeds.update(seeds)
        noted.totals.add(Totals.from_json(values))


class SeedsToRun:
    """Hands out the seeds that were not run yet, in ascending order.

    Args:
        first: where to begin.
        done: seeds to leave out.
    """

    def __init__(self, first: int, done: set[int]) -> None:
        self._next = first
        self._done = done

    def take(self, most: int) -> range:
        """Return the next seeds side by side: at least one, and no more than asked for."""
        while self._next in self._done:
            self._next += 1
        first = self._next
        while self._next - first < most and self._next not in self._done:
            self._next += 1
        return range(first, self._next)
