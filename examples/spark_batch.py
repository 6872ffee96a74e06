"""Write a frame exactly once: written, written again after a "crash", counted.

It needs: pip install '.[testing,spark]'
Usage: python examples/spark_batch.py [BOOTSTRAP_SERVERS]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _cluster import cluster, create_topic

from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.demo import start_spark

ROWS = 1000


def main() -> None:
    with cluster() as servers, tempfile.TemporaryDirectory() as folder:
        topic = create_topic(servers, "orders", partitions=2)
        spark = start_spark(Path(folder))
        try:
            frame = spark.range(ROWS).selectExpr(
                "CAST(id AS STRING) AS key", "CONCAT('order ', id) AS value"
            )
            sink = ExactlyOnceKafkaSink(servers, f"{topic}-sink", topic=topic, query_id="example")
            first = sink.write(frame, batch_id=0)
            print(f"written: {first.rows} rows in {first.transactions} transactions")
            # As after a driver that died before it could note that the batch was done.
            again = sink.write(frame, batch_id=0)
            print(f"again: {again.rows} rows recognised, {again.transactions} transactions")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
