"""A run of which one task has failed is ended early and begun again, however long others take."""

from __future__ import annotations

import os
import signal
import time

import pytest

from integration.brokers import MODES
from integration.spark_frames import expected, keyless, seen, wait_for
from integration.waiting import wait_until
from txnproducer.spark.errors import BatchFailedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
BY_NAME = {mode.name: mode for mode in MODES}
# A quiet machine begins again in five seconds, of which Spark takes up to four to kill a task.
LONG_S = 90


@pytest.fixture(scope="module", params=["4.3.1-v2", "4.3.1-v1"])
def kafka(request):
    with BY_NAME[request.param].start() as kafka:
        yield kafka


def faulty(spark, folder, fail, count=60):
    """Make a frame of two partitions. In its first run one fails, and the other one is long.

    The second run notes its begin.
    """
    sleeps, woken, again = folder / "sleeps", folder / "woken", folder / "again"

    def rows(number, values):
        values = list(values)
        if number == 1 and sleeps.exists():
            again.touch()
        yield from values[:10]
        if number == 0 and not (folder / "failed").exists():
            wait_until(sleeps.exists, "the other task has not begun", 60)
            (folder / "failed").touch()
            fail()
        if number == 1 and not sleeps.exists():
            sleeps.touch()
            time.sleep(LONG_S)  # only a pass that is ended early ends sooner
            woken.touch()
        yield from values[10:]

    data = spark.sparkContext.parallelize([(f"value {n}",) for n in range(count)], 2)
    return spark.createDataFrame(data.mapPartitionsWithIndex(rows), "value string")


def raise_once():
    raise ZeroDivisionError("a mistake of the frame's code")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("atomicity", ["batch", "prepared"])
@pytest.mark.parametrize("fail", [raise_once, die])
def test_a_task_that_fails_has_the_run_begun_again_soon(
    spark, kafka, topic, make_sink, tmp_path, atomicity, fail
):
    writer = make_sink(atomicity=atomicity)
    writer.write(keyless(spark, 2, first=60), 0)  # what a first batch asks for is not measured
    report = writer.write(faulty(spark, tmp_path, fail), 1)
    assert not (tmp_path / "woken").exists(), "the other task went on to its end"
    failed_s, again_s = ((tmp_path / name).stat().st_mtime for name in ("failed", "again"))
    print(f"{atomicity}: begun again {again_s - failed_s:.1f} s after the failure")
    assert again_s - failed_s < LONG_S
    assert (report.rows, report.retries) == (60, 1)
    wait_for(kafka, topic, expected(62))
    # The sink goes on, and the tag of the ended job ends no other one.
    writer.write(keyless(spark, 10, first=62), 2)
    wait_for(kafka, topic, expected(72))


@pytest.mark.parametrize("atomicity", ["batch", "prepared"])
def test_a_row_that_kafka_refuses_ends_the_batch_soon(
    spark, kafka, topic, make_sink, tmp_path, atomicity
):
    sleeps, woken = tmp_path / "sleeps", tmp_path / "woken"

    def rows(number, values):
        if number == 0:
            wait_until(sleeps.exists, "the other task has not begun", 60)
            yield ("x" * 5000,)
            return
        yield from values
        sleeps.touch()
        time.sleep(LONG_S)  # likewise
        woken.touch()

    data = spark.sparkContext.parallelize([("value 0",), ("value 1",)], 2)
    frame = spark.createDataFrame(data.mapPartitionsWithIndex(rows), "value string")
    writer = make_sink(atomicity=atomicity, options={"kafka.max.request.size": "1000"})
    with pytest.raises(BatchFailedError, match="partition 0: RecordTooLarge"):
        writer.write(frame, 0)
    assert sleeps.exists()
    assert not woken.exists(), "the other task went on to its end"
    assert seen(kafka, topic) == []
    writer.write(keyless(spark, 10), 0)
    wait_for(kafka, topic, expected(10))
