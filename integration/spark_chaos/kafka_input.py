"""Spark's own Kafka source as the input: it numbers partitions otherwise after a restart.

Owns: the topic that is read, the connector's jars, the stream. Must not know: faults, who writes.
Runs in the campaign and in the driver.

Rules:
* Each batch has as many rows of each partition, so `maxOffsetsPerTrigger` cuts batches at their
  ends.
* There is no shuffle after the source: Spark's partitions are the topic's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyspark

from integration.benchmarks_spark.connector import connector_jars
from txnproducer import TransactionalProducer

PARTITIONS: Final = 4
# The only version whose connector is complete on the registries.
SPARK_VERSION: Final = "4.0.0"


def is_available() -> bool:
    """Tell whether the installed Spark has a connector."""
    return bool(pyspark.__version__ == SPARK_VERSION)


def settings() -> tuple[str, ...]:
    """Return the settings that a driver needs for the source, as "name=value"."""
    return (f"spark.jars={','.join(map(str, connector_jars(SPARK_VERSION)))}",)


def fill(servers: str, topic: str, rows: Sequence[str]) -> None:
    """Write the rows of all batches, in their order."""
    with TransactionalProducer(servers) as producer:
        for number, row in enumerate(rows):
            producer.send(topic, row.encode(), partition=number % PARTITIONS)
        producer.flush()


def stream(spark: Any, servers: str, topic: str, rows_per_batch: int) -> Any:
    """Return the stream of a topic, with a column `value`."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
