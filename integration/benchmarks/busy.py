"""The use of the processors during a measurement: it explains a result below its target.

Owns: how Linux is asked, and the groups of threads. A thread that ends in between is not counted.
Where there is no such file system, and in Java's process, there are no figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

CALLER, OTHERS = "calling thread", "its other threads"
REQUESTS, REST = "broker: requests", "broker: the rest"
BUSY, QUEUED = "all processors", "waiting for one"
GROUPS = (CALLER, OTHERS, REQUESTS, REST, BUSY, QUEUED)
"""Seconds of CPU: of each group's threads, of all processors, and those in which client's and
client's and broker's threads were ready for a processor and had none."""

_PROC = Path("/proc")
# The broker's network threads and request handlers; the kernel keeps 15 letters of a name.
_REQUEST_THREADS = ("data-plane-kafk",)
_TICKS = os.sysconf("SC_CLK_TCK")


class BusyMeter:
    """Counts CPU seconds from its making to `seconds()`.

    Args:
        brokers: process ids.
    """

    def __init__(self, brokers: list[int]) -> None:
        self._processes = [os.getpid(), *brokers]
        self._names: dict[int, str] = {}
        self._machine, self._threads = _machine_seconds(), self._look()
        self._began = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each group, or nothing where the system does not tell."""
        machine, threads = _machine_seconds(), self._look()
        if machine is None or self._machine is None or not threads:
            return {}
        found = dict.fromkeys(GROUPS, 0.0) | {BUSY: machine - self._machine}
        for thread, (ran, queued) in threads.items():
            ran_before, queued_before = self._threads.get(thread, (0, 0))
            found[self._names[thread]] += (ran - ran_before) / 1e9
            found[QUEUED] += (queued - queued_before) / 1e9
        return {group: round(each, 4) for group, each in found.items()}

    def _look(self) -> dict[int, tuple[int, int]]:
        """Return nanoseconds of each thread: on a processor, and waiting for one."""
        found = {}
        for process in self._processes:
            for folder in _threads_of(process):
                thread = int(folder.name)
                try:
                    if thread not in self._names:
                        self._names[thread] = _group(process, thread, folder)
                    ran, queued, _ = (folder / "schedstat").read_text("ascii").split()
                except OSError:
                    continue  # it has ended
                found[thread] = int(ran), int(queued)
        return found


def broker_processes() -> list[int]:
    """Return the ids of the brokers that this process has started."""
    return [
        int(child)
        for folder in _threads_of(os.getpid())
        for child in _read(folder / "children").split()
        if "kafka.Kafka" in _read(_PROC / child / "cmdline")
    ]


def _group(process: int, thread: int, folder: Path) -> str:
    if process == os.getpid():
        return CALLER if thread == process else OTHERS
    name = (folder / "comm").read_text("utf-8").strip()
    return REQUESTS if name in _REQUEST_THREADS else REST


def _threads_of(process: int) -> Iterator[Path]:
    folder = _PROC / str(process) / "task"
    return folder.iterdir() if folder.is_dir() else iter(())


def _machine_seconds() -> float | None:
    """Return the seconds that all processors have worked: neither idle nor waiting for a disk."""
    told = _read(_PROC / "stat").splitlines()[:1]
    if not told:
        return None
    user, nice, system, _idle, _disk, *interrupts = (int(each) for each in told[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
