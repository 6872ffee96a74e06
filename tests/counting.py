"""The cost of a call, counted and not timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.opcodes import start_trace, trace_opcodes


def counted(call: Callable[[], object]) -> Counter[str]:
    """Return how many calls of Python and of C functions, and how many bytecodes, a call takes."""
    counts: Counter[str] = Counter()

    def on_call(frame: Any, event: str, argument: Any) -> None:
        counts[event] += 1

    def on_line(frame: Any, event: str, argument: Any) -> Any:
        trace_opcodes(frame, on_line)
        counts[event] += 1
        return on_line

    sys.setprofile(on_call)
    try:
        call()
    finally:
        sys.setprofile(None)
    start_trace(on_line)
    try:
        call()
    finally:
        sys.settrace(None)
    return counts
