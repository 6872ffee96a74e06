"""The tests that the examples show are as quick as their docstring says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "examples/test_payments_service.py"
# With 0.2 s of the processor, the tests then take less than a second on a quiet machine. The
# processor's time is not judged here: it depends on the machine.
MOST_WAITED_MS = 700


def run(*words: str) -> str:
    """Run a module in a process of its own, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_a_service_wait_for_less_than_a_second_in_all() -> None:
    told = run("tests.example_waits", EXAMPLE)
    waited = re.search(r"^waited (\d+) ms$", told, re.MULTILINE)
    assert waited, told
    # Less would mean that the clocks were not read: two commits are answered late.
    assert 300 < int(waited[1]) < MOST_WAITED_MS
    assert "under a second" in (ROOT / EXAMPLE).read_text("utf-8")


def test_the_tests_of_a_service_run_without_the_tools_of_this_repository() -> None:
    # As with the extra `testing` alone, which has no pytest-timeout and no pytest-xdist.
    run("pytest", "-q", "-p", "no:timeout", "-p", "no:xdist", EXAMPLE)
