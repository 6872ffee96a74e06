"""The generated parts of docs/stack-mutants.md.

`python -m tests.sim.stack_mutants_page` writes them.

Owns: the tables. Must not know: how a mutant is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sim.mutants import Mutant
from tests.sim.mutation import STACK_DRAWN, drawn_mutants
from tests.sim.simulator_page import replaced
from tests.sim.stack_mutants import EQUIVALENT, FEARED, MUTANTS
from tests.sim.stack_mutation import known

PAGE = Path(__file__).parent.parent.parent / "docs" / "stack-mutants.md"


def mutant_table(mutants: tuple[Mutant, ...], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of mutants: the place, the thought, and the seed or test that finds each."""
    lines = [
        "| mutant | file | what its author thought | found by | seed | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for mutant in mutants:
        row = results[mutant.name]
        found = (
            f"`{row['test']}` | |"
            if "test" in row
            else f"{row['check']} | {row['seed']} | {max(row['seconds'], 0.1)} |"
        )
        name = mutant.name.replace("__", r"\_\_")  # Markdown would make it bold
        lines.append(f"| {name} | `{mutant.file}` | {mutant.why} | {found}")
    return "\n".join(lines)


def left_out_list() -> str:
    """Return the drawn mutants that change nothing, with the reasons."""
    return "\n".join(f"- {name}: {reason}" for name, reason in EQUIVALENT.items())


def parts() -> dict[str, str]:
    """Return the generated parts of the page."""
    results = known()
    return {
        "mends": mutant_table(MUTANTS, results),
        "feared": mutant_table(FEARED, results),
        "drawn": mutant_table(drawn_mutants(STACK_DRAWN), results),
        "left out": left_out_list(),
    }


def main() -> None:
    page = PAGE.read_text("utf-8")
    for name, content in parts().items():
        page = replaced(page, name, content)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
