"""A copier of the campaign goes back to the committed offsets, and notes its consumer's times."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration.chaos import copying
from integration.chaos import driver as module
from integration.chaos.checks import check
from integration.chaos.clients import OPEN
from integration.chaos.copying import ConfluentInput
from integration.chaos.driver import Driver
from integration.chaos.endings import endings
from integration.chaos.history import add_up, load
from integration.chaos.job import Job
from integration.chaos.waits import Waits
from tests.test_chaos_driver import ScriptedClient


@dataclass
class ScriptedPlace:
    """A partition with its committed offset; -1001 if none is committed."""

    partition: int
    offset: int


class ScriptedConsumer:
    """A consumer of librdkafka that cannot seek in one partition at first.

    Args:
        refusals: how often partition 1 refuses to be sought.
    """

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.positions = {0: 7, 1: 8}

    def subscribe(self, _: Any) -> None: ...

    def assignment(self) -> list[int]:
        return list(self.positions)

    def committed(self, _: Any, timeout: float) -> list[ScriptedPlace]:
        return [ScriptedPlace(0, 4), ScriptedPlace(1, -1001)]

    def seek(self, place: ScriptedPlace) -> None:
        if place.partition == 1 and self.refusals:
            self.refusals -= 1
            raise RuntimeError("Erroneous state")
        self.positions[place.partition] = place.offset

    def poll(self, _: float) -> None:
        self.positions[0] += 1  # it takes a record


def open_scripted(monkeypatch: pytest.MonkeyPatch, refusals: int) -> ConfluentInput:
    consumer = ScriptedConsumer(refusals)
    client = SimpleNamespace(Consumer=lambda _: consumer)
    monkeypatch.setitem(sys.modules, "confluent_kafka", client)
    return ConfluentInput("", "in", "copiers")


def test_every_partition_is_sought_after_the_last_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    copier = open_scripted(monkeypatch, refusals=3)
    copier.rewind()
    assert copier.consumer.positions == {0: 4, 1: 0}


def test_a_partition_that_cannot_be_sought_fails_the_rewind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copying, "_PATIENCE_S", 0.01)
    copier = open_scripted(monkeypatch, refusals=10**9)
    with pytest.raises(RuntimeError, match="Erroneous state"):
        copier.rewind()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_times_of_one_kind_in_a_row_make_one_line_and_short_ones_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lines = Clock(), []
    monkeypatch.setattr("integration.chaos.waits.time", clock)
    waits = Waits(lambda **line: lines.append(tuple(line.values())))
    for did, until in [("poll", 0.3), ("poll", 0.6), ("partitions", 0.9), ("poll", 0.93)]:
        began, clock.now = clock.now, until
        waits.add(did, began)
    waits.end()
    assert lines == [("poll", 0.0, 0.6), ("partitions", 0.6, 0.9)]
    clock.now = 2.0
    waits.add("poll", 1.0)
    with contextlib.suppress(RuntimeError), waits.during("rewind"):
        clock.now = 5.0
        raise RuntimeError("cannot go back")
    assert lines[2:] == [("poll", 1.0, 2.0), ("rewind", 2.0, 5.0)]


class ScriptedInput:
    """Each poll takes 0.1 s. Two have no partitions, one has no record, later ones have one."""

    consumer = None

    def __init__(self) -> None:
        self.polls = 0

    def has_partitions(self) -> bool:
        return self.polls > 2

    def poll(self) -> list[tuple[tuple[str, int], int]]:
        self.polls += 1
        time.sleep(0.1)  # what is measured
        return [(("in", 0), self.polls)] if self.polls > 4 else []

    def rewind(self) -> None:
        time.sleep(0.1)  # what is measured

    def close(self) -> None: ...


def test_a_copier_notes_the_time_with_its_consumer_and_no_transaction_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient({}, "unknown")
    monkeypatch.setattr(client, "offsets", lambda *_: None, raising=False)
    monkeypatch.setitem(OPEN, "scripted", client)
    monkeypatch.setattr(module, "open_input", lambda *_: ScriptedInput())
    until, path = time.monotonic() + 60, tmp_path / "a1.jsonl"
    job = Job("scripted", "", "x", "a1", "copy", ["t"], 4, until, str(path), "in", "g")
    writer = Driver(job)
    monkeypatch.setattr(writer, "_goes_on", lambda: client.begun < module.ABORT_EVERY)
    writer.run()
    history = add_up(load([path]))
    assert len(history.txns) == module.ABORT_EVERY
    assert endings(history) == []
    assert not [each for each in check(history) if each.kind != "lost write"], "nothing was read"
    spans = history.waits["x"]
    lengths = {did: [round(end - begin, 1) for begin, end in spans[did]] for did in spans}
    # An abort ends the first of the fifth transactions, so the copier goes back once.
    assert list(lengths) == ["start", "partitions", "poll", "rewind"]
    [(began, called)] = spans["start"]
    assert began < called <= history.calls["x"][0][0], "a process begins before its first call"
    assert (len(lengths["partitions"]), len(lengths["poll"]), len(lengths["rewind"])) == (1, 5, 1)
    assert lengths["partitions"][0] >= 0.3
