"""Many seeds: the sum of their results, and the file from which a long campaign continues.

Why it exists: a campaign of a hundred million requests takes longer than one evening.
Owns: `Totals`, their lines in a results file, the fingerprint of the code that was run. Must not
know: the distribution of seeds over processors, and any clock (the command has both).

Rules:
* A seed is counted once, even if lines of the file overlap.
* An exception of the judge is a failure of that seed and does not end the campaign.
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

# All that the simulator imports from this package, directly or indirectly.
_JUDGED_AND_JUDGE = (
    "_core/**/*.py",
    "_broker/**/*.py",
    "_protocol/**/*.py",
    "_record/**/*.py",
    "_sync/held_logs.py",
    "config/**/*.py",
    "sim/*.py",
    "sim/apps/*.py",
    "sim/judges/*.py",
    "sim/world/*.py",
    "errors/**/*.py",
    "records.py",
    "serializers.py",
)
# The other sources of the compiled parts.
_COMPILED_FROM = ("../compiled/**/*.pxd", "_record/*.pyx", "_record/*.h")
# Of each line in a results file, whatever its version.
_KEYS = {"version", "first_seed", "seed_count"}
# With this many seeds, a kind of fault that never took effect is a gap in the simulation.
SEEDS_THAT_SHOW_ALL = 1000


@dataclass(slots=True)
class Totals:
    """The sum of the results of some seeds.

    Attributes:
        seeds: how many seeds were run.
        requests: how many requests producers sent.
        virtual_ms: the virtual time of all runs.
        transactions: how many there were, by claim.
        faults: how often each kind took effect, by its name.
        failures: seed, checker and text of each seed that failed.
        seconds: the processor time of all runs.
    """

    seeds: int = 0
    requests: int = 0
    virtual_ms: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Totals) -> None:
        """Add the results of other seeds."""
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
        # The judge can break, too, and one bad seed must not end the others' campaign.
        except Exception as error:  # noqa: BLE001 - every exception is a failure of its seed
            totals.add(Totals(1, failures=[(seed, "crash", _where_and_what(error))]))
            continue
        faults = Counter({kind.value: count for kind, count in result.faults.items()})
        # A run stops at its first violation. Others of the same moment are mostly its
        # consequences.
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
    """Run a seed without garbage collection, which would take a seventh of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return run_seed(seed)
    finally:
        if was_enabled:
            gc.enable()


def fingerprint() -> str:
    """Return an id of the version of core and judge, and of the way in which the code runs."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in [*judged_files(), *_files(_COMPILED_FROM)]:
        content = path.read_bytes()
        # The name and the size as well: contents that move between files make another version.
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"{digest.hexdigest()[:12]}-{who_runs()}"


def who_runs() -> str:
    """Return how the core runs: interpreted, compiled for users, or compiled by mypyc."""
    # TXNPRODUCER_IMPL does not show whether mypyc compiled the core: only the loaded file does.
    is_source = str(sender.__file__).endswith(".py")
    return "mypyc" if IMPL == "python" and not is_source else IMPL


def judged_files() -> list[Path]:
    """Return the files of the version: if one changes, earlier results do not count any more."""
    return _files(_JUDGED_AND_JUDGE)


def _files(patterns: Iterable[str]) -> list[Path]:
    package = Path(__file__).parent.parent
    return sorted(path for pattern in patterns for path in package.glob(pattern))


@dataclass(slots=True)
class Noted:
    """The contents of a results file.

    Attributes:
        totals: the sum of this version's chunks.
        seeds: the seeds of these chunks.
        other_versions: the number of lines of other versions, which are left out.
        unreadable: the number of incomplete lines, which are left out.
    """

    totals: Totals = field(default_factory=Totals)
    seeds: set[int] = field(default_factory=set)
    other_versions: int = 0
    unreadable: int = 0

    @property
    def is_of_other_kind(self) -> bool:
        """Whether the file is not empty, and none of its lines is of a campaign."""
        return bool(self.unreadable) and not self.seeds and not self.other_versions


class ResultsFile:
    """A file of finished chunks, one JSON line each.

    Args:
        path: the path. The file is created if it does not exist.
        version: the fingerprint. Only lines with it count.
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        self._version = version

    def read(self) -> Noted:
        """Return the results of earlier campaigns.

        A killed process may have left an incomplete line. Two processes that ran at the same time
        may both have run a seed: the first line with it counts.
        """
        noted = Noted()
        if not self._path.exists():
            return noted
        for line in self._path.read_text("utf-8", errors="replace").splitlines():
            values = _parse(line)
            if values is None:
                noted.unreadable += 1
            # Another version makes other runs of the same seeds.
            elif values["version"] != self._version:
                noted.other_versions += 1
            else:
                _count(noted, values)
        return noted

    def append(self, seeds: range, totals: Totals) -> None:
        """Append a finished chunk on a line of its own, even after an incomplete line."""
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
    return values if isinstance(values, dict) and values.keys() >= _KEYS else None


def _count(noted: Noted, values: dict[str, Any]) -> None:
    seeds = range(values["first_seed"], values["first_seed"] + values["seed_count"])
    # Two processes may have run the same chunk at the same time.
    if noted.seeds.isdisjoint(seeds):
        noted.seeds.update(seeds)
        noted.totals.add(Totals.from_json(values))


class SeedsToRun:
    """Hands out the seeds that were not run yet, in ascending order.

    Args:
        first: the first seed.
        done: the seeds to leave out.
    """

    def __init__(self, first: int, done: set[int]) -> None:
        self._next = first
        self._done = done

    def take(self, most: int) -> range:
        """Return the next range of consecutive seeds: at least one, at most the given number."""
        while self._next in self._done:
            self._next += 1
        first = self._next
        while self._next - first < most and self._next not in self._done:
            self._next += 1
        return range(first, self._next)
