"""The figures of the benchmark: how long batches took, and the form in which that is kept.

Must not know: how it was measured, and what is made of it.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from integration.benchmarks_spark.works import Frame, Target


@dataclass(frozen=True)
class Measured:
    """The batches of a frame by a writer.

    Attributes:
        frame: that was written.
        writer: by its name.
        rounds: milliseconds of each batch, by round.
        notes: why rounds are missing.
    """

    frame: Frame
    writer: str
    rounds: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """Milliseconds of a batch: the median of all rounds."""
        return statistics.median(itertools.chain.from_iterable(self.rounds))


@dataclass(frozen=True)
class Part:
    """A part of the benchmark on one version of Spark.

    Attributes:
        name: of the part.
        spark: the version.
        about: commit, machine, rounds, load.
        found: of each frame and writer, in their order.
        held: megabytes of a worker by atomicity, where memory was measured.
    """

    name: str
    spark: str
    about: dict[str, Any]
    found: list[Measured] = field(default_factory=list)
    held: dict[str, list[float]] = field(default_factory=dict)

    @property
    def writers(self) -> list[str]:
        """Those that have figures, in their order."""
        return list(dict.fromkeys(each.writer for each in self.found if each.rounds))

    def ms(self, frame: Frame, writer: str) -> float | None:
        """Return the milliseconds of a batch, or None if they were not measured."""
        for each in self.found:
            if (each.frame, each.writer) == (frame, writer) and each.rounds:
                return each.ms
        return None

    def ratio(self, target: Target) -> float | None:
        """Return the ratio of a target, or None if it was not measured."""
        ours = self.ms(target.frame, target.writer)
        theirs = self.ms(target.frame, target.beside)
        if ours is None or theirs is None:
            return None
        return ours / theirs if target.is_of_time else theirs / ours

    def to_line(self) -> str:
        """Return the part as a line of JSON."""
        return json.dumps(asdict(self))


def read_parts(lines: Iterable[str]) -> dict[tuple[str, str], Part]:
    """Return the last one of each part, by version of Spark and name."""
    parts = {}
    for line in lines:
        kept = json.loads(line)
        found = [Measured(**{**each, "frame": Frame(**each["frame"])}) for each in kept["found"]]
        parts[kept["spark"], kept["name"]] = Part(**{**kept, "found": found})
    return parts


def keep(part: Part, path: Path) -> None:
    """Add a part to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(part.to_line() + "\n")
