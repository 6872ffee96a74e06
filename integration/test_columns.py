"""Rows of columns arrive unchanged on real brokers, in the partitions that `send` would choose."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.readers import read_with_confluent, values
from txnproducer import TopicPartition, errors

pytestmark = pytest.mark.integration

COUNT = 20_000


def test_rows_are_read_back_where_the_future_says(broker, transactional_id):
    topic = broker.topic(partitions=3)
    given = [b"%d" % number for number in range(COUNT)]
    with broker.ready(transactional_id, batch_size=16_384) as producer:
        with producer.transaction():
            future = producer.send_batch(topic, given)
    written = future.result(0)
    told = {
        (partition, offset): value
        for partition, offset, value in zip(
            written.partitions, written.offsets, given, strict=True
        )
    }
    found = read_with_confluent(broker.servers, topic)
    assert {(read.partition, read.offset): read.value for read in found} == told
    assert written[5].topic_partition == TopicPartition(topic, written.partitions[5])


def test_keys_go_where_send_puts_them_and_keep_their_order(broker, transactional_id):
    topic = broker.topic(partitions=5)
    keys = [b"key-%d" % (number % 50) for number in range(COUNT)]
    table = pa.table({"key": keys, "value": [f"{number}" for number in range(COUNT)]})
    with broker.ready(transactional_id) as producer:
        with producer.transaction():
            producer.send_arrow(topic, table)
        with producer.transaction():
            single = {key: producer.send(topic, b"last", key=key) for key in set(keys)}
    found = read_with_confluent(broker.servers, topic)
    partition_of = {key: future.result(0).partition for key, future in single.items()}
    assert {(read.key, read.partition) for read in found} == set(partition_of.items())
    for key in set(keys):
        numbers = [int(r.value or b"") for r in found if r.key == key and r.value != b"last"]
        assert numbers == [n for n in range(COUNT) if keys[n] == key]


def test_an_abort_takes_all_rows_back(broker, transactional_id):
    topic = broker.topic()
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        producer.send_batch(topic, [b"never"] * COUNT).result(20)
        producer.abort_transaction()
        with producer.transaction():
            producer.send_batch(topic, [b"kept", None])
    assert values(read_with_confluent(broker.servers, topic)) == [b"kept", None]


def test_more_rows_than_memory_wait_for_it(broker, transactional_id):
    topic = broker.topic()
    given = [b"%07d" % number * 100 for number in range(COUNT)]
    with broker.ready(transactional_id, buffer_memory=1 << 20, batch_size=1 << 17) as producer:
        with producer.transaction():
            producer.send_batch(topic, given)
    assert values(read_with_confluent(broker.servers, topic)) == given


def test_a_row_too_large_is_refused_before_any_is_sent(broker, transactional_id):
    topic = broker.topic()
    with broker.ready(transactional_id, max_request_size=10_000) as producer:
        with producer.transaction():
            with pytest.raises(errors.RecordTooLargeError, match="row 1 "):
                producer.send_batch(topic, [b"small", b"x" * 20_000])
            producer.send(topic, b"other")
    assert values(read_with_confluent(broker.servers, topic)) == [b"other"]
