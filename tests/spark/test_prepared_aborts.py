"""The abort of prepared parts that nobody has decided, and the failure of their ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txnproducer.errors import KafkaTimeoutError
from txnproducer.spark.driver.batch_retries import RunBounds
from txnproducer.spark.driver.prepared_batch import _BatchRuns
from txnproducer.spark.errors import BatchFailedError, CommitIncompleteError, StoppedError
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.producers import CLOSE_AT_STOP_S
from txnproducer.spark.tasks.participant import Part
from txnproducer.spark.tasks.prepared_part import PreparedOrder

LEASES: Any = {0: "lease of 0", 1: "lease of 1"}
ORDER = PreparedOrder(LEASES, 2, decision=3)
LOST = KafkaTimeoutError("no answer")
BRIEFLY_MS = 1000 * CLOSE_AT_STOP_S


class Runs:
    """Notes the steps, and fails where a test says so."""

    def __init__(self, failures=()):
        self.steps: list[Any] = []
        self.ids = self
        self.over: dict[int, Any] = {}
        self._failures = dict(failures)

    def _step(self, name, step=None):
        self.steps.append(step or name)
        if name in self._failures:
            raise self._failures[name]

    def end(self, leases, settings, *, is_commit, timeout_ms=None):
        self._step("end", ("end", sorted(leases), is_commit, timeout_ms))
        return self.over

    def decide(self, *_):
        self._step("decide")

    def check_not_replaced(self, decided=None):
        self._step("look", "look" if decided is None else f"look, {decided} may be decided")

    def leave(self):
        self._step("leave")


def attempts(runs, is_stopped=False):
    def ask():
        if is_stopped:
            raise StoppedError("the query was stopped")

    partitions: Any = SimpleNamespace(raise_if_stopped=ask)
    settings = {"transaction.timeout.ms": "60000"}
    batch = LedgerBatch(4, "query", 2)
    return _BatchRuns(runs, settings, "stop", None, partitions, batch, RunBounds(), 0.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoppedError("stopped")])
def test_an_interrupt_and_a_stop_abort_the_parts_and_wait_for_a_moment(error):
    runs = Runs()
    attempts(runs)._abort(ORDER, error)
    assert runs.steps == [("end", [0, 1], False, BRIEFLY_MS), "leave"]


def test_after_a_failure_the_driver_looks_whether_it_was_replaced():
    runs = Runs()
    attempts(runs)._abort(ORDER, BatchFailedError("a part was lost"))
    assert runs.steps == [("end", [0, 1], False, None), "look", "leave"]


def test_a_stop_that_comes_during_an_abort_asks_nothing_more():
    runs = Runs()
    with pytest.raises(StoppedError):
        attempts(runs, is_stopped=True)._abort(ORDER, BatchFailedError("a part was lost"))
    assert runs.steps == [("end", [0, 1], False, None), "leave"]


@pytest.mark.parametrize("failing", ["decide", "end"])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_stop_that_came_while_no_broker_answered_asks_nothing_more(failing, is_stopped):
    runs = Runs({failing: LOST})
    parts = [Part(None, 5, 50, "0" * 32, "", "abort", {}) for _ in LEASES]
    with pytest.raises(StoppedError if is_stopped else KafkaTimeoutError):
        attempts(runs, is_stopped)._end(ORDER, parts)
    assert runs.steps[-1] == ("leave" if is_stopped else "look, 4 may be decided")
    assert not any(step[0] == "end" and not step[2] for step in runs.steps), "no abort"


def test_a_part_that_was_over_before_its_end_may_be_another_drivers_to_complete():
    runs = Runs()
    runs.over = {1: LOST}
    parts = [Part(None, 5, 50, "0" * 32, "", "abort", {}) for _ in LEASES]
    with pytest.raises(CommitIncompleteError, match="part 1 was over before its end"):
        attempts(runs)._end(ORDER, parts)
    assert runs.steps[-2:] == ["leave", "look, 4 may be decided"]
