"""Each bytecode has its event: without one, points to interrupt and costs would be passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a process of its own, because a trace that ended may have left its events switched on.
PROGRAM = """
import dis
import sys

from tests.opcodes import start_trace, trace_opcodes


def traced():
    return len("ab")


def on_event(frame, event, _):
    if event == "opcode":
        seen.append(frame.f_lasti)
    return on_event


def on_call(frame, event, _):
    if frame.f_code is not traced.__code__:
        return None
    trace_opcodes(frame, on_event)
    return on_event


every = [each.offset for each in dis.get_instructions(traced) if each.opname != "RESUME"]
for _ in range(3):
    traced()  # untraced, after which 3.13 and later have to be told again
    seen = []
    start_trace(on_call)
    traced()
    sys.settrace(None)
    assert set(every) <= set(seen), (every, seen)
"""


def test_every_bytecode_of_a_function_has_an_event_the_first_time_and_later():
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
