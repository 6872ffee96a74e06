"""The cases that `make test` plays of the long lists: a part, which the commit chooses.

Usually it is a third. Pytest by hand plays all, and so do `make core-mutants`, `make interrupts`
and `make integration-all`. On a slow machine `.ci/run` plays a third of all tests, and
all of those with the marker `each_time`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def of_this_turn(cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases to play: all, or one of so many parts as `make test` asks for.

    The same commit gives the same cases. So the workers of a run agree on them, and a failure can
    be repeated.
    """
    return _part(cases, "TXNPRODUCER_ONE_OF")


def leave_out(
    config: pytest.Config, items: list[pytest.Item], left: Sequence[pytest.Item]
) -> None:
    """Take tests out of those that are collected."""
    leaving = set(left)
    config.hook.pytest_deselected(items=[item for item in items if item in leaving])
    items[:] = [item for item in items if item not in leaving]


def leave_to_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a part of all tests, if there is so little time that `.ci/run` asks for one.

    A test with the marker `each_time` is never left: it is one of a few that were chosen already.
    """
    others = [item for item in items if item.get_closest_marker("each_time") is None]
    played = set(_part(others, "TXNPRODUCER_SHARE"))
    leave_out(config, items, [item for item in others if item not in played])


def _part(cases: Sequence[Case], variable: str) -> Sequence[Case]:
    # No part of a short list is empty: a test without a case would pass.
    parts = max(1, min(int(os.environ.get(variable, 1)), len(cases)))
    return cases[_commit_time() % parts :: parts]


@cache
def _commit_time() -> int:
    """Return when the newest commit was made, in seconds; 0 outside a clone."""
    try:
        done = subprocess.run(
            ["git", "log", "-1", "--format=%ct"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return 0
    return int(done.stdout or 0)
