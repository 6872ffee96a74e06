"""The cases that `make test` plays of the long lists: a part, which the commit chooses.

Usually it is a third, on a slow machine a ninth. Pytest by hand plays all, and so do
`make core-mutants`, `make interrupts` and `make integration-all`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")


def of_this_turn(cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases to play: all, or one of so many parts as `make test` asks for.

    The same commit gives the same cases. So the workers of a run agree on them, and a failure can
    be repeated.
    """
    # No part of a short list is empty: a test without a case would pass.
    parts = max(1, min(int(os.environ.get("TXNPRODUCER_ONE_OF", 1)), len(cases)))
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
