"""`send` is a method like any other, also where it is compiled."""

from __future__ import annotations

import gc
import inspect
import weakref
from functools import partial
from typing import Any
from unittest import mock

import pytest

from tests.live_client import use_live_clients
from txnproducer import TransactionalProducer

PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def client(monkeypatch):
    use_live_clients(monkeypatch)


def make():
    return TransactionalProducer("boot:9092", linger_ms=0)


@pytest.fixture
def one():
    with make() as producer:
        yield producer


def test_a_send_that_was_kept_keeps_its_producer():
    def sender():
        return partial(make().send, "topic")

    send = sender()
    gc.collect()
    futures = [send(b"v") for _ in range(3)]
    assert [future.result(PATIENCE_S).topic for future in futures] == ["topic"] * 3
    send.func.__self__.close()


def test_a_producer_is_not_kept_alive_by_its_futures():
    producer = make()
    future = producer.send("topic", b"v")
    seen = weakref.ref(producer)
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="unclosed"):
            del producer
        assert seen() is None
    finally:
        gc.enable()
    assert future is not None


@pytest.mark.parametrize("owner", TransactionalProducer.__mro__[:2])
def test_a_send_that_is_replaced_on_the_class_is_called_by_producers_made_before(one, owner):
    seen = []
    original = owner.send

    def send(self, *arguments, **more):
        seen.append((self, arguments, more))
        return original(self, *arguments, **more)

    with mock.patch.object(owner, "send", send):
        one.send("topic", b"v", key=b"k").result(PATIENCE_S)
    assert seen == [(one, ("topic", b"v"), {"key": b"k"})]
    one.send("topic", b"v").result(PATIENCE_S)
    assert len(seen) == 1


def test_a_send_that_is_replaced_on_the_producer_is_called(one):
    with mock.patch.object(one, "send") as seen:
        one.send("topic", b"v")
    seen.assert_called_once_with("topic", b"v")
    one.send("topic", b"v").result(PATIENCE_S)


def test_a_subclass_may_call_the_send_of_its_parent():
    class Tracing(TransactionalProducer):
        sent = 0

        def send(self, *arguments, **more):
            self.sent += 1
            return super().send(*arguments, **more)

    with Tracing("boot:9092", linger_ms=0) as one:
        for _ in range(2):
            one.send("topic", b"v").result(PATIENCE_S)
    assert one.sent == 2


def test_send_has_its_signature_name_and_docstring(one):
    send = TransactionalProducer.send
    signature = inspect.signature(send)
    assert signature.parameters["headers"].annotation == "Headers | None"
    assert signature.return_annotation == "FutureRecordMetadata"
    assert send.__annotations__["on_delivery"] == "OnDelivery | None"
    assert send.__qualname__ == "RecordWriter.send"
    assert send.__module__ == "txnproducer._shell.record_writer"
    assert "The record's future" in (inspect.getdoc(send) or "")
    assert list(inspect.signature(one.send).parameters) == list(signature.parameters)[1:]


@pytest.mark.parametrize("first", ["topic", None, object()])
def test_a_send_without_a_producer_is_refused(first: Any):
    with pytest.raises((TypeError, AttributeError)):
        TransactionalProducer.send(first, "topic")
