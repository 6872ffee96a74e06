"""A refresh of prepared parts: another driver may begin a run between two ids that it takes."""

from __future__ import annotations

import contextlib

import pytest

from txnproducer.spark.driver import runs
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.errors import StaleRunError
from txnproducer.spark.ledger.entries import PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger


class _Ledger(Ledger):
    """A ledger with the plan of another driver's run."""

    def read(self, partitions=(), **how):
        return PlanEntry(2, "query", 2, is_prepared=True), {}


def test_an_id_is_not_taken_once_another_driver_has_begun(monkeypatch):
    taken: list[str] = []

    @contextlib.contextmanager
    def hold(ledger, name, settings):
        taken.append(name)
        yield

    monkeypatch.setattr(runs, "holding", hold)
    driver = PreparedRuns(_Ledger("nowhere:9092", "sink", "topic", {}), LedgerRules())
    with pytest.raises(StaleRunError):
        driver._refresh(1, PlanEntry(1, "query", 2, is_prepared=True), {})
    assert not taken, "taking the id would have aborted the other driver's part"
