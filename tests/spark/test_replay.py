"""A batch that comes again: its report, its warning, and the way on that a refusal names."""

from __future__ import annotations

import logging

import pytest

from txnproducer.spark.driver.replay import report_replay
from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    TornBatchError,
    naming_prepared,
)
from txnproducer.spark.ledger.entries import LedgerEntry

DIGEST, OTHER = "0" * 32, "1".rjust(32, "0")
ENTRY = LedgerEntry(4, "query", 2, 10, DIGEST)


@pytest.mark.parametrize("kind", [PartialReplayError, ReplayMismatchError, TornBatchError])
@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_a_refusal_of_an_older_mode_names_the_one_that_would_go_on(kind, atomicity):
    with pytest.raises(kind, match=r"^other rows An .*Sink with atomicity=\"prepared\", which"):
        with naming_prepared(atomicity):
            raise kind("other rows")


def test_prepared_parts_and_other_refusals_keep_their_text():
    for atomicity, error in (
        ("prepared", ReplayMismatchError("other rows")),
        ("partition", LedgerError("other rows")),
    ):
        with pytest.raises(type(error), match=r"^other rows$"), naming_prepared(atomicity):
            raise error


@pytest.mark.parametrize("found", [(10, DIGEST), (7, OTHER), (10, OTHER)])
def test_other_rows_are_a_warning_and_a_field_of_the_report(found, caplog):
    with caplog.at_level(logging.WARNING):
        report = report_replay(ENTRY, lambda: [found], "warn", 0.0)
    is_other = found != (10, DIGEST)
    assert (report.rows, report.transactions, report.has_other_rows) == (10, 0, is_other)
    assert bool(caplog.records) is is_other
    if is_other:
        text = caplog.text
        assert f"committed with 10 rows, and comes again with {found[0]}, which are others" in text


def test_other_rows_are_refused_or_not_read_if_that_is_asked_for():
    with pytest.raises(ReplayMismatchError, match=r"10 rows .* were committed, now there are 7"):
        report_replay(ENTRY, lambda: [(7, OTHER)], "stop", 0.0)
    assert not report_replay(ENTRY, lambda: pytest.fail("read"), "keep", 0.0).has_other_rows
