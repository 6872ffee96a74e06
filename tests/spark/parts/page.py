"""The generated parts of docs/simulator-parts.md: `python -m tests.spark.parts.page`.



Owns: the tables. Must not know: how a mutant is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.sim.mutation import ROOT
from tests.sim.simulator_page import replaced
from tests.spark.parts.mutants import MISSED, MUTANTS, NAMED
from tests.spark.parts.mutation import known

PAGE = ROOT / "docs" / "simulator-parts.md"


def mutant_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of mutants: the place, the thought, and the seed that finds each."""
    lines = [
        "| mutant | file | what its author thought | found by | seed |",
        "|---|---|---|---|---|",
    ]
    for mutant in MUTANTS:
        row = results[mutant.name]
        names = " with names" if mutant.name in NAMED else ""
        found = f"{row['check']} | {row['seed']}{names} |"
        lines.append(f"| {mutant.name} | `{mutant.file}` | {mutant.why} | {found}")
    return "\n".join(lines)


def missed_list() -> str:
    """Return the mutants that no seed has caught so far."""
    return "\n".join(f"- {mutant.name} in `{mutant.file}`: {mutant.why}" for mutant in MISSED)


def parts() -> dict[str, str]:
    """Return the generated parts of the page."""
    return {"mutants": mutant_table(known()), "missed": missed_list()}


def main() -> None:
    page = PAGE.read_text("utf-8")
    for name, content in parts().items():
        page = replaced(page, name, content)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
