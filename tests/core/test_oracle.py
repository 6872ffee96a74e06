"""Every error code at every point has the Java client's outcome, or a listed difference."""

from __future__ import annotations

import pytest

from tests.core.oracle import CODES, TABLES, compare, outcomes, own_values
from tests.core.oracle_differences import DIFFERENCES
from tests.core.oracle_points import POINTS, observe, reach, requests_of
from tests.oracle_differences_page import PAGE, render
from txnproducer.errors import ErrorCode


@pytest.mark.trap(7, 10, 11, 12, 13, 14, 15, 16)
@pytest.mark.parametrize("name", TABLES)
def test_every_code_is_taken_as_the_java_client_takes_it(name):
    comparison = compare(TABLES[name], observe)
    assert comparison.count == len(CODES) == 135
    assert comparison.wrong == []


def test_4725_outcomes_are_compared_and_none_twice():
    compared = [(name, code) for name in TABLES for code, _ in outcomes(TABLES[name])]
    assert len(compared) == len(set(compared)) == 4_725
    assert set(POINTS) <= {*TABLES, *(name.rpartition("/")[0] for name in TABLES)}


@pytest.mark.parametrize("name", TABLES)
def test_each_point_is_reached_by_the_requests_that_the_java_client_sends(name):
    sent = requests_of(reach(TABLES[name]).harness)
    if name == "InitProducerId(bump)/TV1":
        sent.remove("Produce")  # the record whose failure makes the epoch change
    assert sent == TABLES[name]["requests_sent"]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.title)
def test_a_listed_difference_is_one_in_each_of_its_tables_and_fields(difference):
    covered = set()
    for name, table in TABLES.items():
        for code, outcome in outcomes(table):
            if difference.covers(name, code, outcome):
                covered |= {(name, code), name, name.rpartition("/")[0]}
                for field, value in own_values(difference, outcome).items():
                    assert outcome[field] != value, f"{name}, {code}: {field} is the same"
    assert covered >= set(difference.tables)
    assert set(difference.codes) <= ErrorCode.__members__.keys()
    # A code that is newer than the recorded client has no outcome to differ from.
    for code in CODES.keys() & difference.codes:
        assert any((name, code) in covered for name in TABLES)


def test_the_page_of_differences_is_up_to_date():
    assert PAGE.read_text("utf-8") == render(), "run: python -m tests.oracle_differences_page"
