"""The order of the steps of a task, in every form: take, look, write or compare, close."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from txnproducer.spark.tasks.task_steps import take_steps


class NotedSteps:
    """Steps that note their calls."""

    def __init__(self, committed: str | None = None, *, fails: bool = False) -> None:
        self.log: list[str] = []
        self.committed = committed
        self.fails = fails

    @contextmanager
    def take(self) -> Iterator[str]:
        self.log.append("take")
        try:
            yield "writer"
        finally:
            self.log.append("close")

    def replay(self) -> str | None:
        self.log.append("look")
        return self.committed

    def write(self, writer: str) -> str:
        self.log.append(f"write with {writer}")
        if self.fails:
            raise OSError("lost")
        return "written"


def test_a_task_looks_after_it_has_taken_its_place_and_before_it_writes():
    steps = NotedSteps()
    assert take_steps(steps) == "written"
    assert steps.log == ["take", "look", "write with writer", "close"]


def test_rows_that_are_committed_are_not_written():
    steps = NotedSteps("compared")
    assert take_steps(steps) == "compared"
    assert steps.log == ["take", "look", "close"]


def test_the_writer_is_closed_if_the_write_fails():
    steps = NotedSteps(fails=True)
    with pytest.raises(OSError, match="lost"):
        take_steps(steps)
    assert steps.log[-1] == "close"
