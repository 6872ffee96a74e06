"""`make test` plays every case within three turns, and pytest by hand plays all."""

from __future__ import annotations

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


def test_pytest_by_hand_plays_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXNPRODUCER_ONE_OF", raising=False)
    assert turns.of_this_turn(CASES) == CASES
