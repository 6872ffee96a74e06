"""The processes that write: started, watched, replaced when they end early.

Owns: processes and their names in the history. Must not know: faults, checks.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from integration.chaos.job import Job

Command = Callable[[Job], list[str]]
_LOOK_S = 0.1
_REPLACED_AFTER_S = 0.5


def python_command(job: Job) -> list[str]:
    """Return the command of a writer with a Python client."""
    return [sys.executable, "-m", "integration.chaos.driver", job.to_json()]


class Writers:
    """The writers of a row, each replaced by a new process when it ends before its time.

    Args:
        jobs: one for each writer; `writer` is the name, to which a number is added.
        command: returns the command of a job.
        folder: for the histories and the processes' output.
    """

    def __init__(self, jobs: list[Job], command: Command, folder: Path) -> None:
        self._jobs, self._command, self._folder = jobs, command, folder
        self._processes: list[subprocess.Popen] = []
        self._numbers = [0] * len(jobs)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="writers", daemon=True)

    def start(self) -> None:
        self._processes = [self._launch(index) for index in range(len(self._jobs))]
        self._thread.start()

    def _launch(self, index: int) -> subprocess.Popen:
        self._numbers[index] += 1
        job = self._jobs[index]
        name = f"{job.writer}{self._numbers[index]}"
        job = replace(job, writer=name, history=str(self._folder / f"{name}.jsonl"))
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                self._command(job),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for index, job in enumerate(self._jobs):
                early = time.monotonic() < job.until - 1
                if early and self._processes[index].poll() is not None:
                    self._closing.wait(_REPLACED_AFTER_S)
                    with self._lock:
                        self._processes[index] = self._launch(index)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def histories(self) -> list[Path]:
        return [
            path
            for index, job in enumerate(self._jobs)
            for number in range(1, self._numbers[index] + 1)
            if (path := self._folder / f"{job.writer}{number}.jsonl").exists()
        ]

    def kill_first(self) -> None:
        with self._lock:
            self._processes[0].kill()

    def stop_first(self) -> None:
        with self._lock:
            self._processes[0].terminate()

    def pause_first(self) -> None:
        self._processes[0].send_signal(signal.SIGSTOP)

    def resume_first(self) -> None:
        self._processes[0].send_signal(signal.SIGCONT)

    def finish(self, until: float) -> int:
        """Wait for the writers' ends, and return how many had to be killed for it."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(10)
        killed = 0
        for process in self._processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                killed += 1
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        return killed
