"""An event before each bytecode, from the first one on.

It is not enough to set `f_trace_opcodes` when a function is entered (gh-103615):

* 3.12 sends these events only if some frame had asked for them before `sys.settrace` was called.
* From 3.13 on a function's code has them or not. They are switched on at once only in a frame that
  has an `f_trace`, which is set after the event of its entry; else when it returns, for its next
  call. A call that is not traced, on any thread, switches them off again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def start_trace(on_call: Callable[[FrameType, str, Any], Any]) -> None:
    """Call `sys.settrace`, so that frames can be traced by bytecode."""
    sys._getframe().f_trace_opcodes = True
    sys.settrace(on_call)


def trace_opcodes(frame: FrameType, on_event: Callable[[FrameType, str, Any], Any]) -> None:
    """Have a frame that is just entered traced by bytecode. The events go to `on_event`."""
    frame.f_trace = on_event
    frame.f_trace_opcodes = True
