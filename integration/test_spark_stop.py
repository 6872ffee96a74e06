"""`query.stop()` on a real Spark: no batch is run again, and nothing is committed after it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from integration.spark_frames import OnDriver, expected, keyed, seen, slowly, wait_for
from integration.waiting import wait_until
from txnproducer.spark import ExactlyOnceKafkaSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
ROWS = 20
SOON_S = 20.0


def fail_a_task(name, info):
    if name == "task_before_claim":
        raise RuntimeError("a task failed")


class Query:
    """A streaming query over a folder with one file, and the thread that stops it."""

    def __init__(self, spark, folder, write):
        self.stopped_s = 0.0
        self.ended_s = 0.0
        (folder / "in").mkdir(exist_ok=True)
        (folder / "in" / "1.txt").write_text("\n".join(f"value {n}" for n in range(ROWS)))
        lines = spark.readStream.text(str(folder / "in"))
        self._query = (
            lines.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def stop(self):
        """Stop it, and return when it has ended."""
        self.stopped_s = time.monotonic()
        self._query.stop()
        self.ended_s = time.monotonic()

    def stop_beside(self):
        """Stop it from within a batch, and return when Spark has told its thread."""
        threading.Thread(target=self.stop).start()
        wait_until(lambda: not self._query.isActive, "the query is not stopped")
        time.sleep(0.3)  # the interrupt follows the state

    def check_that_it_stopped(self):
        """Check that it ended soon, and that Spark takes that for a stop and not for a failure."""
        wait_until(lambda: self.ended_s > 0, "the query does not end", 90)
        assert self.ended_s - self.stopped_s < SOON_S
        assert (self._query.exception(), self._query.status["message"]) == (None, "Stopped")

    def await_batch(self):
        self._query.processAllAvailable()
        self.stop()


@pytest.fixture(params=["batch", "prepared", "partition"])
def atomicity(request):
    return request.param


def mostly(*atomicities, other, reason):
    """Parametrize with all. The other one is for runs of the long tests."""
    long = pytest.param(other, marks=pytest.mark.long(reason))
    return pytest.mark.parametrize("atomicity", [*atomicities, long], indirect=True)


# With atomicity "partition" the driver commits nothing, and runs nothing again.
of_whole_batches = pytest.mark.parametrize("atomicity", ["batch", "prepared"], indirect=True)


@pytest.fixture
def sink(kafka, topic, atomicity):
    made = []

    def make(**arguments):
        given = {"topic": topic, "atomicity": atomicity, "driver_rows": 0, **arguments}
        made.append(ExactlyOnceKafkaSink(kafka.bootstrap_servers, f"sink-{topic}", **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def stop_while_rows_are_read(spark, tmp_path, writer):
    """Stop a query while the rows of its first batch are read, and see that nothing ran again."""
    slow = slowly(str(tmp_path / "read"))
    query = Query(spark, tmp_path, lambda frame, batch_id: writer(slow(frame), batch_id))
    wait_until((tmp_path / "read").exists, "no row was read", 90)
    query.stop()
    query.check_that_it_stopped()


def stop_at(spark, tmp_path, make_writer):
    """Run a query until its writer stops it, and check that it stopped.

    Args:
        make_writer: makes the writer from the call that stops the query.
    """
    queries: list[Query] = []
    began = threading.Event()

    def stop():
        began.wait(60)  # the first batch may be written before the query is in the list
        queries[0].stop_beside()

    queries.append(Query(spark, tmp_path, make_writer(stop)))
    began.set()
    queries[0].check_that_it_stopped()


def stop_at_event(spark, tmp_path, sink, event, **arguments):
    """Run a query until its sink tells the driver of an event, and stop it there."""

    def make_writer(stop):
        def strike(name, info):
            if name == event:
                stop()

        return sink(on_event=OnDriver(strike), **arguments)

    stop_at(spark, tmp_path, make_writer)


def check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path):
    assert seen(kafka, topic) == [], "committed after the stop"
    Query(spark, tmp_path, sink()).await_batch()
    wait_for(kafka, topic, expected(ROWS))


@mostly(
    "partition",
    "prepared",
    other="batch",
    reason="a batch is stopped in its tasks and at its commit as well",
)
def test_a_query_that_is_stopped_before_its_tasks_commits_nothing(
    spark, kafka, topic, sink, tmp_path
):
    writer = sink()

    def make_writer(stop):
        def write(frame, batch_id):
            stop()
            writer(frame, batch_id)

        return write

    stop_at(spark, tmp_path, make_writer)
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@mostly(
    "batch",
    "prepared",
    other="partition",
    reason="Spark itself ends the tasks, as it does those of a batch",
)
def test_a_query_that_is_stopped_in_its_tasks_is_not_run_again(
    spark, kafka, topic, sink, tmp_path
):
    stop_while_rows_are_read(spark, tmp_path, sink())
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@pytest.mark.parametrize("atomicity", ["partition"], indirect=True)
def test_a_query_that_is_stopped_while_its_driver_reads_commits_nothing(
    spark, kafka, topic, sink, tmp_path
):
    stop_while_rows_are_read(spark, tmp_path, sink(driver_rows=100))
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@pytest.mark.parametrize("atomicity", ["partition"], indirect=True)
def test_a_query_that_is_stopped_before_its_driver_commits_is_not_committed(
    spark, kafka, topic, sink, tmp_path
):
    stop_at_event(spark, tmp_path, sink, "task_before_commit", driver_rows=100)
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@of_whole_batches
def test_a_query_that_is_stopped_at_its_commit_is_not_committed(
    spark, kafka, topic, sink, tmp_path
):
    stop_at_event(spark, tmp_path, sink, "batch_before_commit")
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@pytest.mark.long("it takes two runs; others stop in the tasks and at the commit")
@pytest.mark.parametrize("atomicity", ["batch"], indirect=True)  # it has the count of attempts
def test_a_query_that_is_stopped_between_two_runs_is_not_run_again(
    spark, kafka, topic, sink, tmp_path
):
    runs = []
    writer = sink(on_event=fail_a_task)
    log = logging.getLogger("txnproducer.spark")

    class Stop(logging.Handler):
        def __init__(self, stop):
            super().__init__()
            self._stop = stop

        def emit(self, record):
            if "begins again" in record.getMessage():
                runs.append(record)
                self._stop()

    def make_writer(stop):
        log.addHandler(Stop(stop))
        return writer

    try:
        stop_at(spark, tmp_path, make_writer)
    finally:
        log.handlers[:] = [each for each in log.handlers if not isinstance(each, Stop)]
    assert (len(runs), writer._batches.transactions.attempts) == (1, 1)
    check_that_a_restart_completes(spark, kafka, topic, sink, tmp_path)


@pytest.mark.parametrize("atomicity", ["partition"], indirect=True)
def test_a_task_that_is_cancelled_before_its_rows_are_over_commits_none_of_them(
    spark, kafka, topic, sink, tmp_path
):
    """Spark 3.5 tells `mapInArrow` of the end of the rows then, as if these were all."""
    marker = str(tmp_path / "read")

    def slowly_once(batches):
        Path(marker).touch()
        time.sleep(1.5)  # less than Spark gives Python to end by itself
        yield from batches

    frame = keyed(spark, ROWS).coalesce(1).mapInArrow(slowly_once, "key string, value string")
    errors = []

    def write():
        spark.sparkContext.setJobGroup("cancelled", "", interruptOnCancel=False)
        try:
            sink(query_id="query").write(frame, 0)
        except Exception as error:  # noqa: BLE001 - Spark's own, of any kind
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until((tmp_path / "read").exists, "no row was read", 90)
    spark.sparkContext.cancelJobGroup("cancelled")
    writer.join(60)
    assert errors
    time.sleep(4)  # the task goes on without its job; no event tells of its end
    assert not sink(query_id="query").status().partitions
    sink(query_id="query").write(keyed(spark, ROWS).coalesce(1), 0)
    wait_for(kafka, topic, expected(ROWS))
