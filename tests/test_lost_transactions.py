"""A call that raises because its transaction is lost says why, as the coordinator tells it."""

from __future__ import annotations

import time

import pytest

from tests.live_client import LiveClient, use_live_clients
from tests.scripted_client import DESCRIBE_VERSIONS, PRODUCER_EPOCH, PRODUCER_ID
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import (
    ApiKey,
    DescribeTransactionsResponse,
    TransactionDescription,
)
from txnproducer._shell.refusals import WaitInCallbackError
from txnproducer.errors import ErrorCode, InvalidProducerEpochError, ProducerFencedError
from txnproducer.records import ConsumerGroupMetadata

DESCRIBE = ApiKey.DESCRIBE_TRANSACTIONS


@pytest.fixture
def client(monkeypatch):
    client = LiveClient()
    client.default_versions = dict(DESCRIBE_VERSIONS)
    use_live_clients(monkeypatch, lambda: client)
    return client


@pytest.fixture
def producer(client):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("topic", b"value").result(10)
        yield one


def describe(client, state, epoch, delay_ms=0):
    description = TransactionDescription(0, "txn", state, PRODUCER_ID, epoch)
    answer = DescribeTransactionsResponse((description,))
    client.prepare(DESCRIBE, lambda _: answer, delay_ms=delay_ms)


def test_the_answer_is_waited_for_before_the_error_is_raised(client, producer):
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    describe(client, "Ongoing", PRODUCER_EPOCH + 2, delay_ms=100)
    with pytest.raises(ProducerFencedError) as told:
        producer.commit_transaction()
    newer = f"a newer producer of this id, epoch {PRODUCER_EPOCH + 2}, has taken over"
    assert newer in str(told.value)
    # And so do the calls that come later, without another question.
    for call in (producer.begin_transaction, producer.abort_transaction):
        with pytest.raises(ProducerFencedError) as again:
            call()
        assert newer in str(again.value)
    assert len(client.sent(DESCRIBE)) == 1


def test_without_an_answer_the_error_is_raised_after_a_second(client, producer):
    client.held.add(DESCRIBE)
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    began = time.monotonic()
    with pytest.raises(ProducerFencedError) as told:
        producer.commit_transaction()
    assert time.monotonic() - began >= 0.9  # whole milliseconds are counted
    assert "most likely a newer producer" in str(told.value)
    assert "transaction_timeout_ms=60000" in str(told.value)


def test_a_record_that_is_refused_does_not_wait_and_the_next_call_does(client, producer):
    client.held.add(DESCRIBE)
    client.prepare_produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    heard = []
    future = producer.send("topic", b"late", on_delivery=lambda _, error: heard.append(str(error)))
    error = future.exception(10)
    assert isinstance(error, InvalidProducerEpochError)
    assert "most likely a newer producer" in str(error)
    describe(client, "Ongoing", PRODUCER_EPOCH + 2)
    client.release(DESCRIBE)
    with pytest.raises(InvalidProducerEpochError) as told:
        producer.commit_transaction()
    assert f"epoch {PRODUCER_EPOCH + 2}, has taken over" in str(told.value)
    assert told.value.recovery == "abort"
    assert "most likely a newer producer" in heard[0]


def test_in_a_callback_nothing_is_waited_for(client, producer):
    client.held.add(DESCRIBE)
    client.prepare_produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    heard = []

    def call(*_):
        began = time.monotonic()
        try:
            producer.send_offsets_to_transaction({("in", 0): 1}, ConsumerGroupMetadata("group"))
        except Exception as error:  # noqa: BLE001
            heard.append((type(error), time.monotonic() - began))

    producer.send("topic", b"late", on_delivery=call)
    producer.flush()
    ((kind, took_s),) = heard
    assert kind is WaitInCallbackError
    assert took_s < 1
