"""Damaged answers for every decoder and for whole producers, under a memory limit.

`make fuzz` plays more of them. A failure prints the command that repeats it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="reads the memory in use from /proc, which Linux has",
)
@pytest.mark.parametrize(("module", "count"), [("decoders", 30_000), ("producers", 300)])
def test_a_damaged_answer_costs_no_more_than_its_connection(module: str, count: int) -> None:
    assert_runs(f"tests.fuzz.{module}", "--count", str(count))


@pytest.mark.skipif(sys.platform != "linux", reason="counts a process's descriptors in /proc")
def test_the_outcomes_are_true_however_a_process_ends() -> None:
    assert_runs("tests.fuzz.processes", "--rounds", "3")


@pytest.mark.skipif(sys.platform != "linux", reason="counts a process's descriptors in /proc")
def test_a_handshake_that_is_cut_or_answered_with_nonsense_costs_no_more_than_its_connection() -> (
    None
):
    assert_runs("tests.fuzz.handshakes", "--share", "60")


def assert_runs(*arguments: str) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
