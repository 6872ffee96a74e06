"""Every numbered behaviour of the Java client that must be shown has a test that says so.

The numbers stand in `@pytest.mark.conformance("3.06")` and `@pytest.mark.trap(10)`, read here
without running anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# How many behaviours each part has: state machine, API, coordinator requests.
REQUIRED = {1: 27, 2: 40, 3: 50}
REQUIRED_TRAPS = {*range(1, 11), *range(17, 24), 36, 37}


def marks(name: str) -> Iterator[str]:
    for folder in ("tests", "integration"):
        for path in (ROOT / folder).rglob("test_*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                # On a function, a class, a parameter or a whole module.
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == name
                ):
                    yield from (str(ast.literal_eval(argument)) for argument in node.args)


def test_every_behaviour_of_the_first_three_parts_has_a_test():
    shown = set(marks("conformance"))
    wanted = {
        f"{part}.{number:02d}"
        for part, count in REQUIRED.items()
        for number in range(1, count + 1)
    }
    assert sorted(wanted - shown) == []


def test_every_required_trap_has_a_test():
    shown = {int(number) for number in marks("trap")}
    assert sorted(REQUIRED_TRAPS - shown) == []


def test_a_mark_names_a_behaviour_that_exists():
    sizes = {**REQUIRED, 4: 61, 5: 43, 6: 24}
    known = {f"{part}.{n:02d}" for part, count in sizes.items() for n in range(1, count + 1)}
    assert sorted(set(marks("conformance")) - known) == []
