"""Named runs between batches with numbers: the ledger is asked about each of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.ledger.entries import LedgerBatch, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger

NUMBER, NAME = LedgerBatch(7, "query", 1), LedgerBatch(0, "query", 1, "monday")


@pytest.mark.parametrize(
    ("last", "batch", "goes_on"),
    [
        (NUMBER, replace(NUMBER, batch_id=8), True),
        (NUMBER, NAME, False),
        (NAME, NUMBER, False),
        (NAME, replace(NAME, run_id="tuesday"), False),
        # With an order that names do not have, this one would be later.
        (replace(NAME, batch_id=-1), NAME, False),
    ],
)
def test_only_a_number_after_a_number_goes_on_without_a_look(last, batch, goes_on):
    runs = PreparedRuns(Ledger("nowhere:9092", "sink", "topic", {}), LedgerRules())
    runs._plan = PlanEntry(1, "query", 2, is_prepared=True)
    runs._last, runs._planned_s = last, time.monotonic()
    runs.batch_done()
    assert runs.goes_on(batch) == goes_on
