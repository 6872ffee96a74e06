"""Stream files into Kafka exactly once: the query is stopped in between, and started again.

It needs: pip install '.[testing,spark]'
Usage: python examples/spark_streaming.py [BOOTSTRAP_SERVERS]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _cluster import cluster, create_topic, values_in
from pyspark.sql import SparkSession

from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.demo import start_spark

FILES = 3
ROWS_PER_FILE = 100


def run_query(
    spark: SparkSession, source: Path, checkpoint: Path, sink: ExactlyOnceKafkaSink
) -> None:
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(source))
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    with cluster() as servers, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in"
        source.mkdir()
        topic = create_topic(servers, "lines", partitions=2)
        sink = ExactlyOnceKafkaSink(servers, f"{topic}-sink", topic=topic)
        spark = start_spark(folder)
        try:
            for number in range(FILES):
                first = number * ROWS_PER_FILE
                lines = [f"line {n}" for n in range(first, first + ROWS_PER_FILE)]
                (source / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
                # Each turn starts the query again, from the checkpoint of the one before.
                run_query(spark, source, folder / "checkpoint", sink)
                report = sink.last_report
                if report is not None:
                    print(f"batch {report.batch_id}: {report.rows} rows")
        finally:
            sink.close()  # the driver keeps a producer between batches
            spark.stop()
        found = values_in(servers, topic)
        print(f"read back: {len(found)} rows, {len(set(found))} of them different")


if __name__ == "__main__":
    main()
