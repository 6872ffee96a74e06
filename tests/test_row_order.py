"""Rows of one partition are written in their order, however each row gets its partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.live_client import LiveClient, use_live_clients
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ProduceRequest
from txnproducer._record import read_batches

KEYS = [b"a", b"b", b"c", b"d"]
# Nothing to do with a deadline: the loop is a thread.
unhurried = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=[1, 2, 3])
def sending(request, monkeypatch) -> Iterator[tuple[Any, LiveClient, int]]:
    client = LiveClient(topics={"topic": request.param})
    use_live_clients(monkeypatch, lambda: client)
    # So small that a few rows fill a batch, and the choice for those without partition changes.
    with TransactionalProducer("boot:9092", "txn", linger_ms=0, batch_size=200) as one:
        one.init_transactions()
        yield one, client, request.param


# Of each row its key, its partition if any (modulo how many there are), its size.
mixed_rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(KEYS)),
        st.one_of(st.none(), st.none(), st.integers(0, 5)),
        st.sampled_from([1, 1, 10, 60, 300]),
    ),
    min_size=1,
    max_size=60,
)


def values_written(client: LiveClient) -> dict[int, list[bytes]]:
    """Return the rows that were sent, by partition, and forget them."""
    values: dict[int, list[bytes]] = {}
    for request in client.requests:
        if isinstance(request.body, ProduceRequest):
            for part in request.body.partitions:
                records = (record for batch in read_batches(part.records) for record in batch)
                numbers = values.setdefault(part.topic_partition.partition, [])
                numbers += [record.value or b"" for record in records]
    client.requests.clear()
    return values


@unhurried
@given(rows=mixed_rows, has_partitions=st.booleans(), has_keys=st.booleans())
@example(
    rows=[(b"a", None, 1), (None, None, 1), (b"a", None, 1), (None, None, 1)],
    has_partitions=False,
    has_keys=True,
)
@example(rows=[(None, 0, 1), (None, None, 1), (None, 0, 1)], has_partitions=True, has_keys=False)
def test_rows_lie_in_each_partition_as_send_would_have_laid_them(
    sending, rows, has_partitions, has_keys
):
    one, client, partition_count = sending
    keys = [key if has_keys else None for key, _, _ in rows]
    places = [
        None if place is None or not has_partitions else place % partition_count
        for _, place, _ in rows
    ]
    values = [b"%d" % row + b"." * size for row, (_, _, size) in enumerate(rows)]
    client.requests.clear()

    with one.transaction():
        future = one.send_batch(
            "topic", values, keys if has_keys else None, None, places if has_partitions else None
        )
    metadata = future.result(0)
    by_partition: dict[int, list[int]] = {}
    for row, partition in enumerate(metadata.partitions):
        by_partition.setdefault(partition, []).append(row)
        assert places[row] in (None, partition)
    for numbers in by_partition.values():
        offsets = [metadata.offsets[row] for row in numbers]
        assert offsets == sorted(set(offsets))
    written = values_written(client)
    assert written == {
        partition: [values[row] for row in numbers] for partition, numbers in by_partition.items()
    }

    with one.transaction():
        futures = [
            one.send("topic", value, key=key, partition=place)
            for value, key, place in zip(values, keys, places, strict=True)
        ]
    one_by_one = values_written(client)
    if partition_count == 1:
        assert written == one_by_one
    for row, key in enumerate(keys):
        if key is not None or places[row] is not None:
            assert futures[row].result(0).partition == metadata.partitions[row]


def test_one_partition_for_all_takes_rows_with_keys_and_without(sending):
    one, client, partition_count = sending
    place = partition_count - 1
    client.requests.clear()
    with one.transaction():
        one.send_batch(
            "topic", [b"%d" % n for n in range(40)], [b"k", None] * 20, partitions=place
        )
    assert values_written(client) == {place: [b"%d" % n for n in range(40)]}
