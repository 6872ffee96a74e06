"""The limits of a process that is fed with hostile bytes."""

from __future__ import annotations

import faulthandler
import resource
from pathlib import Path


def limit_memory(headroom_bytes: int) -> None:
    """Let the process have so much address space more than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + headroom_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_time(seconds: float) -> None:
    """End the process with every thread's trace if it lives longer: something hangs."""
    faulthandler.dump_traceback_later(seconds, exit=True)
