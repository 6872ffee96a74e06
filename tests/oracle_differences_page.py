"""Writes docs/oracle-differences.md: `python -m tests.oracle_differences_page`.

The differences stand in tests/core/oracle_differences.py; how many of the observed outcomes each
covers is counted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.core.oracle import CODES, TABLES, outcomes, own_values
from tests.core.oracle_differences import DIFFERENCES, CausedByItsLike, Difference, SameAs

PAGE = Path(__file__).parent.parent / "docs" / "oracle-differences.md"
_MOST_SHOWN = 8

_HEAD = """\
# Answers taken otherwise than by the Java client

The Java client 4.3.1 was brought to {points} points of the protocol (each kind of producer, each
transaction version) and given every error code there: {total:,} outcomes, kept in
`tests/data/handler_oracle.json`. This producer is brought to the same points and compared in what
an application or a broker can see: the state, the errors, the result of the call, the next
request, the epoch. All are equal but for the {listed} below. A difference that is not listed fails
the tests, and so does one that is listed and does not occur.

Generated from `tests/core/oracle_differences.py` by `python -m tests.oracle_differences_page`.
"""


def _codes_by_table(difference: Difference) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, table in TABLES.items():
        for code, outcome in outcomes(table):
            if difference.covers(name, code, outcome):
                found.setdefault(name, []).append(code)
    return found


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, SameAs):
        return f"what `{value.field}` is"
    if isinstance(value, CausedByItsLike):
        return "the same, caused by another one of its class"
    if isinstance(value, Mapping):
        cause = f", caused by {value['cause']}" if value["cause"] else ""
        return f"`{value['type']}`{cause}"
    return f"`{value}`"


def _java_values(difference: Difference, field: str) -> list[str]:
    seen: dict[str, None] = {}
    for name, table in TABLES.items():
        for code, outcome in outcomes(table):
            if difference.covers(name, code, outcome):
                assert own_values(difference, outcome)[field] != outcome[field]
                seen[_value(outcome[field])] = None
    return list(seen)


def _shown(codes: list[str]) -> str:
    if 2 * len(codes) < len(CODES):
        return ", ".join(codes)
    others = [code for code in CODES if code not in codes]
    return f"{len(codes)} codes, all but {', '.join(others)}"


def _section(difference: Difference) -> list[str]:
    lines = [f"## {difference.title}", "", difference.reason, ""]
    for table, codes in _codes_by_table(difference).items():
        lines.append(f"* {table}: {_shown(codes)}")
    lines += ["", "| field | the Java client | here |", "|---|---|---|"]
    for field, value in difference.values.items():
        seen = _java_values(difference, field)
        java = " or ".join(seen) if len(seen) <= _MOST_SHOWN else "the code's own error"
        lines.append(f"| {field} | {java} | {_value(value)} |")
    return [*lines, ""]


def count_listed() -> int:
    """Return how many outcomes differ."""
    return len(
        {
            (name, code)
            for difference in DIFFERENCES
            for name, codes in _codes_by_table(difference).items()
            for code in codes
        }
    )


def render() -> str:
    """Return the page."""
    total = sum(1 for table in TABLES.values() for _ in outcomes(table))
    head = _HEAD.format(points=len(TABLES), total=total, listed=count_listed())
    body = [line for difference in DIFFERENCES for line in _section(difference)]
    return head + "\n" + "\n".join(body).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
