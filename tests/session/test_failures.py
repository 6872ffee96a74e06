"""The way of a record into the dead-letter topic."""

from __future__ import annotations

import json

import pytest

from txnproducer.session.batch import Record
from txnproducer.session.failures import Failures, PoisonError
from txnproducer.testing import InMemoryKafka


def test_a_dead_letter_is_the_record_as_it_came_and_passes_no_serializer():
    def serializer(value):
        return json.dumps(value).encode()

    def fail(record, transaction):
        raise ValueError("no number")

    record = Record("numbers", 0, 5, b"key", b"x", (), 1)
    settings = {"value_serializer": serializer, "key_serializer": serializer}
    with InMemoryKafka(topics={"dead": 1}) as kafka:
        with kafka.producer(transactional_id="t", **settings) as producer:
            producer.init_transactions()
            failures = Failures(1, "dead")
            with pytest.raises(PoisonError), producer.transaction() as transaction:
                failures.process(record, fail, transaction, ())
            with producer.transaction() as transaction:
                failures.process(record, fail, transaction, ())
        (dead,) = kafka.records("dead")
    assert (dead.key, dead.value) == (b"key", b"x")
    assert dict(dead.headers)["dlt-error"] == b"ValueError('no number')"
