"""The memory of a process: its present size and its peak.

Owns: how Linux is asked. The peak is the kernel's: what is freed before a commit is counted too.
`getrusage` will not do, since a process begins there with the peak of the one that started it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


@dataclass
class MemoryMeter:
    """Notes memory before the first transaction, and of each.

    Attributes:
        rss: MB before the first one, and after each.
        peaks: MB at most, from the one before to this one's end.
    """

    rss: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    def start(self) -> None:
        self.rss.append(_read_mb("VmRSS"))
        _forget_peak()

    def note(self) -> None:
        self.rss.append(_read_mb("VmRSS"))
        self.peaks.append(_read_mb("VmHWM"))
        _forget_peak()


def _forget_peak() -> None:
    # Where that is not allowed a peak is the highest so far: never too low.
    with contextlib.suppress(PermissionError):
        _CLEAR_REFS.write_text(_FORGET_PEAK, encoding="ascii")


def _read_mb(name: str) -> float:
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return round(int(line.split()[1]) * 1024 / 1e6, 1)
