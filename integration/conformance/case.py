"""The register of cases.

Owns: `Case`, the decorators `case` and `cases` that make one, or several, of a function, `play`.
Rules: a case is named by its function, or by its row of a table. The name is a sentence that says
what the case shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVarTuple

from integration.conformance.stage import Stage
from integration.conformance.target import Target

Script = Callable[[Stage], None]
Row = TypeVarTuple("Row")
RowScript: TypeAlias = Callable[[Stage, *Row], None]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: its function's, or its row's.
        group: the module that it stands in.
        script: what to do.
        only: the transaction version that it makes sense for; None for both.
        nodes: how many brokers it needs.
        has_authorizer: whether access has to be denied in it.
    """

    name: str
    group: str
    script: Script
    only: int | None
    nodes: int
    has_authorizer: bool

    def is_for(self, transaction_version: int) -> bool:
        """Return whether it makes sense for a version of transactions."""
        return self.only in (None, transaction_version)

    @property
    def cluster(self) -> tuple[int, bool]:
        """The kind of cluster it needs: how many brokers, and whether with an authorizer."""
        return self.nodes, self.has_authorizer


CASES: dict[str, Case] = {}


def case(
    *,
    only: int | None = None,
    nodes: int = 1,
    has_authorizer: bool = False,
    is_v2: bool = True,
) -> Callable[[Script], Script]:
    """Make a case of a function. See `cases`."""

    def register(script: Script) -> Script:
        table: dict[str, tuple[()]] = {script.__name__: ()}
        register_rows = cases(
            table, only=only, nodes=nodes, has_authorizer=has_authorizer, is_v2=is_v2
        )
        return register_rows(script)

    return register


def cases(
    rows: Mapping[str, tuple[*Row]],
    *,
    only: int | None = None,
    nodes: int = 1,
    has_authorizer: bool = False,
    is_v2: bool = True,
) -> Callable[[RowScript[*Row]], RowScript[*Row]]:
    """Make cases of a function, one for each row: the case's name, and the other arguments.

    Args:
        rows: the other arguments of each case, by its name.
        only: see `Case`.
        nodes: see `Case`.
        has_authorizer: see `Case`.
        is_v2: False for a client that begins with transactions v1, also on a cluster of v2.
    """

    def register(script: RowScript[*Row]) -> RowScript[*Row]:
        group = script.__module__.rpartition(".")[2]
        for name, row in rows.items():
            if name in CASES:
                raise ValueError(f"two cases are called {name}")

            def play_row(stage: Stage, row: tuple[*Row] = row) -> None:
                stage.is_v2 = stage.is_v2 and is_v2
                script(stage, *row)

            CASES[name] = Case(name, group, play_row, only, nodes, has_authorizer)
        return script

    return register


def play(case: Case, target: Target, attempt: int = 0) -> list[str]:
    """Play a case on a broker, and return the transcript.

    Args:
        case: it.
        target: the broker.
        attempt: another number for each time on the same broker, whose names it keeps apart.
    """
    stage = Stage(target, f"{case.name}-{attempt}" if attempt else case.name)
    case.script(stage)
    return stage.transcript.lines
