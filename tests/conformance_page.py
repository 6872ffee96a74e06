"""Writes docs/conformance.md from the marks of the tests: `python -m tests.conformance_page`.

What the Java client does stands in tests/data/conformance.toml, by number; a test says in its
marks which numbers it shows. Marks are read from the source, so nothing has to run.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"
CATALOGUE: dict[str, Any] = tomllib.loads(
    (ROOT / "tests" / "data" / "conformance.toml").read_text("utf-8")
)
KINDS = frozenset({"conformance", "quirk", "trap", "regression"})


@dataclass(frozen=True)
class Mark:
    """A mark of one test.

    Attributes:
        kind: which of `KINDS`.
        value: the number or the name in it.
        test: the test, as `file.py::test` or `file.py::Class::test`.
        is_own: whether it stands right on the function, not on a class, module or parameter.
    """

    kind: str
    value: str
    test: str
    is_own: bool


@cache
def read_marks() -> list[Mark]:
    """Return the marks of all tests, in the order of files and lines."""
    marks: list[Mark] = []
    for folder in ("tests", "integration"):
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            marks += _marks_in(tree.body, path.name, _module_marks(tree))
    return marks


def _marks_in(
    body: list[ast.stmt], scope: str, inherited: list[tuple[str, str]]
) -> Iterator[Mark]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            own = [mark for decorator in node.decorator_list for mark in _calls_in(decorator)]
            yield from _marks_in(node.body, f"{scope}::{node.name}", inherited + own)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            test = f"{scope}::{node.name}"
            for kind, value in inherited:
                yield Mark(kind, value, test, is_own=False)
            for decorator in node.decorator_list:
                is_own = _kind_of(decorator) is not None
                for kind, value in _calls_in(decorator):
                    yield Mark(kind, value, test, is_own)


def _module_marks(tree: ast.Module) -> list[tuple[str, str]]:
    return [
        mark
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)
        for mark in _calls_in(node)
    ]


def _calls_in(node: ast.AST) -> list[tuple[str, str]]:
    """Return the marks in an expression, also those of a parameter, as (kind, value)."""
    return [
        (kind, str(ast.literal_eval(argument)))
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and (kind := _kind_of(call)) is not None
        for argument in call.args
    ]


def _kind_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr if node.func.attr in KINDS else None
    return None


def tests_of(marks: list[Mark], kind: str) -> dict[str, list[str]]:
    """Return the tests that show each number of a kind, each test once."""
    tests: dict[str, dict[str, None]] = {}
    for mark in marks:
        if mark.kind == kind:
            tests.setdefault(mark.value, {})[mark.test] = None
    return {value: list(names) for value, names in tests.items()}


def render() -> str:
    """Return the page."""
    marks = read_marks()
    behaviours = CATALOGUE["behaviours"].values()
    same = sum("better" not in behaviour for behaviour in behaviours)
    lines = [
        "# Conformance with the Java client",
        "",
        "This page lists the behaviours of Kafka's Java producer (clients 4.3.1), with the tests",
        "that show each of them here. Where this producer differs on purpose, the page says why.",
        f"Of {len(behaviours)} behaviours {same} are the same, {len(behaviours) - same} are not.",
        "",
        "Generated from `tests/data/conformance.toml` and the marks of the tests by",
        "`python -m tests.conformance_page`. A test fails if the page is out of date, or if an",
        "entry has no test.",
    ]
    shown = tests_of(marks, "conformance")
    for number, title in CATALOGUE["sections"].items():
        lines += _section(number, title, shown)
    return "\n".join([*lines, *_quirks(marks), *_traps(marks), ""])


def _section(number: str, title: str, shown: dict[str, list[str]]) -> list[str]:
    return [
        "",
        f"## {number}. {title}",
        "",
        "| number | the Java client | shown by | here |",
        "|---|---|---|---|",
        *(
            f"| {name} | {behaviour['says']} | {_names(shown.get(name, []))}"
            f" | {_here(behaviour)} |"
            for name, behaviour in CATALOGUE["behaviours"].items()
            if name.startswith(f"{number}.")
        ),
    ]


def _quirks(marks: list[Mark]) -> list[str]:
    shown = tests_of(marks, "quirk")
    return [
        "",
        "## Where this producer decided for itself",
        "",
        "Q: quirks of the Java client. O: seen while comparing answers. D: decided case by case.",
        "",
        "| name | the Java client | here | why | shown by |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {quirk['java']} | {quirk['ours']} | {quirk['why']}"
            f" | {_names(shown.get(name, []))} |"
            for name, quirk in CATALOGUE["quirks"].items()
        ),
    ]


def _traps(marks: list[Mark]) -> list[str]:
    shown = tests_of(marks, "trap")
    return [
        "",
        "## Traps",
        "",
        "Points that a careless port gets wrong.",
        "",
        "| number | trap | shown by |",
        "|---|---|---|",
        *(
            f"| {number} | {trap} | {_names(shown.get(number, []))} |"
            for number, trap in CATALOGUE["traps"].items()
        ),
    ]


def _names(tests: list[str]) -> str:
    return "<br>".join(f"`{test}`" for test in tests)


def _here(behaviour: dict[str, str]) -> str:
    better = behaviour.get("better")
    return "same as Java" if better is None else f"better, {better.rstrip('.')}"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
