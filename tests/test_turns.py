"""Each case has its turn in `make test`, and pytest by hand plays all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import turns

CASES = list(range(10))


def test_three_turns_in_a_row_play_every_case_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXNPRODUCER_ONE_OF", "3")
    played: list[int] = []
    for seconds in (1_800_000_000, 1_800_000_001, 1_800_000_002):
        monkeypatch.setattr(turns, "_commit_time", lambda at=seconds: at)
        played += turns.of_this_turn(CASES)
    assert sorted(played) == CASES


def test_no_part_of_a_short_list_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXNPRODUCER_ONE_OF", "9")
    for seconds in range(9):
        monkeypatch.setattr(turns, "_commit_time", lambda at=seconds: at)
        assert len(turns.of_this_turn(CASES[:4])) == 1
    assert turns.of_this_turn([]) == []


def test_a_slow_machine_plays_a_third_of_all_tests_but_for_those_of_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[Any] = []
    config: Any = SimpleNamespace(
        hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    )
    monkeypatch.setenv("TXNPRODUCER_SHARE", "3")
    monkeypatch.setattr(turns, "_commit_time", lambda: 1)
    each_time = {0, 9}

    class Item(int):
        def get_closest_marker(self, name: str) -> object:
            return self if name == "each_time" and self in each_time else None

    items: list[Any] = [Item(case) for case in CASES]
    turns.leave_to_others(config, items)
    assert (items, left) == ([0, 2, 5, 8, 9], [1, 3, 4, 6, 7])


def test_pytest_by_hand_plays_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXNPRODUCER_ONE_OF", raising=False)
    assert turns.of_this_turn(CASES) == CASES
