"""Read, transform, write: the results and the consumer's offsets go into one transaction.

An attempt that fails leaves neither results nor offsets, so its input is simply read again: each
input record has exactly one result. Three rules make it so: the offset committed is the *next* one
to read, the group's metadata goes along (it fences a consumer that was taken for dead), and after
an abort the consumer is set back to what is committed.

It needs: pip install '.[testing]'
Run it: python examples/consume_transform_produce.py [bootstrap servers]
"""

from __future__ import annotations

from typing import Any

from _cluster import cluster, create_topic, new_name, values_in
from kafka import KafkaConsumer

from txnproducer import OffsetAndMetadata, TopicPartition, TransactionalProducer

NUMBERS = range(1, 11)


class CrashError(Exception):
    """Stands for a failure after the results were sent and before the commit."""


def write_numbers(producer: TransactionalProducer, topic: str) -> None:
    with producer.transaction():
        for number in NUMBERS:
            producer.send(topic, str(number).encode())


def process(
    records: dict[Any, list[Any]],
    consumer: KafkaConsumer,
    producer: TransactionalProducer,
    topic: str,
    crash: bool,
) -> None:
    """Write the square of each number, and the offsets after them, in one transaction."""
    with producer.transaction():
        for batch in records.values():
            for record in batch:
                producer.send(topic, str(int(record.value) ** 2).encode())
        offsets = {
            TopicPartition(partition.topic, partition.partition): OffsetAndMetadata(
                batch[-1].offset + 1
            )
            for partition, batch in records.items()
        }
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if crash:
            raise CrashError


def set_back(consumer: KafkaConsumer) -> None:
    """Let the consumer read again from its committed offsets."""
    for partition in consumer.assignment():
        committed = consumer.committed(partition)
        if committed is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, committed)


def square_all(consumer: KafkaConsumer, producer: TransactionalProducer, topic: str) -> None:
    done = attempts = 0
    while done < len(NUMBERS):
        records = consumer.poll(timeout_ms=1_000, max_records=4)
        if not records:
            continue
        attempts += 1
        count = sum(len(batch) for batch in records.values())
        try:
            process(records, consumer, producer, topic, crash=attempts == 2)
        except CrashError:
            print(f"attempt {attempts}: {count} results sent, then a crash: aborted, read again")
            set_back(consumer)
        else:
            done += count
            print(f"attempt {attempts}: {count} results and their offsets committed")


def main() -> None:
    with cluster() as bootstrap_servers:
        numbers = create_topic(bootstrap_servers, "numbers")
        squares = create_topic(bootstrap_servers, "squares")
        consumer = KafkaConsumer(
            numbers,
            bootstrap_servers=bootstrap_servers,
            group_id=new_name("squares"),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            with TransactionalProducer(
                bootstrap_servers=bootstrap_servers, transactional_id=new_name("squares")
            ) as producer:
                producer.init_transactions()
                write_numbers(producer, numbers)
                square_all(consumer, producer, squares)
        finally:
            consumer.close()
        print("squares:", " ".join(values_in(bootstrap_servers, squares)))


if __name__ == "__main__":
    main()
