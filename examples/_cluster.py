"""Helpers of the examples: a cluster to run on, a fresh topic, and the values in a topic."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as ConsumerPartition

from txnproducer.testing import EmbeddedKafka


@contextmanager
def cluster() -> Iterator[str]:
    """Give the address of a cluster: an argument, the environment's, or a broker started here."""
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TXNPRODUCER_BOOTSTRAP")
    if address:
        yield address
        return
    print("Starting a Kafka broker (the first time, its jars are fetched) ...")
    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


def new_name(prefix: str) -> str:
    """Return a name that no other run has used."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def create_topic(bootstrap_servers: str, prefix: str, partitions: int = 1) -> str:
    """Make a new topic and return its name."""
    name = new_name(prefix)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        admin.create_topics({name: {"num_partitions": partitions}}, wait_for_metadata=True)
    finally:
        admin.close()
    return name


def values_in(
    bootstrap_servers: str, topic: str, isolation_level: str = "read_committed"
) -> list[str]:
    """Read a topic from its beginning to its present end, partition by partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        partitions = [
            ConsumerPartition(topic, number)
            for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        values: list[str] = []
        # Two empty polls in a row after the first answer: nothing more to come.
        empty_polls = 0
        while empty_polls < 2:
            records = consumer.poll(timeout_ms=1_000)
            empty_polls = 0 if records else empty_polls + 1
            values += [record.value.decode() for batch in records.values() for record in batch]
        return values
    finally:
        consumer.close()
