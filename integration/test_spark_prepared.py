"""Atomicity "prepared" on real brokers and a real Spark: a decided batch needs no frame."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from integration.brokers import MODES
from integration.spark_frames import Strike, expected, keyed, keyless, seen, wait_for
from txnproducer import InvalidConfigurationError
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaTimeoutError
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark import LedgerError, SinkError, StaleRunError
from txnproducer.spark.driver import prepared_batch
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.errors import (
    BatchFailedError,
    BatchTimedOutError,
    PartialReplayError,
    ReplayMismatchError,
    TornBatchError,
)
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, EndResult
from txnproducer.spark.ledger.store import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
BY_NAME = {mode.name: mode for mode in MODES}


@pytest.fixture(scope="module", params=["4.3.1-v2", "4.3.1-v1"])
def kafka(request):
    with BY_NAME[request.param].start() as kafka:
        yield kafka


@pytest.fixture
def sink(make_sink):
    return partial(make_sink, atomicity="prepared")


class DeadDriverError(BaseException):
    """The end of a driver that was killed. No `except Exception` of the sink's sees it."""


@contextmanager
def killed_before_deciding(monkeypatch):
    """Kill the driver of a block when all parts are written. A dead one aborts nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(PreparedRuns, "decide", _die)
        with suppress(DeadDriverError):
            yield
            pytest.fail("the driver was not killed")


@contextmanager
def killed_between_ends(monkeypatch, ended):
    """Kill the driver of a block when it has ended as many parts."""
    real = CoordinatorClient.end_ids

    def die(self, leases, *, is_commit, timeout_ms):
        assert is_commit, "a part that is decided is aborted"
        real(self, list(leases)[:ended], is_commit=True, timeout_ms=timeout_ms)
        raise DeadDriverError

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorClient, "end_ids", die)
        with suppress(DeadDriverError):
            yield
            pytest.fail("the driver was not killed")


def _die(*_):
    raise DeadDriverError


def unanswered(self, leases, **_):
    error = KafkaTimeoutError("no answer")
    return {each.transactional_id: EndResult(error, ProducerIdAndEpoch.NONE) for each in leases}


def others(spark, count):
    """Make a frame of other rows, in another number of partitions."""
    return keyless(spark, count, partitions=4, first=1000)


def test_a_batch_is_a_transaction_for_each_part_and_one_for_the_decision(
    spark, kafka, topic, sink
):
    writer = sink()
    report = writer.write(keyed(spark, 100), 0)
    assert (report.rows, report.transactions, report.replayed) == (100, 4, 0)
    again = sink().write(keyed(spark, 100), 0)
    assert (again.rows, again.transactions, again.replayed) == (100, 0, 3)
    assert not again.has_other_rows
    wait_for(kafka, topic, expected(100))
    assert writer.status().atomicity == "prepared"


def test_one_sink_writes_batch_after_batch_in_any_number_of_partitions(spark, kafka, topic, sink):
    writer = sink()
    for number in range(5):
        frame = keyless(spark, 10, first=10 * number, partitions=1 + number % 3)
        writer.write(frame, number)
    assert writer.write(keyless(spark, 10, first=40), 4).transactions == 0
    wait_for(kafka, topic, expected(50))


def test_empty_and_small_batches_are_recorded_beside_large_ones(spark, kafka, topic, sink):
    writer = sink(driver_rows=100)
    writer.write(keyless(spark, 0), 0)
    writer.write(spark.createDataFrame([], "value string"), 1)
    writer.write(keyless(spark, 200), 2)
    writer.write(keyless(spark, 10, first=200), 3)
    assert writer.write(keyless(spark, 10, first=210), 4).is_by_driver
    assert not writer.write(keyless(spark, 200, first=220), 5).is_by_driver
    assert sink().write(keyless(spark, 200, first=220), 5).transactions == 0
    wait_for(kafka, topic, expected(420))


# --- a driver that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize("is_with_driver_rows", [False, True])
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_decided_batch_is_completed_without_its_frame(
    spark, kafka, topic, sink, monkeypatch, ended, is_with_driver_rows
):
    with killed_between_ends(monkeypatch, ended):
        sink().write(keyed(spark, 60), 0)
    # Neither the same rows nor as many partitions: the frame is not asked for them.
    restarted = sink(driver_rows=1000) if is_with_driver_rows else sink()
    report = restarted.write(others(spark, 30), 0)
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    wait_for(kafka, topic, expected(60))
    restarted.write(keyless(spark, 10, first=60), 1)
    wait_for(kafka, topic, expected(70))


def test_a_batch_that_was_not_decided_leaves_no_row(spark, kafka, topic, sink, monkeypatch):
    with killed_before_deciding(monkeypatch):
        sink().write(keyed(spark, 60), 0)
    restarted = sink()
    assert restarted.write(others(spark, 30), 0).transactions == 5
    wait_for(kafka, topic, expected(30, first=1000))


@pytest.mark.parametrize("ended", [0, 1])
def test_the_next_batch_of_a_decided_one_completes_it_as_well(
    spark, kafka, topic, sink, monkeypatch, ended
):
    # As with a checkpoint that Spark has moved on, or a job that counts by date.
    with killed_between_ends(monkeypatch, ended):
        sink().write(keyed(spark, 60), 0)
    sink().write(keyless(spark, 10, first=60), 1)
    wait_for(kafka, topic, expected(70))


def test_a_refresh_completes_a_decided_batch(spark, kafka, topic, sink, monkeypatch):
    with killed_between_ends(monkeypatch, 1):
        sink().write(keyed(spark, 60), 0)
    restarted = sink()
    assert restarted.refresh_ledger() == 3
    wait_for(kafka, topic, expected(60))
    assert restarted.write(keyed(spark, 60), 0).transactions == 0
    restarted.write(keyless(spark, 10, first=60), 1)
    wait_for(kafka, topic, expected(70))


def test_a_roll_forward_that_fails_takes_no_id_and_is_repeated(
    spark, kafka, topic, sink, monkeypatch
):
    with killed_between_ends(monkeypatch, 1):
        sink().write(keyed(spark, 60), 0)
    restarted = sink(max_runs=1)
    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorClient, "end_ids", unanswered)
        with pytest.raises(KafkaTimeoutError):
            restarted.write(others(spark, 30), 0)
    assert restarted.write(others(spark, 30), 0).transactions == 0
    wait_for(kafka, topic, expected(60))


# --- a decision or an end in doubt ---------------------------------------------------------------


@pytest.mark.parametrize("is_before", [True, False])
def test_a_decision_in_doubt_is_read_by_the_next_run(
    spark, kafka, topic, sink, monkeypatch, is_before
):
    real, calls = Ledger.write_decision, []

    def in_doubt(self, producer, decision):
        calls.append(decision)
        real(self, producer, decision)
        if len(calls) == 1:
            if not is_before:
                producer.commit_transaction()
            raise KafkaTimeoutError("no answer")

    monkeypatch.setattr(Ledger, "write_decision", in_doubt)
    report = sink().write(keyed(spark, 60), 0)
    assert (report.rows, report.transactions, report.retries) == (60, 4, 1)
    assert len(calls) == (2 if is_before else 1)
    wait_for(kafka, topic, expected(60))


def test_an_end_without_an_answer_is_repeated_by_lease(spark, kafka, topic, sink, monkeypatch):
    real, ended = CoordinatorClient.end_ids, []

    def lost(self, leases, *, is_commit, timeout_ms):
        leases = list(leases)
        ended.append(len(leases))
        if len(ended) > 1:
            return real(self, leases, is_commit=is_commit, timeout_ms=timeout_ms)
        real(self, leases[:1], is_commit=is_commit, timeout_ms=timeout_ms)
        return unanswered(self, leases)

    monkeypatch.setattr(CoordinatorClient, "end_ids", lost)
    report = sink().write(keyed(spark, 60), 0)
    assert (report.rows, report.retries) == (60, 1)
    assert ended[0] == 3
    assert ended[1] >= 2, "the others are ended again"
    wait_for(kafka, topic, expected(60))


# --- time ----------------------------------------------------------------------------------------


def test_a_part_whose_time_was_over_comes_by_replay_from_the_same_rows(
    spark, kafka, topic, sink, monkeypatch
):
    with killed_between_ends(monkeypatch, 1):
        sink().write(keyed(spark, 60), 0)
    abort_open_parts(kafka, sink)
    with pytest.raises(ReplayMismatchError, match=r"transactionTimeout=900000 ms.* 20 rows "):
        sink().write(others(spark, 60).repartition(3), 0)
    with pytest.raises(PartialReplayError, match=r"transactionTimeout=900000 ms.*now there are 4"):
        sink().write(others(spark, 60), 0)
    with pytest.raises(TornBatchError, match=r"transactionTimeout.*batch 0 is committed in part"):
        sink().write(keyless(spark, 10), 1)
    assert len(seen(kafka, topic)) == 20
    report = sink().write(keyed(spark, 60), 0)
    assert (report.rows, report.transactions, report.replayed) == (60, 3, 1)
    wait_for(kafka, topic, expected(60))


def abort_open_parts(kafka, sink):
    """Abort all parts that are open, as the broker does when their time is over."""
    ledger = sink()._ledger
    config = ProducerConfig.build(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=ledger.transactional_id(0)
    )
    with CoordinatorClient(config) as client:
        client.take_ids([ledger.transactional_id(slot) for slot in range(3)], 30_000)


def test_parts_that_have_too_little_time_left_are_aborted_with_the_way_out(
    spark, kafka, topic, sink, monkeypatch
):
    writer = sink()
    with monkeypatch.context() as patch:
        patch.setattr(prepared_batch, "LEAST_LEFT_S", 24 * 3600.0)
        with pytest.raises(
            BatchTimedOutError, match=r"too little time .* atomicity=\"partition\""
        ):
            writer.write(keyed(spark, 10), 0)
    writer.write(keyless(spark, 20), 0)
    wait_for(kafka, topic, expected(20))


def test_a_time_out_that_leaves_no_reserve_is_refused(spark, topic, sink):
    with pytest.raises(InvalidConfigurationError, match="it must be at least 40000 ms"):
        sink(options={"transactionTimeout": "39999"}).write(keyless(spark, 1), 0)


# --- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["task_before_receipt", "task_after_receipt"])
def test_a_batch_whose_task_is_killed_is_run_again(spark, kafka, topic, sink, tmp_path, event):
    strike = Strike(str(tmp_path / "struck"), event)
    report = sink(on_event=strike).write(keyless(spark, 300), 0)
    assert Path(strike.marker).exists()
    assert (report.rows, report.transactions, report.retries) == (300, 3, 1)
    wait_for(kafka, topic, expected(300))


def test_a_row_that_cannot_be_written_is_no_reason_for_another_run(spark, kafka, topic, sink):
    rows = [("x" * (2 << 20),)]
    with pytest.raises(BatchFailedError, match="RecordTooLargeError") as caught:
        sink().write(spark.createDataFrame(rows, "value string"), 0)
    assert caught.value.recovery == "fix"
    assert seen(kafka, topic) == []


# --- other drivers and other modes ---------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(("driver_rows", "count"), [(0, 10), (15, 10), (15, 20)])
def test_a_driver_that_was_replaced_stops_and_leaves_the_batch_to_the_other(
    spark, kafka, topic, sink, partitions, driver_rows, count
):
    # Of one part: its own commit decides. With driver_rows the id of partition 0 changes between
    # the driver's producer and the tasks.
    first = sink(driver_rows=driver_rows)
    first.write(keyless(spark, 10, partitions), 0)
    sink(driver_rows=driver_rows).write(keyless(spark, 10, partitions, first=10), 1)
    with pytest.raises(StaleRunError, match="another driver writes with this sink id"):
        first.write(keyless(spark, count, partitions, first=10), 1)
    wait_for(kafka, topic, expected(20))


def test_a_task_that_is_slower_than_its_time_is_no_reason_for_another_run(
    spark, kafka, topic, sink, monkeypatch
):
    monkeypatch.setattr("txnproducer.spark.driver.checks.LEAST_TIMEOUT_MS", 1)
    monkeypatch.setattr(prepared_batch, "LEAST_LEFT_S", 0.1)
    writer = sink(on_event=Slow(25), options={"transactionTimeout": "2000"})
    with pytest.raises(BatchTimedOutError, match="too little time"):
        writer.write(keyed(spark, 10), 0)
    assert seen(kafka, topic) == []


class Slow:
    """A task that takes long, and longer than brokers need to notice that its time is over."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, event, info):
        if event == "task_before_receipt" and info["partition"] == 0:
            time.sleep(self.seconds)  # the slow task itself


def test_a_refresh_for_another_query_takes_no_id(spark, topic, sink):
    writer = sink()
    writer.write(keyless(spark, 10), 0)
    assert sink().refresh_ledger("another") == 0
    assert sink(topic=topic).refresh_ledger("another") == 0
    assert writer.write(keyless(spark, 10, first=10), 1).retries == 0


def test_a_sink_of_prepared_parts_is_refused_by_the_other_modes(
    spark, kafka, topic, sink, make_sink
):
    sink().write(keyless(spark, 10), 0)
    for atomicity in ("partition", "batch"):
        with pytest.raises(LedgerError, match='was used with atomicity="prepared"'):
            make_sink(atomicity=atomicity).write(keyless(spark, 10, first=10), 1)
    make_sink(topic=topic, atomicity="prepared").write(keyless(spark, 10, first=10), 1)
    wait_for(kafka, topic, expected(20))


def test_other_rows_of_a_committed_batch_are_refused_where_that_is_asked_for(
    spark, kafka, topic, sink
):
    sink().write(keyless(spark, 10), 0)
    with pytest.raises(ReplayMismatchError, match=r"10 rows .* were committed, now there are 30"):
        sink(on_replay_mismatch="stop").write(others(spark, 30), 0)
    assert sink().write(others(spark, 30), 0).has_other_rows
    assert not sink(on_replay_mismatch="keep").write(others(spark, 30), 0).has_other_rows
    wait_for(kafka, topic, expected(10))


def test_speculation_and_partition_writer_are_refused(spark, topic, sink, monkeypatch):
    with pytest.raises(InvalidConfigurationError, match="partition_writer has no driver"):
        sink().partition_writer(0, 2)
    monkeypatch.setattr("txnproducer.spark.session.speculates", lambda _: True)
    with pytest.raises(SinkError, match='with atomicity="prepared" a part has one writer'):
        sink().write(keyless(spark, 1), 0)
