"""What the Java client was seen to do with every error code, ready to be compared with.

`tests/data/handler_oracle.json` holds the outcomes of kafka-clients 4.3.1: 135 codes at 35 points
of the protocol, one fresh producer each, 4,725 in all. A test brings this package to each point,
gives it the code, and reports what an application or a broker can see; `compare` says what is
different. Differences on purpose stand in `oracle_differences.py`, and nowhere else: one that is
not listed is reported, and so is one that is listed and no longer there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.core.oracle_differences import DIFFERENCES, Difference, SameAs

Row = dict[str, Any]
Table = dict[str, Any]
Observe = Callable[[Table, int], Row]

ORACLE = json.loads(
    (Path(__file__).parent.parent / "data" / "handler_oracle.json").read_text(encoding="utf-8")
)
CODES: dict[str, int] = ORACLE["codes"]
TABLES: dict[str, Table] = {table["name"]: table for table in ORACLE["tables"]}
PRODUCE_TABLES = {name: table for name, table in TABLES.items() if name.startswith("Produce")}
COORDINATOR_TABLES = {n: table for n, table in TABLES.items() if n not in PRODUCE_TABLES}
MUST_MATCH = frozenset(ORACLE["binding"]["must_match"])

# What the rule "SomethingException is SomethingError" does not cover.
_PYTHON_NAMES = {
    "TimeoutException": "KafkaTimeoutError",
    "OffsetMetadataTooLarge": "OffsetMetadataTooLargeError",
}


def python_name(java_name: str) -> str:
    """Return this package's name of a Java exception."""
    return _PYTHON_NAMES.get(java_name, java_name.removesuffix("Exception") + "Error")


def seen_error(error: BaseException | None) -> Row | None:
    """Describe an error as the oracle does."""
    if error is None:
        return None
    cause = error.__cause__
    return {
        "type": type(error).__name__,
        "cause": None if cause is None else type(cause).__name__,
    }


def seen_result(result: Any) -> str:
    """Describe the result of a waiting call as the oracle does."""
    if not result.is_completed:
        return "pending"
    return "done" if result.error is None else "failed"


def _error_in_python(error: Row | None, code: str) -> Row | None:
    if error is None:
        return None
    names = {
        part: ORACLE["code_exceptions"][code] if name == "$CODE" else name
        for part, name in error.items()
    }
    return {part: name and python_name(name) for part, name in names.items()}


def outcomes(table: Table) -> Iterator[tuple[str, Row]]:
    """Yield each code of a table with the binding fields of its row, errors by our names."""
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


def changes_on_purpose(table_name: str, code: str, expected: Row) -> dict[Difference, Row]:
    """Return the listed differences that hold for an outcome, each with our own values."""
    found = {}
    for difference in DIFFERENCES:
        if difference.covers(table_name, code, expected):
            found[difference] = {
                name: expected[value.field] if isinstance(value, SameAs) else value
                for name, value in difference.values.items()
                if name in expected
            }
    return found


@dataclass
class Comparison:
    """How a table went.

    Attributes:
        count: how many outcomes were compared.
        wrong: what is different and not listed, or listed and not different.
        used: the differences that held.
    """

    count: int = 0
    wrong: list[str] = field(default_factory=list)
    used: set[Difference] = field(default_factory=set)


def compare(table: Table, observe: Observe, fields: frozenset[str] = MUST_MATCH) -> Comparison:
    """Compare all codes of a table.

    Args:
        table: one of the oracle's.
        observe: brings a fresh producer to the table's point, gives it the code, and returns the
            fields that it then sees.
        fields: which fields to compare; all that bind, unless given.
    """
    result = Comparison()
    for code, outcome in outcomes(table):
        result.count += 1
        expected = {name: value for name, value in outcome.items() if name in fields}
        for difference, changes in changes_on_purpose(table["name"], code, outcome).items():
            result.used.add(difference)
            for name, value in changes.items():
                if name in fields and expected[name] == value:
                    result.wrong.append(f"{code}: {name} does not differ any more")
                if name in fields:
                    expected[name] = value
        seen = observe(table, CODES[code])
        result.wrong += [
            f"{code}: {name} is {seen[name]}, not {value}"
            for name, value in expected.items()
            if seen[name] != value
        ]
    return result
