"""A broker refuses a request again and again: the time-out has its last answer, and no guess."""

from __future__ import annotations

import logging
import pickle

import pytest

from txnproducer.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for_code
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.testing import InMemoryKafka

MAX_BLOCK_MS = 400
PATIENCE_S = 10.0
OFFSETS = ({TopicPartition("in", 0): OffsetAndMetadata(5)}, ConsumerGroupMetadata("group"))
GUESSES = ("Check that", "look for", "replication factor")
COORDINATOR_LOG = "txnproducer._core.transactions.coordinator_requests"


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"orders": 1, "in": 1}) as one:
        yield one


@pytest.fixture
def open_producer(kafka):
    with kafka.producer("txn", max_block_ms=10_000) as one:
        one.init_transactions()
        one.begin_transaction()
        one._config = one._config.replace(max_block_ms=MAX_BLOCK_MS)
        one._max_block_s = MAX_BLOCK_MS / 1000
        yield one
        one.close(timeout=0)


def refuse(kafka, api, code):
    kafka.fail_next(api, error=code, times=10**6)


def assert_told(error, request, code):
    number = int(ErrorCode[code])
    broker = "broker-0.use-kafka-listen.invalid:9092"
    assert f" ({broker}) last answered {request} with {code} ({number}): " in str(error)
    assert not any(guess in str(error) for guess in GUESSES)
    assert type(error.__cause__) is type(error_for_code(number))
    assert error.causes == (error.__cause__,)
    assert str(pickle.loads(pickle.dumps(error)).__cause__) == str(error.__cause__)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("InitProducerId", "CONCURRENT_TRANSACTIONS"),
        ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("InitProducerId", "NOT_COORDINATOR"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_a_refused_start(kafka, api, code):
    refuse(kafka, api, code)
    with kafka.producer("txn", max_block_ms=MAX_BLOCK_MS) as one:
        with pytest.raises(KafkaTimeoutError) as told:
            one.init_transactions()
        one.close(timeout=0)
    assert_told(told.value, api, code)


def test_offsets_for_a_topic_that_is_gone(kafka, open_producer):
    refuse(kafka, "TxnOffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(KafkaTimeoutError) as told:
        open_producer.send_offsets_to_transaction(*OFFSETS)
    assert_told(told.value, "TxnOffsetCommit for in-0", "UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(KafkaTimeoutError) as told:
        open_producer.commit_transaction()
    assert_told(told.value, "TxnOffsetCommit for in-0", "UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.parametrize("code", ["NOT_ENOUGH_REPLICAS", "UNKNOWN_TOPIC_OR_PARTITION"])
def test_refused_records(kafka, open_producer, code):
    refuse(kafka, "Produce", code)
    open_producer.send("orders", b"value")
    calls = {
        "flush": lambda: open_producer.flush(MAX_BLOCK_MS / 1000),
        "commit_transaction": open_producer.commit_transaction,
        "abort_transaction": open_producer.abort_transaction,
    }
    for name, call in calls.items():
        with pytest.raises(KafkaTimeoutError, match=f"{name} did not finish") as told:
            call()
        assert_told(told.value, "Produce for orders-0", code)
        # The way out of a commit stays: that is no guess.
        assert ("abort_transaction() gives up" in str(told.value)) == (name[0] == "c")


def test_records_that_expire_have_the_last_refusal_as_their_cause(kafka):
    times = {"delivery_timeout_ms": 800, "request_timeout_ms": 400}
    # One attempt, and none at the end: records refused after their time end with that refusal.
    pauses = {"retry_backoff_ms": 5000, "retry_backoff_max_ms": 5000}
    with kafka.producer("txn", **times, **pauses) as one:
        one.init_transactions()
        one.begin_transaction()
        refuse(kafka, "Produce", "NOT_ENOUGH_REPLICAS")
        future = one.send("orders", b"value")
        with pytest.raises(KafkaTimeoutError, match="its last attempt ended with: NOT_") as told:
            future.result(PATIENCE_S)
        one.close(timeout=0)
    cause = told.value.__cause__
    assert "last answered Produce for orders-0 with NOT_ENOUGH_REPLICAS (19)" in str(cause)


def test_the_refusal_of_an_earlier_call_is_not_reported_for_a_later_one(kafka, open_producer):
    refuse(kafka, "TxnOffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(KafkaTimeoutError):
        open_producer.send_offsets_to_transaction(*OFFSETS)
    kafka.clear_faults()
    open_producer.send_offsets_to_transaction(*OFFSETS)
    kafka.delay("EndTxn", 2)
    open_producer.send("orders", b"value").result(PATIENCE_S)
    with pytest.raises(KafkaTimeoutError, match="look for partitions without a leader") as told:
        open_producer.commit_transaction()
    assert (told.value.causes, told.value.__cause__) == ((), None)


def test_a_coordinator_that_is_looked_up_again_and_again_is_logged_once(kafka, caplog):
    caplog.set_level(logging.INFO, COORDINATOR_LOG)
    kafka.fail_next("InitProducerId", error="NOT_COORDINATOR", times=3)
    with kafka.producer("txn") as one:
        one.init_transactions()
    [line] = [record for record in caplog.records if record.name == COORDINATOR_LOG]
    assert "the coordinator of TRANSACTION 'txn' is" in line.getMessage()


def test_an_idempotent_producer_without_an_identity(kafka):
    refuse(kafka, "InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS")
    with kafka.producer(None) as one:
        future = one.send("orders", b"value")
        with pytest.raises(KafkaTimeoutError, match="answered InitProducerId with COORDINATOR_"):
            one.flush(MAX_BLOCK_MS / 1000)
        one.close(timeout=0)
    with pytest.raises(KafkaError):
        future.result(PATIENCE_S)
