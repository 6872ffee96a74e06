"""Where a run is held up, in the very process that is to be harmed: the sink's `on_event` hook.

Why it exists: "killed after its commit and before its result" lasts microseconds. A gate makes it
last as long as is needed: a process that reaches one says which it is, and waits for permission.

Owns: gates and the hook. Must not know: Spark, Kafka, what harm is done meanwhile. It runs in
Spark's Python workers and in the driver; all that it leaves are files.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from integration.waiting import wait_until

HELD_S = 240.0
STOP = "stop"  # the file that has the driver stop its query
_POLL_S = 0.01


class FaultError(RuntimeError):
    """The error that makes a task fail."""


@dataclass(frozen=True)
class Gate:
    """A point of a run, passed freely but for the first time.

    Attributes:
        name: of the gate, and of its files.
        event: the sink's name of the point.
        batch_id: in which batch.
        partition: in which Spark partition; None on the driver, or for whichever comes first.
        action: what happens there: to wait for leave, to say who it is and go on, to sleep, to
            raise, to go on and be killed (kill -9) soon.
        seconds: how long it sleeps or lives on.
    """

    name: str
    event: str
    batch_id: int
    partition: int | None = None
    action: Literal["wait", "note", "sleep", "raise", "die"] = "wait"
    seconds: float = 0.0

    def is_at(self, event: str, info: Mapping[str, Any]) -> bool:
        """Return whether an event is this point."""
        if (event, info.get("batch_id")) != (self.event, self.batch_id):
            return False
        return self.partition is None or info.get("partition") == self.partition


@dataclass(frozen=True)
class Gates:
    """The hook: picklable, called with the name of an event and its details.

    Attributes:
        folder: for the gates' files.
        gates: which.
    """

    folder: str
    gates: tuple[Gate, ...] = ()

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Receive an event. A process that reaches several gates stops at the first free one."""
        for gate in self.gates:
            if gate.is_at(event, info) and take(self._path(gate, "taken")):
                self._stand_at(gate, info)
                return

    def _path(self, gate: Gate, end: str) -> Path:
        return Path(self.folder) / f"{gate.name}.{end}"

    def _stand_at(self, gate: Gate, info: Mapping[str, Any]) -> None:
        # A Python worker is forked by a daemon, and that one was started by the executor.
        who = {"pid": os.getpid(), "parent": os.getppid(), "partition": info.get("partition")}
        write_whole(self._path(gate, "reached"), json.dumps(who))
        if gate.action == "wait":
            leave = self._path(gate, "leave")
            deadline = time.monotonic() + HELD_S
            while not leave.exists() and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # leave is a file, as a process of Spark's can get no event
        elif gate.action == "sleep":
            time.sleep(gate.seconds)  # what the gate is for
        elif gate.action == "die":
            kill = partial(os.kill, os.getpid(), signal.SIGKILL)
            threading.Timer(gate.seconds, kill).start()
        elif gate.action == "raise":
            raise FaultError(f"the task fails, at {gate.event}")


@dataclass(frozen=True)
class Arrival:
    """A process that stands at a gate.

    Attributes:
        pid: the process.
        parent: its parent; the daemon of Python workers, where it is one.
        partition: of the task; None on the driver.
    """

    pid: int
    parent: int
    partition: int | None


class Gatekeeper:
    """The other side: waits for arrivals, and gives leave.

    Args:
        folder: for the gates' files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def hook(self, *gates: Gate) -> Gates:
        """Return the hook."""
        return Gates(str(self.folder), gates)

    def has_come(self, name: str) -> bool:
        """Return whether a process has reached a gate."""
        return (self.folder / f"{name}.reached").exists()

    def await_arrival(self, name: str, longest_s: float = 180.0) -> Arrival:
        """Wait until a process reaches a gate."""
        wait_until(lambda: self.has_come(name), f"nobody came to the gate {name!r}", longest_s)
        return Arrival(**json.loads((self.folder / f"{name}.reached").read_text("utf-8")))

    def give_leave(self, name: str) -> None:
        """Let the process at a gate go on. Later ones pass freely."""
        (self.folder / f"{name}.leave").touch()


def take(path: Path) -> bool:
    """Make an empty file, and return whether it is new."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole, or not at all."""
    part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    part.write_text(text, "utf-8")
    part.rename(path)
