"""The runs that were made: a file of lines, by which a campaign goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from integration.spark_chaos.cluster import ROOT
from integration.spark_chaos.job import Input

RESULTS = Path("results") / "chaos-spark.jsonl"
_JUDGED = ("txnproducer", "integration/spark_chaos")

Outcome = Literal["exact", "refused", "wrong", "failed"]


@dataclass(frozen=True)
class Result:
    """A run.

    Attributes:
        commit: of the code.
        fault: its name.
        writer: the sink's atomicity, "source" or "plain".
        seed: of the run.
        outcome: "exact"; "refused", as it had to be, with every committed row there once; "wrong":
            rows were lost or doubled, or a part of a batch was seen; "failed": the fault could not
            be made, or the query did not end as it had to.
        seconds: it took.
        rows: that should have been there.
        lost: of these.
        doubled: of these.
        torn: how often a part of a batch was seen.
        passes: how often the topic was read while the query ran.
        text: what else there is to say.
        input: where rows came from.
    """

    commit: str
    fault: str
    writer: str
    seed: int
    outcome: Outcome
    seconds: float
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    passes: int = 0
    text: str = ""
    input: Input = "files"

    @property
    def name(self) -> str:
        """Which run it is, of its commit."""
        return name_of(self.fault, self.writer, self.seed, self.input)


def name_of(fault: str, writer: str, seed: int, source: str) -> str:
    """Return the name of a run."""
    name = f"{fault}-{writer}-{seed}"
    return name if source == "files" else f"{name}-{source}"


def append(result: Result, path: Path = RESULTS) -> None:
    """Note a run."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def load(path: Path = RESULTS) -> list[Result]:
    """Return the runs in their order."""
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def present_commit() -> str:
    """Return the last commit that changed the results of a run. One of the docs alone does not."""
    last = ["git", "log", "-1", "--format=%h", "--", *_JUDGED]
    done = subprocess.run(last, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
