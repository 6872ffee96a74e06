"""A sink that names no atomicity, with a real broker: new, used, raced, restarted."""

from __future__ import annotations

from functools import partial

import pytest

from integration.spark_frames import expected, keyed, keyless, seen, wait_for
from txnproducer import InvalidConfigurationError
from txnproducer.spark import LedgerError
from txnproducer.spark.driver import atomicity
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient
from txnproducer.spark.listener import SinkListener

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SHORT = {"options": {"transactionTimeout": "30000"}}


@pytest.fixture
def sink(make_sink):
    """Return a maker of sinks of one id that name no atomicity, each like a new process."""
    return partial(make_sink, atomicity=None)


def test_a_new_sink_id_gets_prepared_parts_and_keeps_them(spark, kafka, topic, sink):
    first = sink()
    assert first.status().atomicity is None
    assert first.write(keyed(spark, 60), 0).transactions == 4  # three parts and the decision
    first.write(keyed(spark, 60, first=60), 1)
    # A restart that could not choose them for a new sink id goes on in them, or stops.
    assert sink().write(keyed(spark, 60, first=60), 1).transactions == 0
    with pytest.raises(InvalidConfigurationError, match=r"used with it.*transactionTimeout=30000"):
        sink(**SHORT).write(keyless(spark, 10, first=120), 2)
    restarted = sink(driver_rows=1000)
    restarted.write(keyless(spark, 10, first=120), 2)
    assert restarted.status().atomicity == "prepared"
    wait_for(kafka, topic, expected(130))


@pytest.mark.parametrize("mode", ["partition", "batch", "prepared"])
def test_a_used_sink_id_goes_on_in_its_own_mode(spark, kafka, topic, make_sink, sink, mode):
    make_sink(atomicity=mode).write(keyed(spark, 60), 0)
    again = sink()
    assert again.write(keyed(spark, 60), 0).transactions == 0
    again.write(keyed(spark, 60, first=60), 1)
    assert again.status().atomicity == mode
    # And back to the sink that names it.
    make_sink(atomicity=mode).write(keyed(spark, 60, first=120), 2)
    wait_for(kafka, topic, expected(180))


def test_a_short_time_gives_a_new_sink_id_partition(spark, kafka, topic, sink):
    assert sink(**SHORT).write(keyed(spark, 60), 0).transactions == 3
    # With more time it would be another choice, if the sink id were still new.
    later = sink()
    later.write(keyed(spark, 60, first=60), 1)
    assert later.status().atomicity == "partition"
    wait_for(kafka, topic, expected(120))


def test_a_ledger_in_a_topic_goes_with_the_choice(spark, kafka, topic, sink):
    for number in range(2):
        one = sink(ledger="topic")
        one.write(keyed(spark, 60, first=60 * number), number)
    assert one.status().atomicity == "prepared"
    wait_for(kafka, topic, expected(120))


@pytest.mark.parametrize("is_slow_one_prepared", [True, False])
def test_of_two_drivers_that_choose_differently_only_one_writes(
    spark, kafka, topic, sink, monkeypatch, is_slow_one_prepared
):
    slow, quick = (sink(), sink(**SHORT)) if is_slow_one_prepared else (sink(**SHORT), sink())
    real = atomicity.of_ledger
    raced: list[object] = []

    def look(ledger):
        found = real(ledger)
        if not raced:  # the other driver writes its first batch between look and plan
            raced.append(found)
            quick.write(keyed(spark, 60), 0)
        return found

    monkeypatch.setattr(atomicity, "of_ledger", look)
    modes = ["prepared", "partition"] if is_slow_one_prepared else ["partition", "prepared"]
    told = f'was used with atomicity="{modes[1]}", and this is atomicity="{modes[0]}"'
    for _ in range(2):
        with pytest.raises(LedgerError, match=told):
            slow.write(keyed(spark, 60, first=1000), 0)
    assert (raced, quick.status().atomicity) == ([None], modes[1])
    quick.write(keyed(spark, 60, first=60), 1)
    wait_for(kafka, topic, expected(120))
    # A new start of the refused driver goes on in the mode of the other one.
    report = sink().write(keyed(spark, 60, first=60), 1)
    assert (report.rows, report.transactions) == (60, 0)
    assert seen(kafka, topic) == expected(120)


def test_of_two_plans_at_once_the_one_that_is_committed_decides(
    spark, kafka, topic, sink, monkeypatch
):
    # The other driver comes when this one has the plan's id and has found the sink id new.
    slow, quick = sink(), sink(**SHORT)
    real = PreparedRuns._before_commit
    raced: list[bool] = []

    def overtaken(self, settings):
        if not raced:
            raced.append(True)
            quick.write(keyed(spark, 60), 0)
        real(self, settings)

    monkeypatch.setattr(PreparedRuns, "_before_commit", overtaken)
    with pytest.raises(LedgerError, match='was used with atomicity="partition"'):
        slow.write(keyed(spark, 60, first=1000), 0)
    assert raced
    quick.write(keyed(spark, 60, first=60), 1)
    wait_for(kafka, topic, expected(120))


class DeadDriverError(BaseException):
    """The end of a driver that was killed."""


def test_a_restart_completes_a_batch_that_was_decided(spark, kafka, topic, sink, monkeypatch):
    real = CoordinatorClient.end_ids

    def die(self, leases, *, is_commit, timeout_ms):
        real(self, list(leases)[:1], is_commit=is_commit, timeout_ms=timeout_ms)
        raise DeadDriverError

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorClient, "end_ids", die)
        with pytest.raises(DeadDriverError):
            sink().write(keyed(spark, 60), 0)
    report = sink().write(keyless(spark, 30, partitions=4, first=1000), 0)
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    wait_for(kafka, topic, expected(60))


def test_a_refresh_chooses_for_a_used_sink_id_alone(spark, kafka, topic, make_sink, sink):
    new = sink()
    assert new.refresh_ledger() == 0
    make_sink(atomicity="batch").write(keyed(spark, 60), 0)
    resting = sink()
    assert resting.refresh_ledger() == 1
    # The one that was made before the first batch chooses now, and not when it found nothing.
    new.write(keyed(spark, 60, first=60), 1)
    assert new.status().atomicity == "batch"
    wait_for(kafka, topic, expected(120))


def test_rows_choose_their_topics_with_a_new_sink_id(spark, kafka, topic, sink):
    frame = keyed(spark, 60).selectExpr("*", f"'{topic}' AS topic")
    one = sink(topic=None, ledger_topic=topic)
    assert one.write(frame, 0).transactions == 4
    wait_for(kafka, topic, expected(60))


def test_a_stream_that_was_of_partitions_goes_on_with_its_listener(
    spark, kafka, topic, make_sink, sink, tmp_path
):
    def run(writer, number):
        lines = [f"value {n}" for n in range(20 * number, 20 * number + 20)]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(lines))
        stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        listener = SinkListener(writer)
        spark.streams.addListener(listener)
        try:
            query = (
                stream.writeStream.foreachBatch(writer)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        finally:
            spark.streams.removeListener(listener)
        assert writer.last_report.rows == 20

    run(make_sink(query_id=None), 0)
    for number in (1, 2):
        one = sink(query_id=None)
        run(one, number)
    assert one.status().atomicity == "partition"
    wait_for(kafka, topic, expected(60))
