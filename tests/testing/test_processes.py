"""Processes end with their owner in each case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.waiting import wait_until
from txnproducer.testing import BrokerStartError, _process
from txnproducer.testing._watcher import start_time

# Longer than any test: each ends only because a test ends it.
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
STUBBORN = [*SLEEPER[:4], f"{DEAF}; print('ready', flush=True); time.sleep(60)"]


@pytest.fixture
def watcher():
    made = _process.Watcher()
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    """Return whether a process ended. One that nobody has reaped yet has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def test_a_process_is_killed_by_its_id(tmp_path, watcher):
    process = _process.ManagedProcess(SLEEPER, tmp_path / "log", watcher)
    assert process.is_running()
    process.kill()
    assert process.exit_code() == -signal.SIGKILL


def test_a_process_that_is_asked_ends_by_itself(tmp_path, watcher):
    process = _process.ManagedProcess(SLEEPER, tmp_path / "log", watcher)
    process.ask_to_end()
    assert process.wait_or_kill(10.0)
    assert process.exit_code() == -signal.SIGTERM


def test_a_process_that_does_not_listen_is_killed_after_its_time(tmp_path, watcher):
    process = _process.ManagedProcess(STUBBORN, tmp_path / "log", watcher)
    wait_until(lambda: "ready" in process.log_tail())
    process.ask_to_end()
    assert not process.wait_or_kill(0.05)
    assert process.exit_code() == -signal.SIGKILL


def test_a_frozen_process_can_be_stopped(tmp_path, watcher):
    process = _process.ManagedProcess(SLEEPER, tmp_path / "log", watcher)
    process.pause()
    process.ask_to_end()
    assert process.wait_or_kill(10.0)


BUSY = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))
for _ in range(8):
    threading.Thread(target=work).start()
print("ready", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")
def test_a_process_that_was_frozen_does_nothing_more(tmp_path, watcher):
    busy = [*SLEEPER[:4], BUSY]
    process = _process.ManagedProcess(busy, tmp_path / "log", watcher)
    wait_until(lambda: "ready" in process.log_tail())
    states = set()
    for _ in range(20):
        process.pause()
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        states |= {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks}
        process.resume()
    process.kill()
    assert states == {"T"}


def test_a_signal_to_a_process_that_ended_reaches_no_other_process(tmp_path, watcher):
    process = _process.ManagedProcess(SLEEPER, tmp_path / "log", watcher)
    process.kill()
    process.kill()
    process.pause()


OWNER = """
    import os, signal, sys, time
    from pathlib import Path
    from txnproducer.testing import _process

    folder = Path(sys.argv[1])
    watcher = _process.Watcher()
    watcher.remove_folder(folder)
    child = _process.ManagedProcess(eval(sys.argv[2]), folder / "log", watcher)
    if sys.argv[3] == "fork" and os.fork() == 0:
        time.sleep(30)  # the child outlives its parent, which is killed
    print(child.pid, flush=True)
    time.sleep(60)  # until it is killed
"""


@pytest.mark.parametrize("variant", ["alone", "fork"])
def test_an_owner_killed_with_9_leaves_no_process_and_no_folder(tmp_path, variant):
    """The second variant has a forked child of the owner that holds the watcher's pipe open."""
    folder = tmp_path / "data"
    folder.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(folder), repr(SLEEPER), variant],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert owner.stdout
    try:
        child = int(owner.stdout.readline())
        assert not is_gone(child)
        owner.kill()
        owner.wait()
        wait_until(lambda: is_gone(child))
        wait_until(lambda: not folder.exists())
    finally:
        # The owner's forked child, in the owner's own process group.
        if variant == "fork":
            os.killpg(owner.pid, signal.SIGKILL)
        owner.stdout.close()


def test_a_closed_watcher_touches_nothing(tmp_path):
    watcher = _process.Watcher()
    watcher.remove_folder(tmp_path)
    process = _process.ManagedProcess(SLEEPER, tmp_path / "log", watcher)
    watcher.close()
    assert process.is_running()
    assert tmp_path.exists()
    process.kill()


def test_a_reused_process_id_is_left_alone(tmp_path, watcher):
    bystander = subprocess.Popen(SLEEPER)
    try:
        watcher._tell(f"add {bystander.pid} {int(start_time(bystander.pid)) - 1}")
        # The pipe breaks as if the owner had died.
        watcher._process.stdin.close()
        watcher._process.wait(10)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_killed_watcher_does_not_break_its_owner(tmp_path, watcher):
    watcher._process.kill()
    watcher._process.wait()
    watcher.add(os.getpid())
    watcher.forget(os.getpid())


def test_a_tool_that_fails_says_its_last_lines_and_keeps_its_log(tmp_path):
    command = [sys.executable, "-c", "print('Unsupported feature'); raise SystemExit(1)"]
    with pytest.raises(BrokerStartError, match="Formatting a node failed") as refused:
        _process.run_tool("Formatting a node", command, tmp_path / "log", 30.0)
    assert "Unsupported feature" in str(refused.value)
    assert "Unsupported feature" in (tmp_path / "log").read_text()


def test_a_tool_that_hangs_is_ended(tmp_path):
    with pytest.raises(BrokerStartError, match=r"took more than 0\.1 s"):
        _process.run_tool("Formatting a node", SLEEPER, tmp_path / "log", 0.1)
