"""The way of a record into the dead-letter topic."""

from __future__ import annotations

import json

import pytest

from txnproducer.session.batch import Record, UnreadableHeaders
from txnproducer.session.failures import Failures, PoisonError, text_of
from txnproducer.testing import InMemoryKafka


def bury(record, error, **settings):
    """Return the dead letter of a record that has failed."""

    def fail(record, transaction):
        raise error

    with InMemoryKafka(topics={"dead": 1}) as kafka:
        with kafka.producer(transactional_id="t", **settings) as producer:
            producer.init_transactions()
            failures = Failures(1, "dead")
            with pytest.raises(PoisonError), producer.transaction() as transaction:
                failures.process(record, fail, transaction, ())
            with producer.transaction() as transaction:
                failures.process(record, fail, transaction, ())
        (dead,) = kafka.records("dead")
    return dead


def test_the_text_of_an_error_is_short_in_headers_and_logs(caplog):
    value = b"\xff" * 300_000
    with pytest.raises(UnicodeDecodeError) as found:
        value.decode()
    dead = bury(Record("in", 0, 5, None, value), found.value)
    text = dict(dead.headers)["dlt-error"]
    assert text.startswith(b"UnicodeDecodeError(")
    assert text.endswith(b"'invalid start byte')")
    assert len(text) == 1000
    assert dead.value == value
    assert len(caplog.text) < 5000


def test_a_record_whose_headers_cannot_be_read_is_buried_without_them():
    headers = UnreadableHeaders("in-0, offset 5", SystemError())
    for use in (len, bool, list, dict):
        with pytest.raises(ValueError, match=r"headers of in-0, offset 5 cannot be read"):
            use(headers)
    dead = bury(Record("in", 0, 5, None, b"x", headers), ValueError("headers"))
    assert [name for name, _ in dead.headers][:1] == ["dlt-topic"]


def test_the_text_of_an_error_may_have_half_a_pair_of_surrogates():
    dead = bury(Record("in", 0, 5, None, b"x"), ValueError("\udc80"))
    assert dict(dead.headers)["dlt-error"] == b"ValueError('\\udc80')"
    assert text_of(RudeError()) == "\\udc80"


class RudeError(Exception):
    def __repr__(self):
        return "\udc80"


def test_a_dead_letter_is_the_record_as_it_came_and_passes_no_serializer():
    def serializer(value):
        return json.dumps(value).encode()

    record = Record("numbers", 0, 5, b"key", b"x", (), 1)
    settings = {"value_serializer": serializer, "key_serializer": serializer}
    dead = bury(record, ValueError("no number"), **settings)
    assert (dead.key, dead.value) == (b"key", b"x")
    assert dict(dead.headers)["dlt-error"] == b"ValueError('no number')"
