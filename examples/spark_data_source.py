"""Write with `format("kafka-exactly-once")`: a stream that is started twice, and a batch job.

It needs: pip install '.[testing,spark]'
Usage: python examples/spark_data_source.py [BOOTSTRAP_SERVERS]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _cluster import cluster, create_topic, values_in
from pyspark.sql import SparkSession

from txnproducer.spark import KafkaExactlyOnceDataSource
from txnproducer.spark.demo import start_spark

FORMAT = KafkaExactlyOnceDataSource.name()
TURNS = 2
ROWS_PER_FILE = 100


def run_query(
    spark: SparkSession, source: Path, checkpoint: Path, options: dict[str, str]
) -> None:
    query = (
        spark.readStream.text(str(source))
        .writeStream.format(FORMAT)
        .options(**options)
        .option("sinkId", f"{options['topic']}-stream")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_job(spark: SparkSession, options: dict[str, str], batch_id: int) -> None:
    (
        spark.range(50)
        .selectExpr("CAST(id AS STRING) AS key", "concat('job ', id) AS value")
        .write.format(FORMAT)
        .mode("append")
        .options(**options)
        .option("sinkId", f"{options['topic']}-job")
        .option("queryId", "nightly-load")
        .option("batchId", batch_id)
        .save()
    )


def main() -> None:
    with cluster() as servers, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in"
        source.mkdir()
        topic = create_topic(servers, "lines", partitions=2)
        options = {"kafka.bootstrap.servers": servers, "topic": topic}
        spark = start_spark(folder)
        try:
            spark.dataSource.register(KafkaExactlyOnceDataSource)
            for number in range(TURNS):
                first = number * ROWS_PER_FILE
                lines = [f"line {n}" for n in range(first, first + ROWS_PER_FILE)]
                (source / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
                run_query(spark, source, folder / "checkpoint", options)
            for _ in range(2):  # the same batch id again is a replay: nothing is written twice
                run_job(spark, options, batch_id=0)
        finally:
            spark.stop()
        found = values_in(servers, topic)
        print(f"read back: {len(found)} rows, {len(set(found))} of them different")


if __name__ == "__main__":
    main()
