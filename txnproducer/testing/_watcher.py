"""A program that ends the brokers of a process that died without ending them itself.

It is started as `python -I -S _watcher.py` and imports nothing of the package, so that it starts
in milliseconds. It lives in its own session, which Ctrl-C does not reach.

It reads lines from its standard input, a pipe that the parent holds at the other end:
`add <pid> <start time>`, `del <pid>`, `rmtree <folder>`, `bye`. If the pipe closes without a
`bye`, or its parent is another process than at the start, it kills the processes that were added
and not deleted, and removes the folders. The start time guards against a process id that was
reused.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

_POLL_SECONDS = 1.0
_DEATH_SECONDS = 10.0


def start_time(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks, or "-" if it is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "-"
    # The command's name stands in parentheses and may hold any character; the fields follow it.
    return stat.rpartition(")")[2].split()[19]


def _kill(processes: dict[int, str]) -> None:
    # Only these: the kernel may have given the id of an ended broker to another process.
    ours = {pid: started for pid, started in processes.items() if start_time(pid) == started}
    for pid in ours:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while time.monotonic() < deadline and any(_alive(pid) for pid in ours):
        time.sleep(0.05)  # until the next look at the processes


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


class Watched:
    """The processes to kill and the folders to remove when the parent has ended."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}
        self.folders: list[str] = []

    def apply(self, line: str) -> None:
        """Apply one line from the parent."""
        word, _, rest = line.partition(" ")
        if word == "add":
            pid, _, started = rest.partition(" ")
            self.processes[int(pid)] = started
        elif word == "del":
            self.processes.pop(int(rest), None)
        elif word == "rmtree":
            self.folders.append(rest)

    def end(self) -> None:
        """Kill the processes and remove the folders."""
        # First: a broker that runs would write into its folder while it is removed.
        _kill(self.processes)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def watch(parent: int, charge: Watched) -> bool:
    """Read the parent's lines until it sends `bye` or has ended.

    Returns:
        True if the parent ended without a `bye`.
    """
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if not readable:
            # A child that the parent forked may hold the pipe open after the parent's death. So
            # the parent itself is checked as well, but only when all its lines have been read.
            if os.getppid() != parent:
                return True
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return True
        # A read from a pipe may end in the middle of a line.
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line == b"bye":
                return False
            charge.apply(os.fsdecode(line))


def main() -> None:
    """Watch until the parent sends `bye` or has ended."""
    charge = Watched()
    if watch(int(sys.argv[1]), charge):
        charge.end()


if __name__ == "__main__":
    main()
