"""The programs in the guide of the Spark sink run as they stand there, one after the other."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from integration.spark_frames import seen
from integration.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GUIDE = (Path(__file__).resolve().parents[1] / "docs" / "spark.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
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
