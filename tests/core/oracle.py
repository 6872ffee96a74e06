"""The Java client's outcome for every error code at every point, ready to be compared.

`tests/data/handler_oracle.json` holds the outcomes of kafka-clients 4.3.1: 135 codes at 35 points
of the protocol, one fresh producer each, 4,725 in all. `compare` says what is different here.
Differences on purpose stand in `oracle_differences.py`, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.core.oracle_differences import DIFFERENCES, CausedByItsLike, Difference, SameAs

Row = dict[str, Any]
Table = dict[str, Any]
Observe = Callable[[Table, int], Row]

ORACLE = json.loads(
    (Path(__file__).parent.parent / "data" / "handler_oracle.json").read_text(encoding="utf-8")
)
CODES: dict[str, int] = ORACLE["codes"]
TABLES: dict[str, Table] = {table["name"]: table for table in ORACLE["tables"]}
# An application or a broker can see these; the other fields show how Java keeps its books.
MUST_MATCH = frozenset(ORACLE["binding"]["must_match"])


def python_name(java_name: str) -> str:
    """Return this package's name of a Java exception."""
    if java_name == "TimeoutException":
        return "KafkaTimeoutError"  # Python has a TimeoutError of its own
    return java_name.removesuffix("Exception") + "Error"


def _error_in_python(error: Row | None, code: str) -> Row | None:
    if error is None:
        return None
    names = {
        part: ORACLE["code_exceptions"][code] if name == "$CODE" else name
        for part, name in error.items()
    }
    return {part: name and python_name(name) for part, name in names.items()}


def outcomes(table: Table) -> Iterator[tuple[str, Row]]:
    """Yield each code of a table with the fields of Java's outcome that are compared."""
    for row in table["rows"]:
        for code in row["codes"]:
            yield (
                code,
                {
                    name: _error_in_python(value, code) if name.endswith("error") else value
                    for name, value in row.items()
                    if name in MUST_MATCH
                },
            )


def own_values(difference: Difference, outcome: Row) -> Row:
    """Return the fields that differ here from an outcome that a listed difference covers."""
    return {name: _own_value(value, outcome) for name, value in difference.values.items()}


def _own_value(value: Any, outcome: Row) -> Any:
    if isinstance(value, SameAs):
        return outcome[value.field]
    if isinstance(value, CausedByItsLike):
        return {**outcome[value.field], "cause": outcome[value.field]["type"]}
    return value


@dataclass
class Comparison:
    """How a table went.

    Attributes:
        count: how many outcomes were compared.
        wrong: what was seen and should not be, in words.
    """

    count: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(table: Table, observe: Observe) -> Comparison:
    """Compare all codes of a table.

    Args:
        table: one of the oracle's.
        observe: brings a fresh producer to the table's point, gives it the code, and returns the
            fields that it then sees.
    """
    result = Comparison()
    for code, expected in outcomes(table):
        result.count += 1
        changes: Row = {}
        for difference in DIFFERENCES:
            if difference.covers(table["name"], code, expected):
                changes |= own_values(difference, expected)
        seen = observe(table, CODES[code])
        result.wrong += [
            f"{code}: {name} is {seen[name]}, not {value}"
            for name, value in (expected | changes).items()
            if seen[name] != value
        ]
    return result
