"""Processes of the test kit: start, signal and end them, and let none outlive this process.

Owns process ids and the watcher; knows nothing of Kafka. A process is ended by its id and only
while it is our own unreaped child, so that no other process can be hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import _watcher
from ._errors import BrokerStartError
from ._polling import wait_until

_DEATH_SECONDS = 10.0
_LOOK_SECONDS = 0.001
_LAST_LINES = 5
# A line that Kafka logs as an error, or the first line of an exception.
_ERROR = re.compile(r"\bERROR\b|^(Caused by: )?[\w.$]+(Exception|Error)\b")


class Watcher:
    """A small process that kills our brokers when we are killed. See `_watcher`."""

    def __init__(self) -> None:
        script = str(Path(_watcher.__file__))
        self._process = subprocess.Popen(
            # Isolated and without site packages: it starts fast, and no setting of the user's can
            # break it.
            [sys.executable, "-I", "-S", script, str(os.getpid())],
            stdin=subprocess.PIPE,
            # Not inherited: a reader of our output would wait for the end of the watcher as well.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, pid: int) -> None:
        """Kill a process when this process has ended."""
        self._tell(f"add {pid} {_watcher.start_time(pid)}")

    def forget(self, pid: int) -> None:
        """Do not kill this process any more, since it has ended."""
        self._tell(f"del {pid}")

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder when this process has ended."""
        self._tell(f"rmtree {folder}")

    def close(self) -> None:
        """End the watcher, when there is nothing left to watch."""
        self._tell("bye")
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin and not self._process.stdin.closed:
            # If the watcher was killed it cannot watch, but that must not break the brokers.
            with contextlib.suppress(OSError):
                self._process.stdin.write(os.fsencode(line + "\n"))
                self._process.stdin.flush()


class ManagedProcess:
    """One process with a log file, ended by its id."""

    def __init__(self, command: Sequence[str], log_path: Path, watcher: Watcher) -> None:
        self.log_path = log_path
        self._watcher = watcher
        # Appended, since a node that is started again goes on with the log that it has.
        with log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches only us, and we end the process
            # in order.
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        watcher.add(self.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether it has not ended yet."""
        return self._process.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def pause(self) -> None:
        """Stop it from running without ending it (SIGSTOP), and wait until it has stopped."""
        self._signal(signal.SIGSTOP)
        if sys.platform != "linux":
            return  # where `waitid` may be missing: it stops, but perhaps a moment later
        # Its other threads run on until one of them takes the signal. On a busy machine that is
        # long enough for a broker to write a marker.
        look = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            wait_until(lambda: os.waitid(os.P_PID, self.pid, look), _DEATH_SECONDS, _LOOK_SECONDS)

    def resume(self) -> None:
        """Let a paused process run again (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Ask it to end (SIGTERM), and do not wait."""
        # A process that is stopped takes SIGTERM only when it runs again.
        self.resume()
        self._signal(signal.SIGTERM)

    def wait_or_kill(self, timeout: float) -> bool:
        """Wait for its end, and kill it if it has not ended in time.

        Args:
            timeout: seconds.

        Returns:
            True when it ended by itself.
        """
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._watcher.forget(self.pid)
        return True

    def kill(self) -> None:
        """End it at once (SIGKILL), and wait until it is gone."""
        # Ends a paused process as well, unlike SIGTERM.
        self._signal(signal.SIGKILL)
        # Only a process stuck in the kernel needs longer, and nothing more can be done about it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_SECONDS)
        self._watcher.forget(self.pid)

    def _signal(self, number: signal.Signals) -> None:
        # Popen refuses to signal a process that it has reaped, so no other process is hit.
        self._process.send_signal(number)

    def log_errors(self) -> str:
        """Return the last errors in its log, or nothing if there is none."""
        with self.log_path.open("rb") as log:
            # Not those of an earlier process.
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if _ERROR.search(line)][-_LAST_LINES:])

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return tail(self.log_path, lines)


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a text file, or nothing if there is no file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def run_tool(what: str, command: Sequence[str], log_path: Path, timeout: float) -> str:
    """Run a short command to its end.

    Args:
        what: its name for messages.
        command: the program and its arguments.
        log_path: its output is appended to this file.
        timeout: seconds.

    Returns:
        Its output.

    Raises:
        BrokerStartError: it failed or took too long; the message holds its last lines.
    """
    try:
        # In a session of its own: Ctrl-C reaches only us, and `subprocess.run` kills the tool
        # then.
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerStartError(f"{what} took more than {timeout:g} s") from error
    output = done.stdout.decode(errors="replace")
    with log_path.open("a") as log:
        log.write(output)
    if done.returncode != 0:
        # Indented lines are stack traces or lists of settings: they are for the log, not for
        # people.
        said = [line for line in output.splitlines() if line.strip() and not line[0].isspace()]
        last = "\n".join(said[-_LAST_LINES:])
        raise BrokerStartError(f"{what} failed (its log: {log_path}):\n{last}")
    return output
