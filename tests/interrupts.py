"""An exception at a chosen point of a call, as a signal handler raises it: wherever CPython asks.

CPython looks for signals at few bytecodes (`Python/ceval.c`, `Python/bytecodes.c`, 3.11 to 3.14):

* RESUME, where a function begins, or goes on after a `yield`;
* every jump backwards;
* a call, when what was called has returned, unless that was Python code run in the same loop;
* the writing of an object as text (`PyObject_Str`, `PyObject_Repr`), as in an f-string.

On 3.14 the `__enter__` of a `with` statement is such a call. If it is written in C, and the signal
comes when it has returned, its `__exit__` is not called (gh-148874). No point here stands for
that: a trace could raise only within the block. `_sync` sees to the core's lock, and real
signals try it.

Between two of these no signal comes, so that plain stores that follow each other belong together.
`is_checked` is this rule; a test holds it to real signals. `Interrupter` raises at the n-th of the
points that a call passes, on the calling thread alone.
"""

from __future__ import annotations

import dis
import gc
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import txnproducer
from tests.opcodes import start_trace, trace_opcodes

PACKAGE = str(Path(txnproducer.__file__).parent) + os.sep
# PRECALL is of 3.11, where it makes some calls itself; CALL_KW is of 3.13.
CALLING = ("CALL", "PRECALL", "CALL_FUNCTION_EX", "CALL_KW")
FORMATTING = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
# `make interrupts` tries every point in every way; else one point of each line is tried once.
IS_THOROUGH = bool(os.environ.get("TXNPRODUCER_INTERRUPTS"))
# A call of these is one of C code that calls Python: `type.__call__`, `any`, `sorted` ...
CALLED_BY_C = ("__init__", "__new__", "<genexpr>", "<lambda>")


class Interrupt(BaseException):
    """The exception that stands for one from a signal handler."""


class Point(NamedTuple):
    """A place at which a signal is delivered.

    Attributes:
        name: the function's.
        line: of the source.
        offset: of the bytecode.
        kind: "entry" of a function, "inside" it, or "return" of a call in C.
        visit: how often the place had been passed before.
    """

    name: str
    line: int
    offset: int
    kind: str
    visit: int


def is_checked(opname: str) -> bool:
    """Return whether CPython looks for signals at a bytecode."""
    if opname in ("RESUME", *CALLING, *FORMATTING):
        return True
    return "JUMP_BACKWARD" in opname and "NO_INTERRUPT" not in opname


@cache
def _opnames(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


@cache
def _handlers(code: CodeType) -> dict[int, int]:
    """Return the exception handler of each offset that has one."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return {
        offset: entry.target for entry in entries for offset in range(entry.start, entry.end, 2)
    }


class Interrupter:
    """Raise at one point of a call, and note all points that are passed.

    Args:
        target: the point; None to raise nowhere.
        is_by_line: whether of each line only the first point counts.

    Attributes:
        passed: the points, in order.
        hit: whether the target was passed.
    """

    def __init__(self, target: Point | None = None, *, is_by_line: bool = False) -> None:
        self._target = target
        self._is_by_line = is_by_line
        self._visits: dict[tuple[CodeType, int, str], int] = {}
        self._called: dict[FrameType, int] = {}
        self._generators: set[FrameType] = set()
        self._has_entered_python: set[FrameType] = set()
        self._lines: set[tuple[CodeType, int]] = set()
        self.passed: list[Point] = []
        self.hit = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Make the call.

        Raises:
            Interrupt: the point was passed, unless the call has swallowed it.
        """
        # A finaliser in here would swallow what is raised in it.
        gc.disable()
        before = sys.gettrace()
        start_trace(self._on_call)
        try:
            return call()
        finally:
            sys.settrace(before)
            gc.enable()

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        caller = frame.f_back
        if caller is not None and code.co_name not in CALLED_BY_C:
            self._has_entered_python.add(caller)
        is_ours = code.co_filename.startswith(PACKAGE)
        is_called_by_us = caller is not None and caller.f_code.co_filename.startswith(PACKAGE)
        if self.hit or not (is_ours or is_called_by_us):
            return None
        if code.co_flags & inspect.CO_GENERATOR and frame in self._generators:
            return self._on_event if is_ours else None  # it goes on, or is closed: no new point
        self._generators.add(frame)
        # Of others' code only the entry: it is a step of ours, done or not.
        self._pass(frame, "entry", frame.f_lasti)
        if not is_ours:
            return None
        trace_opcodes(frame, self._on_event)
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and not self.hit:
            self._on_opcode(frame, frame.f_lasti)
        return self._on_event

    def _on_opcode(self, frame: FrameType, offset: int) -> None:
        called = self._called.pop(frame, None)
        has_entered = frame in self._has_entered_python
        self._has_entered_python.discard(frame)
        if called is not None and not has_entered:
            handlers = _handlers(frame.f_code)
            # Where another handler begins in between, the exception would go to the wrong one.
            if handlers.get(called) == handlers.get(offset):
                self._pass(frame, "return", called)
        opname = _opnames(frame.f_code)[offset]
        if not is_checked(opname):
            return
        if opname == "PRECALL":
            return  # the call is made by CALL, or, where PRECALL makes it, there is no CALL
        if opname in CALLING:
            self._called[frame] = offset
        elif opname != "RESUME":
            self._pass(frame, "inside", offset)

    def _pass(self, frame: FrameType, kind: str, offset: int) -> None:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        if self._is_by_line and kind != "entry":
            if (code, line) in self._lines:
                return
            self._lines.add((code, line))
        visit = self._visits.get((code, offset, kind), 0)
        self._visits[code, offset, kind] = visit + 1
        point = Point(code.co_qualname, line, offset, kind, visit)
        self.passed.append(point)
        if point == self._target:
            self.hit = True
            sys.settrace(None)
            raise Interrupt(str(point))
