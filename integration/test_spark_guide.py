"""The programs in the guide of the Spark sink run as they stand there, one after the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from integration.spark_frames import seen
from integration.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GUIDE = (Path(__file__).resolve().parents[1] / "docs" / "spark.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
JOB, CHECK = (
    next(block for block in BLOCKS if text in block) for text in ("os.getpid()", "KafkaConsumer(")
)
ROWS = [("key 1", "value 1"), ("key 2", "value 2")]
COLUMNS = "key string, value string"


def batch(spark):
    return spark.createDataFrame(ROWS, COLUMNS)


def stream(spark, folder):
    folder.mkdir()
    batch(spark).write.parquet(str(folder / "in"))
    return spark.readStream.schema(COLUMNS).parquet(str(folder / "in"))


def has_rows(kafka, topic, count):
    return len(seen(kafka, topic)) == count


def end_queries(spark):
    for query in spark.streams.active:
        if "RateStream" not in str(query.lastProgress):
            query.processAllAvailable()
        query.stop()
        assert query.exception() is None


def test_the_guides_programs_write_their_rows(spark, kafka, topic, tmp_path):
    assert len(BLOCKS) >= 10
    rows, sinks = 0, []
    left: dict = {}
    for number, block in enumerate(BLOCKS):
        if block in (JOB, CHECK):
            continue
        # A place of its own for each: a ledger is of one query, and goes on in its atomicity.
        for given, own in (
            ("localhost:9092", kafka.bootstrap_servers),
            ('"orders"', f'"{topic}"'),
            ("/data/checkpoints/orders", str(tmp_path / f"checkpoint {number}")),
            ('"checkpoint"', f'"{tmp_path / f"checkpoint {number}"}"'),
            ("query.awaitTermination()", "query.awaitTermination(1)"),
            ("-sink", f"-sink-{topic}-{number}"),
            ('"nightly"', f'"nightly-{topic}-{number}"'),
            ('"daily-orders"', f'"daily-{topic}"'),
        ):
            block = block.replace(given, own)
        is_stream = "writeStream" in block
        frame = stream(spark, tmp_path / f"in {number}") if is_stream else batch(spark)
        before = len(seen(kafka, topic))
        names = {**left, "spark": spark, "frame": frame}
        exec(compile(block, f"docs/spark.md, block {number + 1}", "exec"), names)
        left = names
        if is_stream:
            wait_until(lambda: any(q.lastProgress for q in spark.streams.active), "no batch", 60)
            end_queries(spark)
        if "listener" in names:
            spark.streams.removeListener(names.pop("listener"))
        if re.search(r"frame\.write|sink\.write", block):
            rows += 2
            wait_until(partial(has_rows, kafka, topic, before + 2), "the rows are missing")
        sinks.append(names.get("sink"))
    # Closed last: a listener of the guide uses the sink of an earlier program.
    for sink in filter(None, sinks):
        sink.close()
    assert rows >= 10


@contextmanager
def running(path, log):
    """Run the program to try in a process group of its own, which ends with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, path.name],
            cwd=path.parent,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},  # as in an activated environment
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_reported(process, log, count):
    """Return whether the program has logged some batches, or has ended."""
    return len(re.findall("batch [0-9]+", log.read_text())) >= count or process.poll() is not None


@pytest.mark.slow("starts Spark three times")
def test_the_program_to_try_writes_each_row_once_if_it_is_killed(kafka, topic, tmp_path, capsys):
    def here(block):
        block = block.replace("localhost:9092", kafka.bootstrap_servers)
        return block.replace('"orders"', f'"{topic}"')

    path, log = tmp_path / "job.py", tmp_path / "log"
    path.write_text(here(JOB), "utf-8")
    for ending in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        with running(path, log) as process:
            wait_until(partial(has_reported, process, log, 3), "nothing is written", 90)
            assert process.poll() is None, log.read_text()[-3000:]
            process.send_signal(ending)
            process.wait(30)
    exec(compile(here(CHECK), "check.py", "exec"), {})
    assert re.search(r"[0-9]{5,} rows, each of them once", capsys.readouterr().out)
