"""Spark's own Kafka source as the input: it numbers partitions otherwise after a restart.

Owns: the topic that is read, the connector's jars, the stream. Must not know: faults, who writes.
Runs in the campaign and in the driver.

Rules:
* Each batch has as many rows of each partition, so `maxOffsetsPerTrigger` cuts batches at their
  ends.
* There is no shuffle after the source: Spark's partitions are the topic's.
* A batch is numbered by the order of a map: while a query runs, that of the admin client's answer,
  which follows hashes of the topic's name; when a batch comes again, that of the JSON in the
  checkpoint, by partition. With more than four partitions Scala's maps are in the order of hashes
  both times. So the topic's name decides whether the two orders differ, and is chosen for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import pyspark

from integration.benchmarks_spark.connector import connector_jars
from txnproducer import TransactionalProducer

PARTITIONS: Final = 4
# The same, but all that there is makes one batch.
UNLIMITED: Final = "kafka-unlimited"
# The only version whose connector is complete on the registries.
SPARK_VERSION: Final = "4.0.0"
_MAX_ORDERED: Final = 4  # so many entries an immutable map of Scala keeps as they were put in
_BUCKETS: Final = 16
_INT: Final = 0xFFFFFFFF


def is_input(name: str) -> bool:
    """Return whether an input is this one, with a limit for each batch or without."""
    return name in ("kafka", UNLIMITED)


def is_available() -> bool:
    """Return whether there is a Kafka connector for the installed Spark."""
    return bool(pyspark.__version__ == SPARK_VERSION)


def settings() -> tuple[str, ...]:
    """Return the settings that a driver needs for the source, as "name=value"."""
    return (f"spark.jars={','.join(map(str, connector_jars(SPARK_VERSION)))}",)


def renumbered_topic(name: str, partitions: int = PARTITIONS) -> str:
    """Return a topic's name with which each partition gets another number after a restart.

    Args:
        name: what it begins with.
        partitions: of the topic; from two to four.

    Raises:
        ValueError: Spark never renumbers so many partitions.
    """
    if not 2 <= partitions <= _MAX_ORDERED:
        raise ValueError(f"partitions is {partitions}; from two to four are renumbered")
    names = (f"{name}-{number}" for number in itertools.count())
    return next(
        topic
        for topic in names
        if all(at != number for at, number in enumerate(_live_order(topic, partitions)))
    )


def _live_order(topic: str, partitions: int) -> list[int]:
    """Return the partitions in the order of Scala's `mutable.HashMap[TopicPartition, _]`."""
    of_topic = 0
    for character in topic:  # as Java's String.hashCode
        of_topic = (31 * of_topic + ord(character)) & _INT

    def place(partition: int) -> int:
        code = (31 * (31 + partition) + of_topic) & _INT
        return (code ^ code >> 16) % _BUCKETS

    return sorted(range(partitions), key=place)


def fill(servers: str, topic: str, rows: Sequence[str]) -> None:
    """Write the rows of all batches, in their order."""
    with TransactionalProducer(servers) as producer:
        for number, row in enumerate(rows):
            producer.send(topic, row.encode(), partition=number % PARTITIONS)
        producer.flush()


def stream(spark: Any, servers: str, topic: str, rows_per_batch: int) -> Any:
    """Return the stream of a topic, with a column `value`. 0 rows a batch set no limit."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if rows_per_batch:
        reader = reader.option("maxOffsetsPerTrigger", rows_per_batch)
    return reader.load().selectExpr("CAST(value AS STRING) AS value")
