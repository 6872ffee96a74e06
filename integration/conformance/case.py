"""The register of cases.

Owns: `Case`, the decorator `case` that makes one of a function, `play`.
Rules: a case is named by its function, and the name is a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from integration.conformance.stage import Stage
from integration.conformance.target import Target

Script = Callable[[Stage], None]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: its function's.
        group: the module that it stands in.
        script: what to do.
        only: the transaction version that it makes sense for; None for both.
        nodes: how many brokers it needs.
    """

    name: str
    group: str
    script: Script
    only: int | None
    nodes: int

    def is_for(self, transaction_version: int, nodes: int | None = None) -> bool:
        """Tell whether it makes sense for a version of transactions (on so many brokers)."""
        return self.only in (None, transaction_version) and nodes in (None, self.nodes)


CASES: dict[str, Case] = {}


def case(*, only: int | None = None, nodes: int = 1) -> Callable[[Script], Script]:
    """Make a case of a function."""

    def register(script: Script) -> Script:
        name = script.__name__
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, script.__module__.rpartition(".")[2], script, only, nodes)
        return script

    return register


def play(case: Case, target: Target) -> list[str]:
    """Play a case on a broker, and return the transcript."""
    stage = Stage(target, case.name)
    case.script(stage)
    return stage.transcript.lines
