"""The results: the runs of each work and peer, and the figures made of them.

Owns: rates, medians, percentiles, and the form in which all is kept. Must not know: how it is
printed or drawn, and what it should have been.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from integration.benchmarks.job import Told
from integration.benchmarks.works import Work


@dataclass
class Result:
    """The runs of a peer in a work with a table of settings.

    Attributes:
        table: by its name.
        work: what was written.
        peer: by its name.
        runs: those that ended well; the figures need one at least.
        failures: what went wrong with the others, each with its round.
        left_out: why it could not take part at all, or nothing.
    """

    table: str
    work: Work
    peer: str
    runs: list[Told]
    failures: list[str] = field(default_factory=list)
    left_out: str = ""

    @property
    def rates(self) -> list[float]:
        """Records a second of each run, or transactions where those are short."""
        per = self.work.records if self.work.is_long else 1
        return [run["transactions"] * per / run["seconds"] for run in self.runs]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpus(self) -> list[float]:
        """CPU seconds of the client for a million records, of each run."""
        records = self.work.records
        return [run["cpu"] * 1e6 / (run["transactions"] * records) for run in self.runs]

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpus)

    def busy(self, group: str) -> float | None:
        """CPU seconds of a group of threads for each second, or None if nobody told."""
        told = [(run.get("busy", {}), run["seconds"]) for run in self.runs]
        shares = [busy[group] / seconds for busy, seconds in told if busy]
        return statistics.median(shares) if shares else None

    def latency(self, percent: float) -> float:
        """Milliseconds of a whole transaction, of all runs together."""
        return percentile((ms for run in self.runs for ms in run["latencies"]), percent)

    def commit(self, percent: float) -> float:
        """Milliseconds of a commit, likewise."""
        return percentile((ms for run in self.runs for ms in run["commits"]), percent)


@dataclass
class Results:
    """Everything of one run of the suite.

    Attributes:
        about: commit, versions, machine, settings, load.
        found: the results, in the order of the run, also of peers that have no runs.
    """

    about: dict[str, Any]
    found: list[Result] = field(default_factory=list)

    def get(self, table: str, work: str, peer: str) -> Result | None:
        for each in self.found:
            if (each.table, each.work.name, each.peer) == (table, work, peer):
                return each
        return None

    def of(self, table: str, work: str) -> list[Result]:
        return [each for each in self.found if (each.table, each.work.name) == (table, work)]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"about": self.about, "found": [asdict(each) for each in self.found]}
        path.write_text(json.dumps(kept), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = [Result(**{**each, "work": _work(each["work"])}) for each in kept["found"]]
        return cls(kept["about"], found)


def _work(kept: dict[str, Any]) -> Work:
    # JSON has no tuples.
    brief = {table: tuple(peers) for table, peers in kept["brief"].items()}
    tuples = {"tables": tuple(kept["tables"]), "peers": tuple(kept["peers"])}
    return Work(**{**kept, **tuples, "brief": brief})


def percentile(numbers: Iterable[float], percent: float) -> float:
    """Return the smallest number that so many percent of them do not exceed."""
    ordered = sorted(numbers)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
