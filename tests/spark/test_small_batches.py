"""Small batches that the driver writes itself: the guess, the read's way, the kept producer."""

from __future__ import annotations

import pickle
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.whole_batches import BATCH, ENTRY, FakeLedger, fake_batches, part
from tests.spark.whole_batches import SETTINGS as OF_BATCHES
from tests.spark.whole_batches import FakeProducer as OfBatches
from txnproducer._core.transactions.transaction_loss import Cause, TransactionLoss, is_taken_over
from txnproducer.errors import KafkaTimeoutError, ProducerFencedError
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.driver import kept_producer, small_batches
from txnproducer.spark.driver.kept_producer import KeptProducer
from txnproducer.spark.driver.partition_batch import PartitionBatches
from txnproducer.spark.driver.small_batches import DRIVER_ROWS, SmallBatches
from txnproducer.spark.driver.whole_batch import WholeBatches
from txnproducer.spark.errors import StaleRunError, StoppedError
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.reports import BatchReport
from txnproducer.spark.rows.few_rows import MOST_BYTES

FRAME, ROWS = object(), ["rows"]


@pytest.fixture
def reads(monkeypatch):
    """Return the list of reads, each as its bound and whether one task did it."""
    done: list[tuple[int, bool]] = []

    def read(frame, most_rows, *, in_one_task):
        done.append((most_rows, in_one_task))
        return ROWS

    monkeypatch.setattr(small_batches, "can_read_few", lambda frame: True)
    monkeypatch.setattr(small_batches, "read_few", read)
    return done


@pytest.fixture
def takes(monkeypatch):
    """Return a function that sets how long the following reads take, in seconds."""
    clock = [0.0]

    def set_to(seconds):
        def now():
            clock[0] += seconds
            return clock[0]

        monkeypatch.setattr(time, "monotonic", now)

    return set_to


# --- the guess -----------------------------------------------------------------------------------


def test_the_batch_after_a_small_one_is_read_and_after_a_large_one_of_unknown_time_it_is_not(
    reads,
):
    small = SmallBatches(None)
    assert small.read(FRAME) is None  # nothing is known yet
    small.note_entry(DRIVER_ROWS)
    assert small.read(FRAME) is ROWS
    small.note(DRIVER_ROWS + 1)
    assert small.read(FRAME) is None
    # The rows of an entry may be large, and the JVM holds all of them.
    assert reads == [(MOST_BYTES // (64 * 1024), False)]


def test_a_bound_that_is_given_is_a_hint_for_the_first_batch(reads):
    assert SmallBatches(5).read(FRAME) is ROWS
    assert reads == [(5, False)]


@pytest.fixture
def results(monkeypatch, reads):
    """Return the results of the next reads. Those after them find too many rows."""
    left: list[list[str]] = []

    def read(frame, most_rows, *, in_one_task):
        reads.append((most_rows, in_one_task))
        return left.pop(0) if left else None

    monkeypatch.setattr(small_batches, "read_few", read)
    return left


def tried(small, reads, batches, seconds=0.2):
    """Return which of some batches are read, each after one of many rows and some seconds."""
    found = []
    for number in range(batches):
        small.note(DRIVER_ROWS + 1, 0, seconds)
        before = len(reads)
        small.read(FRAME)
        found += [number] * (len(reads) - before)
    return found


def test_the_more_tries_have_failed_the_more_seldom_a_batch_after_a_large_one_is_tried(
    reads, results
):
    assert tried(SmallBatches(None), reads, 40) == [0, 1, 3, 7, 15, 31]


def test_a_small_batch_ends_the_wait_by_driver_or_by_tasks(reads, results):
    small = SmallBatches(None)
    assert tried(small, reads, 6) == [0, 1, 3]
    small.note(10, 0, 0.2)  # by tasks
    assert small.read(FRAME) is None  # as a guess, which is no try
    assert tried(small, reads, 4) == [0, 1, 3]
    assert tried(small, reads, 3) == []
    results.append(ROWS)
    assert tried(small, reads, 1) == [0]
    small.note(10, 0, 0.01)  # by the driver
    assert small.read(FRAME) is None
    assert tried(small, reads, 4) == [0, 1, 3]


def test_a_small_batch_after_two_large_ones_is_found_again_and_again(reads, results):
    small = SmallBatches(None)
    small.note(10)
    for _ in range(40):
        assert small.read(FRAME) is None
        small.note(DRIVER_ROWS + 1, 0, 0.2)
        assert small.read(FRAME) is None
        small.note(DRIVER_ROWS + 1, 0, 0.2)
        results.append(ROWS)
        assert small.read(FRAME) is ROWS
        small.note(10, 0, 0.01)


def test_a_replays_time_is_no_batchs(reads, results):
    small = SmallBatches(None)
    report = BatchReport(4, DRIVER_ROWS + 1, 0, 0, 2, 0.1, ())
    small.note_report(report)
    assert small.read(FRAME) is None
    assert reads == []
    small.note_report(replace(report, transactions=2))
    small.read(FRAME)
    assert len(reads) == 1


def test_a_batch_after_one_of_seconds_or_of_an_unknown_time_is_not_tried(reads, results):
    small = SmallBatches(None)
    assert tried(small, reads, 3, seconds=1.1) == []
    assert tried(small, reads, 3, seconds=None) == []
    assert tried(small, reads, 1) == [0]


def test_a_bound_of_zero_leaves_every_batch_to_tasks(reads):
    small = SmallBatches(0)
    small.note(0)
    assert small.read(FRAME) is None
    assert reads == []


def test_a_frame_that_spark_does_not_give_as_arrow_goes_by_tasks(monkeypatch, reads):
    monkeypatch.setattr(small_batches, "can_read_few", lambda frame: False)
    assert SmallBatches(5).read(FRAME) is None
    assert reads == []


@pytest.mark.parametrize(
    ("seconds", "ways"),
    [
        # By many tasks first, then by one, and from then on by the quicker way.
        ((0.05, 0.02, 0.02), [False, True, True]),
        ((0.05, 0.06, 0.05), [False, True, False]),
        # Work that one task would do alone.
        ((0.3, 0.3, 0.05, 0.05), [False, False, False, True]),
        # One task has become slower.
        ((0.05, 0.02, 0.4, 0.05), [False, True, True, False]),
    ],
)
def test_a_frame_is_read_in_the_quicker_way(reads, takes, seconds, ways):
    small = SmallBatches(5)
    for each in seconds:
        takes(each)
        small.read(FRAME)
    assert [in_one_task for _, in_one_task in reads] == ways


def test_a_read_that_fails_is_a_wrong_guess_and_a_stop_is_not(monkeypatch, reads):
    small = SmallBatches(5)

    def fail(frame, most_rows, *, in_one_task):
        raise error

    monkeypatch.setattr(small_batches, "read_few", fail)
    error: Exception = StoppedError("the query was stopped")
    with pytest.raises(StoppedError):
        small.read(FRAME)
    error = ValueError("of the frame")
    assert small.read(FRAME) is None
    monkeypatch.undo()
    assert small.read(FRAME) is None  # it is not tried before a small batch
    assert reads == []


def test_rows_that_are_large_make_a_batch_of_few_rows_a_large_one(reads):
    small = SmallBatches(10_000)
    small.note(1_000, 1_000 * 10_000)
    assert small.read(FRAME) is ROWS
    small.note(1_000, MOST_BYTES + 1)
    assert small.read(FRAME) is None
    assert reads == [(MOST_BYTES // 10_000, False)]


def test_the_ledgers_count_does_not_make_large_rows_small_again(reads):
    small = SmallBatches(None)
    small.note_entry(1_000)
    assert small.read(FRAME) is ROWS
    small.note_entry(DRIVER_ROWS + 1)
    assert small.read(FRAME) is None
    small.note(1_000, MOST_BYTES + 1)
    small.note_entry(1_000)
    assert small.read(FRAME) is None


def test_a_whole_batch_of_few_large_rows_is_not_read_twice_again_and_again(monkeypatch, reads):
    make, _ = fake_batches(monkeypatch)
    settings: Any = SimpleNamespace(rules=LedgerRules("write"), driver_rows=None)
    cluster: Any = SimpleNamespace(timeout_ms=lambda: 60_000, producer_settings=lambda: OF_BATCHES)
    whole = WholeBatches(settings, FakeLedger([], [None]), cluster, None)
    whole.transactions = make(found=[None])
    large = replace(part(), rows=1_000, size_bytes=MOST_BYTES + 1)

    def write():
        whole.transactions.last = replace(ENTRY, rows=1_000)
        return [large], None

    # After a batch of seconds no other one is tried.
    whole._write(BATCH, time.monotonic() - 2, write, list, is_by_driver=False)
    whole.check(BATCH.batch_id + 1, "query")
    assert whole._small.read(FRAME) is None


@pytest.mark.parametrize("max_runs", [1, 4])
def test_a_small_batch_has_as_many_runs_as_a_large_one(monkeypatch, max_runs):
    make, log = fake_batches(monkeypatch)
    settings: Any = SimpleNamespace(
        rules=LedgerRules("write"), driver_rows=None, max_runs=max_runs, reader=lambda _: None
    )
    cluster: Any = SimpleNamespace(
        timeout_ms=lambda: 60_000, producer_settings=lambda: OF_BATCHES, partitions=None
    )
    lost = [KafkaTimeoutError("no answer") for _ in range(9)]
    whole = WholeBatches(settings, FakeLedger([], [None]), cluster, None)
    whole.transactions = make(found=[None], begins=lost)
    parts = PartitionBatches(settings, FakeLedger([], [None]), cluster, None)
    monkeypatch.setattr(parts, "plan", lambda _: (None, {}))
    producer = OfBatches(log, (), (), list(lost))
    monkeypatch.setattr(parts, "_attempt", lambda *_: producer.begin_transaction())
    for batches in (whole, parts):
        log.clear()
        with pytest.raises(KafkaTimeoutError):
            batches._write_small([], BATCH, 0.0, lambda: None)
        assert log.count("begin") == max_runs


def test_the_way_that_was_slow_once_is_tried_again(reads, takes):
    small = SmallBatches(5)
    for seconds in (0.05, 0.02, 0.4, 0.08, *[0.08] * 100):
        takes(seconds)
        small.read(FRAME)
    ways = [in_one_task for _, in_one_task in reads]
    assert ways[:5] == [False, True, True, False, False]
    assert any(ways[5:])


# --- the kept producer ---------------------------------------------------------------------------


class FakeProducer:
    made: list[FakeProducer]
    fails = False

    @classmethod
    def from_config(cls, config):
        cls.made.append(cls())
        return cls.made[-1]

    def __init__(self) -> None:
        self.closed: list[float] = []

    def init_transactions(self):
        if self.fails:
            raise ProducerFencedError("fenced")

    def close(self, timeout):
        self.closed.append(timeout)


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(FakeProducer, "fails", False)
    monkeypatch.setattr(kept_producer, "TransactionalProducer", FakeProducer)
    return KeptProducer(Ledger("host:1", "sink", "topic", {}), "sink.p0")


SETTINGS = {"bootstrap.servers": "host:1"}


def test_a_producer_is_kept_until_it_is_let_go(kept):
    with kept.held(SETTINGS) as first:
        pass
    with kept.held(SETTINGS) as second:
        pass
    assert first is second
    assert kept.is_held
    kept.let_go()
    kept.let_go()
    assert not kept.is_held
    assert first.closed == [0.5]


@pytest.mark.parametrize(
    ("error", "timeout_s"), [(ProducerFencedError("x"), 0.5), (KeyboardInterrupt(), 0)]
)
def test_a_producer_is_let_go_after_an_error(kept, error, timeout_s):
    with pytest.raises(type(error)), kept.held(SETTINGS) as producer:
        raise error
    assert not kept.is_held
    assert producer.closed == [timeout_s]


def test_a_producer_that_cannot_take_the_id_is_not_kept(kept, monkeypatch):
    monkeypatch.setattr(FakeProducer, "fails", True)
    with pytest.raises(ProducerFencedError), kept.held(SETTINGS):
        pass
    assert not kept.is_held
    assert FakeProducer.made[0].closed == [0]


def test_a_copy_of_a_kept_producer_holds_nothing(kept):
    with kept.held(SETTINGS):
        assert not pickle.loads(pickle.dumps(kept)).is_held


# --- a driver that was replaced ------------------------------------------------------------------


def loss(cause, **fields):
    found = TransactionLoss(
        ProducerIdAndEpoch(1, 5), 2, age_ms=10, timeout_ms=60_000, noticed_ms=0
    )
    found.cause = cause
    for name, value in fields.items():
        setattr(found, name, value)
    return found.explain(ProducerFencedError("fenced"), "producer x")


def test_only_a_certain_loss_to_a_newer_producer_stops_a_driver():
    certain = [loss(Cause.TAKEN_OVER), loss(Cause.TAKEN_OVER, epoch=7)]
    others = [
        loss(Cause.TAKEN_OVER, may_be_own=True),
        loss(Cause.TIMED_OUT),
        loss(Cause.FORGOTTEN),
        loss(Cause.UNCERTAIN),
        loss(Cause.UNCERTAIN, age_ms=70_000),
        ProducerFencedError("fenced"),
    ]
    assert [is_taken_over(each) for each in (*certain, *others)] == [True] * 2 + [False] * 6


def test_a_driver_that_was_replaced_leaves_a_small_batch_to_the_other_one(monkeypatch):
    make, log = fake_batches(monkeypatch)
    batch = LedgerBatch(4, "query", 1)
    fenced = loss(Cause.TAKEN_OVER, epoch=7)
    batches = make(found=[ENTRY], commits=[fenced])
    batches.enter(batch, OF_BATCHES)
    log.clear()
    with pytest.raises(StaleRunError, match="another driver"):
        batches.write_rows(batch, lambda producer: part(), lambda: None)
    assert "take" not in log


# --- batches without a look at the ledger --------------------------------------------------------


def test_a_whole_batch_needs_no_look_while_the_id_is_held(monkeypatch):
    make, log = fake_batches(monkeypatch)
    batches = make(found=[ENTRY])  # batch 3
    next_one = LedgerBatch(4, "query", 1)
    assert not batches.goes_on(next_one)
    batches.enter(next_one, OF_BATCHES)
    assert batches.goes_on(next_one)
    assert not batches.goes_on(LedgerBatch(3, "query", 1))
    log.clear()
    batches.write_rows(next_one, lambda producer: part(), lambda: None)
    assert log == ["begin", "entry of 5 rows", "tell", "commit", "tell"]
    assert not batches.goes_on(next_one)
    assert batches.goes_on(LedgerBatch(5, "query", 1))
    assert not batches.goes_on(LedgerBatch(5, "another", 1))


def test_a_whole_batch_needs_a_look_after_the_id_was_let_go(monkeypatch):
    make, _ = fake_batches(monkeypatch)
    batches = make(found=[ENTRY])
    batches.enter(LedgerBatch(4, "query", 1), OF_BATCHES)
    batches.write_rows(LedgerBatch(4, "query", 1), lambda producer: part(), lambda: None)
    batches.close()
    assert not batches.goes_on(LedgerBatch(5, "query", 1))
    # Without the id, a look shows what another driver may change at once.
    batches.check(LedgerBatch(5, "query", 1))
    assert not batches.goes_on(LedgerBatch(5, "query", 1))
    # A refresh takes the id, and another driver may have committed before.
    monkeypatch.setattr(FakeLedger, "read_whole", lambda *_, **__: ENTRY)
    monkeypatch.setattr(OfBatches, "transaction", lambda _: nullcontext(), raising=False)
    assert batches.refresh("query", OF_BATCHES) == 1
    assert not batches.goes_on(LedgerBatch(5, "query", 1))
