"""A row in which the reader beside the writers saw too little does not count."""

from __future__ import annotations

import pytest

from integration.chaos.history import add_up
from integration.chaos.sight import BESIDE, blind_spot
from tests.test_chaos_checks import Line, seen, written

WHOLE = {0: ["a:1:0:4", "a:1:2:4"], 1: ["a:1:1:4", "a:1:3:4"]}


def blind(beside: list[Line], final: dict[int, list[str]] = WHOLE) -> str:
    """Return the blind spot beside a transaction that was committed at 1.4 s."""
    lines = [*written(1, 1.0), *beside, *seen(final)]
    return blind_spot(add_up(sorted(lines, key=lambda line: line["t"])))


def test_a_reader_that_has_seen_all_is_not_blind() -> None:
    assert blind(seen(WHOLE, at=1.6, reader=BESIDE)) == ""
    assert blind(seen(WHOLE, at=20.0, reader=BESIDE)) == ""


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ([], "t-0 was not read to its end after a:1:0:4 was committed"),
        (seen({0: WHOLE[0], 1: []}, 20.0, BESIDE), "t-1 was read to its end without a:1:1:4"),
        (seen({0: WHOLE[0]}, 20.0, BESIDE), "t-1 was not read to its end"),
        (seen(WHOLE, at=-4.0, reader=BESIDE), "t-0 was not read to its end"),
    ],
)
def test_a_reader_that_stood_still_or_missed_a_record_is_blind(
    beside: list[Line], says: str
) -> None:
    assert blind(beside).startswith(says)


def test_an_end_soon_after_the_commit_may_be_older_than_it() -> None:
    assert blind(seen({0: [], 1: []}, at=6.0, reader=BESIDE)) == ""


def test_a_record_that_no_reader_sees_is_no_blindness() -> None:
    missing = {0: WHOLE[0][:1], 1: WHOLE[1]}
    assert blind(seen(missing, at=20.0, reader=BESIDE), missing) == ""


def test_an_error_of_the_reader_is_no_record() -> None:
    line = {"t": 5.0, "reader": BESIDE, "topic": None, "partition": -1, "error": "no broker"}
    assert blind([*seen(WHOLE, at=20.0, reader=BESIDE), line]) == ""
