"""The ends of a data source's parts: each is tried, and a failed one is judged by the ledger."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    DisconnectError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
    UnstableOffsetCommitError,
)
from txnproducer.records import ProducerIdAndEpoch, TransactionLease
from txnproducer.spark.driver import part_commits
from txnproducer.spark.driver.part_commits import PartCommits
from txnproducer.spark.driver.part_ends import PartEnds
from txnproducer.spark.errors import CommitIncompleteError
from txnproducer.spark.ledger.coordinator_client import EndResult
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.slots import Slot
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.tasks.open_part import OpenPart

PARTS = 40


class FakeLedger:
    """A ledger with the given entries. Without any they stay undecided.

    Args:
        entries: by slot.
        plan: of the sink.
        error: raised by each question, if given.
    """

    plan_id = "sink.plan"

    def __init__(self, entries=None, plan=None, error=None):
        self._entries = entries
        self._plan = plan
        self._error = error

    def transactional_id(self, partition):
        return f"sink.p{partition}"

    def read(self, *, waits_for_undecided, timeout_s):
        assert not waits_for_undecided
        assert timeout_s <= 1.0
        return self._plan, {}

    def read_entries(self, slots, *, waits_for_undecided=True, timeout_s):
        assert 0 < timeout_s <= 10.0
        if self._error is not None:
            raise self._error
        if self._entries is None and waits_for_undecided:
            raise UnstableOffsetCommitError("the offsets are undecided")
        return self._entries or {}


class FakeClient:
    """Ends transactions, but for the commits of some partitions.

    Args:
        error: of a failed commit.
        failing: the partitions that it fails for.
        is_dead: whether they get no answer in their time, either.
    """

    def __init__(self, error=None, failing=(0,), *, is_dead=False):
        self._error = error
        self._failing = failing
        self._is_dead = is_dead
        self.ended = []
        self.times_ms = []
        self.taken = []
        self.is_closed = False

    def end_ids(self, leases, *, is_commit, timeout_ms):
        self.times_ms.append(timeout_ms)
        results, is_late = {}, False
        for lease in leases:
            partition = int(lease.transactional_id.removeprefix("sink.p"))
            fails = is_commit and (partition in self._failing or not timeout_ms)
            is_late |= fails
            if not fails:
                self.ended.append((partition, "commit" if is_commit else "abort"))
            error = self._error if fails else None
            results[lease.transactional_id] = EndResult(error, ProducerIdAndEpoch.NONE)
        if is_late and self._is_dead:
            time.sleep(timeout_ms / 1000)
        return results

    def take_each(self, ids, timeout_ms):
        assert timeout_ms > 0
        self.taken += ids
        return {}


def lease(number):
    return TransactionLease(
        f"sink.p{number}", ProducerIdAndEpoch(number, 1), True, (), cluster_id=None
    )


def part(number):
    return part_commits._Prepared(number, Slot(number, False), lease(number), ENTRY)


def open_part(number, query_id="query"):
    return OpenPart(number, 5, query_id, lease(number), 1, 1, "0" * 32, {})


ENTRY = LedgerEntry(5, "query", PARTS, 1, "0" * 32)
# Of no broker: whatever connects is refused.
SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "transaction.timeout.ms": "60000"}


@pytest.fixture
def commits_by(monkeypatch):
    """Return a maker of commits over a fake client, with a second for each call of theirs."""

    def make(client, ledger, on_event=None):
        @contextmanager
        def ends(self):
            try:
                yield PartEnds(client, 1000)
            finally:
                client.is_closed = True

        monkeypatch.setattr(PartCommits, "_ends", ends)
        return PartCommits(ledger, LedgerRules(), SETTINGS, on_event)

    return make


@pytest.fixture
def commit_each(commits_by):
    """Return a function that commits parts over a fake client."""

    def run(client, ledger, on_event=None):
        commits = commits_by(client, ledger, on_event)
        with commits._ends() as ends:
            commits._commit_each([part(number) for number in range(PARTS)], ends)

    return run


REST = {(number, "commit") for number in range(1, PARTS)}


def test_the_others_are_committed_though_one_part_is_refused(commit_each):
    client = FakeClient(TransactionalIdAuthorizationError("no"))
    told = (
        r"partition 0 could not be committed \(Transac.* In all 1 of 40 partitions \(0\) are not "
        r"committed.*Start the query again.*Nothing has to be done about open.*\(60000 ms\)"
    )
    with pytest.raises(CommitIncompleteError, match=told) as found:
        commit_each(client, FakeLedger({}))
    assert set(client.ended) == REST
    assert isinstance(found.value.__cause__, TransactionalIdAuthorizationError)
    assert client.is_closed


def test_a_part_whose_answer_was_lost_is_judged_by_the_ledger(commit_each):
    client = FakeClient(CommitOutcomeUnknownError("lost"))
    commit_each(client, FakeLedger({0: ENTRY}))
    assert set(client.ended) == REST


def test_a_part_that_the_cluster_wants_aborted_is_aborted_before_the_ledger_is_read(commit_each):
    client = FakeClient(TransactionAbortableError("abort it"))
    with pytest.raises(CommitIncompleteError):
        commit_each(client, FakeLedger({}))
    assert set(client.ended) == {*REST, (0, "abort")}


def test_a_ledger_that_stays_undecided_does_not_hide_the_part_that_failed(commit_each):
    client = FakeClient(TransactionalIdAuthorizationError("no"))
    with pytest.raises(CommitIncompleteError, match="TransactionalIdAuthorization") as found:
        commit_each(client, FakeLedger())
    assert found.value.recovery == "restart"
    assert set(client.ended) == REST


def test_a_ledger_that_cannot_be_read_does_not_hide_the_part_that_failed(commit_each):
    client = FakeClient(TransactionalIdAuthorizationError("no"))
    with pytest.raises(CommitIncompleteError, match="TransactionalIdAuthorization"):
        commit_each(client, FakeLedger(error=DisconnectError("gone")))


# --- one deadline for all ------------------------------------------------------------------------


def test_parts_without_an_answer_do_not_keep_the_others_from_their_commit(commit_each):
    # More of them than are ended at once, and all of them first.
    dead = range(20)
    client = FakeClient(KafkaTimeoutError("no answer"), dead, is_dead=True)
    events = []
    began_s = time.monotonic()
    told = r"In all 20 of 40 partitions \(0, 1, .* 9 and 10 more\) are not committed"
    with pytest.raises(CommitIncompleteError, match=told):
        commit_each(client, FakeLedger({}), lambda name, info: events.append((name, info)))
    assert time.monotonic() - began_s < 1.8, "a second for all of them"
    assert client.times_ms[-1] <= 750, "a quarter of it is over"
    assert {(number, "commit") for number in range(20, PARTS)} <= set(client.ended)
    for name, partitions in (("before_commit", range(PARTS)), ("committed", range(20, PARTS))):
        seen = [info["partition"] for event, info in events if event == f"partition_{name}"]
        assert sorted(seen) == list(partitions), "once for each"


def test_an_abort_takes_the_ids_of_silent_tasks_if_the_sink_is_theirs(commits_by):
    plan = PlanEntry(1, "query", 4)
    for query, taken in (("query", ["sink.p1", "sink.p3"]), ("other", [])):
        client = FakeClient()
        parts = [open_part(0, query), None, open_part(2, query), None]
        commits_by(client, FakeLedger(plan=plan)).abort(parts)
        assert client.ended == [(0, "abort"), (2, "abort")]
        assert client.taken == taken


def commits_on_no_cluster(timeout_ms, on_event=None):
    settings = {**SETTINGS, "max.block.ms": str(timeout_ms)}
    ledger = Ledger("127.0.0.1:1", "sink", "topic", {})
    return PartCommits(ledger, LedgerRules(), settings, on_event)


def test_the_abort_of_a_thousand_parts_has_one_deadline(caplog):
    began_s = time.monotonic()
    commits_on_no_cluster(1000).abort([open_part(number) for number in range(1000)] + [None])
    assert time.monotonic() - began_s < 12, "no second for each eight of them"
    (line,) = [one for one in caplog.messages if "not aborted" in one]
    assert line.startswith("1000 of 1000 transactions were not aborted, the first one that of ")
    assert "the next start ends them, or the broker does after transactionTimeout" in line


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_an_interrupt_ends_the_wait_for_a_thousand_parts(end):
    commits = commits_on_no_cluster(60_000)
    began_s = time.monotonic()
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    parts = [(open_part if end == "abort" else part)(number) for number in range(1000)]
    with commits._ends() as ends:
        call = commits.abort if end == "abort" else lambda of: commits._commit_each(of, ends)
        with pytest.raises(KeyboardInterrupt):
            call(parts)
    timer.join()
    assert time.monotonic() - began_s < 10
