"""A prepared transaction, and the values that readers of the topic see."""

from __future__ import annotations

import pytest

GROUP = "__txn.t"
DECISIONS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


def prepare(producer, value=b"1"):
    producer.begin_transaction()
    producer.send("payments", value, partition=1)
    return producer.prepare_transaction()


def values(kafka):
    return [record.value for record in kafka.records("payments")]
