"""Each behaviour, difference and trap of the catalogue has a test, and their page is current.

The numbers stand in marks: `conformance("3.06")`, `quirk("Q1")`, `trap(10)`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance_page import CATALOGUE, PAGE, read_marks, render
from tests.conformance_page import tests_of as shown_by

# How many behaviours each part has.
SIZES = {1: 27, 2: 40, 3: 50, 4: 61, 5: 43, 6: 24}
TABLES = {"conformance": "behaviours", "quirk": "quirks", "trap": "traps"}
MARKS = read_marks()


def test_the_catalogue_is_complete():
    wanted = [f"{part}.{n:02d}" for part, count in SIZES.items() for n in range(1, count + 1)]
    assert list(CATALOGUE["behaviours"]) == wanted
    assert list(CATALOGUE["traps"]) == [str(number) for number in range(1, 41)]
    assert {f"Q{number}" for number in range(1, 16)} <= CATALOGUE["quirks"].keys()


@pytest.mark.parametrize("kind", TABLES)
def test_each_entry_of_the_catalogue_has_a_test(kind):
    assert [name for name in CATALOGUE[TABLES[kind]] if name not in shown_by(MARKS, kind)] == []


@pytest.mark.parametrize("kind", TABLES)
def test_a_mark_names_an_entry_of_the_catalogue(kind):
    assert sorted(shown_by(MARKS, kind).keys() - CATALOGUE[TABLES[kind]].keys()) == []


def test_a_test_shows_one_behaviour():
    """A parametrized test may show one with each parameter, a class one with each test."""
    own = Counter(mark.test for mark in MARKS if mark.kind == "conformance" and mark.is_own)
    assert [test for test, count in own.items() if count > 1] == []


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == render(), "run: python -m tests.conformance_page"
