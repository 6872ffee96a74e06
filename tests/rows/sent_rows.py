"""Looks at the rows that a producer has sent, and at the transaction that they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from txnproducer._protocol.messages import ProduceRequest
from txnproducer._record import read_batches
from txnproducer.errors import KafkaError

PATIENCE_S = 10.0


def written(client):
    """Return every record that was sent, by partition, in order."""
    records: dict[int, list[Any]] = {}
    for request in client.requests:
        if isinstance(request.body, ProduceRequest):
            for part in request.body.partitions:
                batches = records.setdefault(part.topic_partition.partition, [])
                batches += [record for batch in read_batches(part.records) for record in batch]
    return records


def values_written(client):
    return sorted(record.value for part in written(client).values() for record in part)


def assert_can_only_be_aborted(one, reason=None):
    """Show that a commit is refused and an abort works, and the next transaction commits."""
    one._max_block_s = PATIENCE_S
    with pytest.raises(KafkaError, match=reason) as caught:
        one.commit_transaction()
    assert caught.value.recovery == "abort"
    one.abort_transaction()
    with one.transaction():
        one.send("topic", b"the next one", partition=0)


def interrupt(*arguments, **more):
    raise KeyboardInterrupt
