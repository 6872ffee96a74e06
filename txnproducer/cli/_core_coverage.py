"""The share of the core's branches that seeds reach.

Why it exists: a simulator proves nothing about code that it does not reach.
Owns: running seeds under `coverage`, reading its numbers. Must not know: the campaign.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from txnproducer.cli._missing_package import MissingPackageError

_CORE = Path(__file__).parent.parent / "_core"
_MOST_LINES_SHOWN = 12
# Raised only for a defect of the core or a wrong argument, so a correct run never gets there.
_GUARD = r"^\s*raise (IllegalStateError|ValueError)\b"


@dataclass(frozen=True)
class Reached:
    """The lines and branches of the core that seeds reached.

    Attributes:
        lines: the number reached, and the number of all.
        branches: the number reached, and the number of all.
        unreached: for each file the lines with branches that were never taken; a line occurs once
            for each such branch.
    """

    lines: tuple[int, int]
    branches: tuple[int, int]
    unreached: dict[str, list[int]]

    @property
    def branches_percent(self) -> float:
        """The share of branches that were reached."""
        return _percent(self.branches)

    def describe(self) -> str:
        """Return a text for people, with the sums and the files that have unreached branches."""
        lines = [f"{_of(self.branches, 'branches')}; {_of(self.lines, 'lines')}"]
        for name, places in sorted(self.unreached.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {name}: {len(places)} not taken, from line {_shortened(places)}")
        return "\n".join(lines)

    @staticmethod
    def from_json(report: dict[str, Any]) -> Reached:
        """Return the numbers of a report of `coverage json`."""
        sums = report["totals"]
        unreached = {
            Path(name).name: [start for start, _ in values["missing_branches"]]
            for name, values in report["files"].items()
            if values["missing_branches"]
        }
        return Reached(
            (sums["covered_lines"], sums["num_statements"]),
            (sums["covered_branches"], sums["num_branches"]),
            unreached,
        )


def require_coverage() -> None:
    """Check before the run whether branches can be counted.

    Raises:
        MissingPackageError: The package is not installed.
    """
    # Before the run, which may take hours: the package would be missing only at its end.
    if importlib.util.find_spec("coverage") is None:
        raise MissingPackageError("--coverage", "coverage", "coverage")


def measure(first: int, count: int, jobs: int = 1) -> Reached:
    """Run seeds again in interpreters of their own, and count the branches that they reach.

    Lines that run when a module is imported count as well, so the interpreters are new ones.
    Guards are left out: branches that only raise `IllegalStateError` or `ValueError`.

    Args:
        first: the first seed.
        count: the number of seeds.
        jobs: the number of interpreters.

    Raises:
        click.ClickException: The tool failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, settings, report = (
            folder / "seeds.py",
            folder / "settings.ini",
            folder / "out.json",
        )
        script.write_text(
            "import sys\n"
            "from txnproducer.sim.campaign import run_seeds\n"
            f"run_seeds(range({first} + int(sys.argv[1]), {first + count}, {jobs}))\n",
            encoding="utf-8",
        )
        # A configuration of its own: the working directory may have one for something else.
        settings.write_text(
            f"[run]\nbranch = true\nparallel = true\nsource = {_CORE}\ndata_file = {folder}/data\n"
            f"[report]\nexclude_also =\n    if TYPE_CHECKING\n    ^\\s*\\.\\.\\.$\n    {_GUARD}\n",
            encoding="utf-8",
        )
        rcfile = ("--rcfile", str(settings))
        # Threads are enough, since each of them only waits for its interpreter.
        with ThreadPoolExecutor(jobs) as pool:
            for done in [
                pool.submit(_run_tool, "run", *rcfile, str(script), str(number))
                for number in range(jobs)
            ]:
                # Raises the error of its interpreter here; the pool alone would pass over it.
                done.result()
        # `parallel` in the settings has given each interpreter a file of its own.
        _run_tool("combine", *rcfile, "-q", str(folder))
        _run_tool("json", *rcfile, "-q", "-o", str(report))
        return Reached.from_json(json.loads(report.read_text("utf-8")))


def _run_tool(*arguments: str) -> None:
    command = [sys.executable, "-m", "coverage", *arguments]
    # Branches of compiled code cannot be counted.
    environment = {**os.environ, "TXNPRODUCER_IMPL": "python"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise click.ClickException(f"--coverage failed: {(done.stderr or done.stdout).strip()}")


def _of(numbers: tuple[int, int], what: str) -> str:
    return f"{numbers[0]:,} of {numbers[1]:,} {what}, {_percent(numbers):.1f} %"


def _percent(numbers: tuple[int, int]) -> float:
    return 100 * numbers[0] / numbers[1] if numbers[1] else 100.0


def _shortened(places: list[int]) -> str:
    lines = sorted(set(places))
    more = len(lines) - _MOST_LINES_SHOWN
    return ", ".join(map(str, lines[:_MOST_LINES_SHOWN])) + (
        f" and {more} more" if more > 0 else ""
    )
