"""A copier of the campaign goes back to the committed offsets, or fails."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from integration.chaos import copying
from integration.chaos.copying import ConfluentInput


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
