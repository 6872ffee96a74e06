"""The generated parts of docs/simulator-parts.md: `python -m tests.spark.parts.page`.



Owns: the table, the figures. Must not know: how a mutant is found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.sim.mutation import ROOT
from tests.sim.simulator_page import replaced
from tests.spark.parts.mutants import MUTANTS
from tests.spark.parts.mutation import known

PAGE = ROOT / "docs" / "simulator-parts.md"
RUNS = ROOT / "tests" / "data" / "parts_runs.json"


def mutant_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of mutants: the place, the thought, and the seed that finds each."""
    lines = [
        "| mutant | file | what its author thought | found by | seed |",
        "|---|---|---|---|---|",
    ]
    for mutant in MUTANTS:
        row = results[mutant.name]
        found = f"{row['check']} | {row['seed']} |"
        lines.append(f"| {mutant.name} | `{mutant.file}` | {mutant.why} | {found}")
    return "\n".join(lines)


def run_table() -> str:
    """Return the figures of the campaign."""
    runs = json.loads(RUNS.read_text("utf-8"))
    lines = [
        "| | |",
        "|---|---|",
        f"| violations | **{runs['violations']}** |",
        f"| seeds | {runs['seeds']:,}, from {runs['first']:,} |",
        f"| requests | {runs['requests']:,} |",
        f"| virtual time | {runs['virtual_s'] / 3600:.1f} hours |",
        "",
        "How often each thing happened, faults and errors:",
        "",
        "| | times |",
        "|---|---|",
    ]
    return "\n".join([*lines, *(f"| {name} | {count:,} |" for name, count in runs["counts"])])


def parts() -> dict[str, str]:
    """Return the generated parts of the page."""
    return {"mutants": mutant_table(known()), "runs": run_table()}


def main() -> None:
    page = PAGE.read_text("utf-8")
    for name, content in parts().items():
        page = replaced(page, name, content)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
