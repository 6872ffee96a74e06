"""The generated parts of docs/simulator.md and docs/simulator-bugs.md.

`python -m tests.sim.simulator_page` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sim.mutation import all_mutants, known
from txnproducer.sim import FaultKind

PAGE = Path(__file__).parent.parent.parent / "docs" / "simulator.md"
MUTANTS_PAGE = PAGE.with_name("simulator-bugs.md")


def mutant_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of mutants: the thought, the seeds needed, the checker that caught it."""
    lines = [
        "| mutant | what its author thought | seeds needed | caught by |",
        "|---|---|---|---|",
    ]
    for mutant in all_mutants():
        result = results.get(mutant.name)
        found = "| |" if result is None else f"{_seeds(result)} | {result['checker']} |"
        lines.append(f"| {mutant.name} | {mutant.why} | {found}")
    return "\n".join(lines)


def _seeds(result: Mapping[str, Any]) -> str:
    return f"{result['seeds_needed']} {result['kind']}".rstrip()


def fault_list() -> str:
    """Return the kinds of faults as a list."""
    return "\n".join(f"* {kind.value}" for kind in FaultKind)


def replaced(page: str, name: str, content: str) -> str:
    """Return a page with one generated part replaced."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)"
    return re.sub(pattern, lambda m: f"{m[1]}{content}\n{m[2]}", page, flags=re.DOTALL)


def main() -> None:
    PAGE.write_text(replaced(PAGE.read_text("utf-8"), "faults", fault_list()), "utf-8")
    page = replaced(MUTANTS_PAGE.read_text("utf-8"), "mutants", mutant_table(known()))
    MUTANTS_PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
