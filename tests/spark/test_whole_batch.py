"""Atomicity "batch" without Spark and without a broker: places, digests, rules, runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from txnproducer._core.partitioner import partition_for_key
from txnproducer.errors import (
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
)
from txnproducer.lease import TransactionReceipt
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark import LedgerError
from txnproducer.spark import whole_batch as module
from txnproducer.spark.digest import Digest, total
from txnproducer.spark.entries import LedgerEntry
from txnproducer.spark.errors import BatchFailedError, SinkError
from txnproducer.spark.ledger import Ledger
from txnproducer.spark.ledger_rules import LedgerRules
from txnproducer.spark.options import check_batch_atomicity
from txnproducer.spark.participant_task import Part, _is_users, _own_rows
from txnproducer.spark.placing import PlaceFinder
from txnproducer.spark.runs import Batch
from txnproducer.spark.whole_batch import WholeBatches

BATCH = Batch(3, "query", 2)
ENTRY = LedgerEntry(3, "query", 2, 7, "0" * 32)


# --- places -------------------------------------------------------------------------------------


def places(rows, columns, index=0, partitions=4):
    return [place for place, _ in PlaceFinder(partitions, frozenset(columns))(index, rows)]


def test_a_key_has_the_place_that_the_producer_would_give_it():
    rows = [{"key": key, "value": b"v"} for key in ("a", b"b", bytearray(b"c"))]
    wanted = [partition_for_key(key, 4) for key in (b"a", b"b", b"c")]
    assert places(rows, ["key", "value"]) == wanted


def test_a_partition_counts_before_a_key_and_rows_with_neither_stay_together():
    rows = [{"key": "a", "partition": 3}, {"key": None, "partition": None}]
    assert places(rows, ["key", "partition"], index=6) == [3, 2]


@pytest.mark.parametrize("place", [-1, 4])
def test_a_partition_that_the_topic_has_not_is_refused(place):
    with pytest.raises(SinkError, match="partitions 0 to 3"):
        places([{"partition": place}], ["partition"])


def test_a_row_in_the_wrong_task_is_refused():
    assert list(_own_rows(1, [(1, "a"), (1, "b")])) == ["a", "b"]
    with pytest.raises(SinkError, match="partition 2 is in task 1"):
        list(_own_rows(1, [(1, "a"), (2, "b")]))


# --- digests, rules, options --------------------------------------------------------------------


def test_the_digest_of_parts_is_that_of_all_their_rows():
    parts = [Digest(), Digest()]
    together = Digest()
    for n in range(10):
        parts[n % 2].add("t", None, None, b"%d" % n)
        together.add("t", None, None, b"%d" % n)
    assert total(part.hex() for part in parts) == together.hex()
    assert total([]) == Digest().hex()


def test_the_ledger_of_whole_batches_is_checked_as_the_others_are():
    rules = LedgerRules()
    assert rules.check_whole(ENTRY, 3, "query") == ENTRY
    assert rules.check_whole(ENTRY, 4, "query") is None
    assert rules.check_whole(None, 0, "query") is None
    for entry, batch_id, query_id, why in (
        (ENTRY, 3, "other", "another query"),
        (ENTRY, 2, "query", "rewound"),
        (None, 1, "query", "no ledger"),
    ):
        with pytest.raises(LedgerError, match=why):
            rules.check_whole(entry, batch_id, query_id)
    taking = LedgerRules("write", "take_over")
    for entry, batch_id, query_id in ((ENTRY, 3, "other"), (ENTRY, 2, "query"), (None, 1, "q")):
        assert taking.check_whole(entry, batch_id, query_id) is None


def test_what_does_not_go_with_whole_batches():
    check_batch_atomicity("topic", None)
    with pytest.raises(InvalidConfigurationError, match="topic is needed"):
        check_batch_atomicity(None, None)
    with pytest.raises(InvalidConfigurationError, match="writers=3"):
        check_batch_atomicity("topic", 3)


# --- runs ---------------------------------------------------------------------------------------


class FakeProducer:
    """Notes the calls; its commits and aborts end as a test says."""

    def __init__(self, log, commits, aborts, begins):
        self.log, self.commits, self.aborts, self.begins = log, commits, aborts, begins

    def begin_transaction(self):
        self._end("begin", self.begins)

    def lease(self, claims):
        self.log.append(f"lease {claims}")
        return SimpleNamespace(claims=claims)

    def adopt(self, receipts):
        self.log.append(f"adopt {len(list(receipts))}")

    def commit_transaction(self):
        self._end("commit", self.commits)

    def abort_transaction(self):
        self._end("abort", self.aborts)

    def _end(self, call, outcomes):
        self.log.append(call)
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    def close(self, timeout=None):
        self.log.append("close")


class FakeLedger(Ledger):
    """Holds the entries that are found, one after the other."""

    log: list[str]
    found: list[LedgerEntry | BaseException | None]

    def __init__(self, log, found):
        super().__init__("nowhere:9092", "sink", "topic", {})
        self.__dict__.update(log=log, found=found)

    def read_whole(self, *, waits_for_undecided=True):
        self.log.append("look" if waits_for_undecided else "glance")
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def write_whole(self, producer, entry):
        self.log.append(f"entry of {entry.rows} rows")


@pytest.fixture
def whole(monkeypatch):
    """Return a maker of `WholeBatches` with fakes, and the log of all that happens."""
    log: list[str] = []
    monkeypatch.setattr(module, "wait_exponential", lambda **_: lambda _: 0)

    def make(found=(None,), commits=(), aborts=(), begins=(), tell=None):
        commits, aborts, begins = list(commits), list(aborts), list(begins)
        batches = WholeBatches(
            FakeLedger(log, list(found)),
            LedgerRules("write"),
            tell or (lambda *_: log.append("tell")),
        )

        def take():
            log.append("take")
            return FakeProducer(log, commits, aborts, begins)

        monkeypatch.setattr(batches, "_take", take)
        return batches

    return make, log


def part(failure="", recovery="abort"):
    identity = ProducerIdAndEpoch(1, 1)
    receipt = None if failure else TransactionReceipt("sink.batch", identity, 0, identity, ())
    return Part(receipt, 5, 50, "0" * 32, failure, recovery, {})


def test_a_batch_is_leased_written_and_committed(whole):
    make, log = whole
    batches = make()
    assert batches.enter(BATCH, {}) is None
    parts, entry = batches.write(BATCH, lambda lease: [part()] * lease.claims)
    assert (len(parts), entry) == (2, None)
    assert log == [
        *("glance", "take", "look"),
        *("begin", "lease 2", "adopt 2", "entry of 10 rows", "tell", "commit", "tell"),
    ]


def test_a_batch_that_is_there_is_not_written_again(whole):
    make, log = whole
    assert make(found=[ENTRY]).enter(BATCH, {}) == ENTRY
    assert log == ["glance", "take", "look"]


def test_a_query_that_has_to_stop_harms_nobody(whole):
    make, log = whole
    with pytest.raises(LedgerError):
        make(found=[ENTRY]).enter(Batch(3, "other", 2), {})
    assert log == ["glance"]


def test_a_frame_without_tasks_is_recorded_without_a_lease(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})
    parts, _ = batches.write(Batch(3, "query", 0), lambda _: pytest.fail("no task"))
    assert parts == []
    assert "entry of 0 rows" in log
    assert not any("lease" in entry for entry in log)


def test_a_failed_part_has_the_batch_aborted_and_run_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})
    tries = [[part("lost"), part()], [part(), part()]]
    parts, _ = batches.write(BATCH, lambda _: tries.pop(0))
    assert len(parts) == 2
    assert log.count("abort") == 1
    assert log.count("commit") == 1
    assert log.count("lease 2") == 2


def test_it_is_run_three_times_at_most(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})
    with pytest.raises(BatchFailedError, match="partition 1 is lost"):
        batches.write(BATCH, lambda _: [part(), part("partition 1 is lost")])
    assert log.count("abort") == 3
    assert "commit" not in log


def test_what_the_user_has_to_mend_is_not_tried_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})
    with pytest.raises(BatchFailedError, match="too large") as caught:
        batches.write(BATCH, lambda _: [part("too large", "fix")])
    assert str(caught.value.recovery) == "fix"
    assert log.count("abort") == 1


def test_what_spark_raises_is_raised_in_the_end(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})

    def run(_):
        raise ZeroDivisionError("in the frame")

    with pytest.raises(ZeroDivisionError):
        batches.write(BATCH, run)
    assert log.count("abort") == 3


def test_an_interrupt_aborts_and_is_not_tried_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, {})

    def run(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batches.write(BATCH, run)
    assert log.count("abort") == 1


@pytest.mark.parametrize("error", [KafkaTimeoutError("?"), ProducerFencedError()])
def test_a_commit_without_a_clear_success_is_decided_by_the_ledger(whole, error):
    make, log = whole
    batches = make(found=[None, None, ENTRY], commits=[error])
    batches.enter(BATCH, {})
    parts, _ = batches.write(BATCH, lambda _: [part(), part()])
    assert len(parts) == 2
    assert log[-6:] == ["tell", "commit", "close", "take", "look", "tell"]


def test_a_commit_that_did_not_happen_is_made_again(whole):
    make, log = whole
    batches = make(commits=[KafkaTimeoutError("?"), None])
    batches.enter(BATCH, {})
    batches.write(BATCH, lambda _: [part(), part()])
    assert log.count("commit") == 2
    assert log.count("take") == 2


def test_a_failed_abort_asks_for_a_new_producer_which_looks_before_it_writes(whole):
    make, log = whole
    batches = make(found=[None, None, ENTRY], aborts=[ProducerFencedError()])
    batches.enter(BATCH, {})
    parts, entry = batches.write(BATCH, lambda _: [part("lost")])
    # Another driver has committed the batch in the meantime.
    assert (parts, entry) == ([], ENTRY)
    assert log[-4:] == ["abort", "close", "take", "look"]
    batches.close()
    assert log[-1] == "close"


def test_a_ledger_that_could_not_be_read_behind_a_commit_is_read_before_another_run(whole):
    make, log = whole
    found = [None, None, KafkaTimeoutError("?"), ENTRY]
    batches = make(found=found, commits=[KafkaTimeoutError("?")])
    batches.enter(BATCH, {})
    assert batches.write(BATCH, lambda _: [part(), part()]) == ([], ENTRY)
    assert log.count("commit") == 1


def test_a_hook_that_raises_behind_the_commit_has_nothing_written_again(whole):
    make, log = whole

    def tell(name, *_):
        if name == "batch_after_commit":
            raise RuntimeError("of the user")

    batches = make(tell=tell)
    batches.enter(BATCH, {})
    with pytest.raises(RuntimeError, match="of the user"):
        batches.write(BATCH, lambda _: [part(), part()])
    assert log.count("commit") == 1


def test_a_producer_that_cannot_begin_is_replaced(whole):
    make, log = whole
    batches = make(begins=[ProducerFencedError()], aborts=[ProducerFencedError()])
    batches.enter(BATCH, {})
    parts, _ = batches.write(BATCH, lambda _: [part(), part()])
    assert len(parts) == 2
    assert log.count("take") == 2


@pytest.mark.parametrize("call", ["commits", "aborts"])
def test_an_interrupted_end_leaves_no_producer_behind(whole, call):
    make, log = whole
    batches = make(**{call: [KeyboardInterrupt()]})
    batches.enter(BATCH, {})
    failing = call == "aborts"
    with pytest.raises(KeyboardInterrupt):
        batches.write(BATCH, lambda _: [part("lost" if failing else ""), part()])
    assert log[-1] == "close"
    batches.write(BATCH, lambda _: [part(), part()])
    assert log.count("take") == 2


def test_a_records_own_error_is_the_users_whatever_followed_from_it():
    cause = RecordTooLargeError("5086 bytes", recovery="abort")
    error = KafkaError("cannot go on", recovery="abort")
    error.__cause__ = cause
    assert _is_users(error)
    assert not _is_users(KafkaTimeoutError("lost"))
