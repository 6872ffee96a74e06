"""The texts of time-outs name the cause first, and other unreachable addresses at the end."""

from __future__ import annotations

import pytest

from tests.live_client import LiveClient, use_live_clients
from txnproducer import TransactionalProducer
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import refusals
from txnproducer.errors import (
    DisconnectError,
    KafkaTimeoutError,
    ThrottlingQuotaExceededError,
)

SHORT_MS = 50
DEAD = DisconnectError("cannot connect to dead:9092 (Connection refused)")
IN_WORDS = f"no connection ({DEAD})"
TEXTS = {
    "init_transactions": lambda *tries: refusals.timed_out("init_transactions", 5, *tries),
    "commit_transaction": lambda *tries: refusals.timed_out("commit_transaction", 5, *tries),
    "partitions_for": lambda *tries: refusals.topic_unknown("topic", 5, *tries),
    "flush": lambda *tries: refusals.flush_timed_out(5, *tries),
}
each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@each_text
def test_an_unreachable_broker_is_the_cause_where_no_other_was_reached(text):
    error = text((DEAD,), True)
    assert IN_WORDS in str(error)
    assert "also:" not in str(error)
    assert "Check" not in str(error)  # what it could be is of no interest where that is known
    assert (error.causes, error.__cause__) == ((DEAD,), DEAD)


@each_text
def test_a_dead_server_is_named_last_where_it_is_not_the_cause(text):
    error = text((DEAD,), False)
    assert str(error).endswith(f"; also: {IN_WORDS}.")
    assert str(error).startswith(str(text()).removesuffix("."))
    assert (error.causes, error.__cause__) == ((DEAD,), None)


@each_text
def test_where_all_was_reached_nothing_is_named(text):
    error = text()
    assert "no connection" not in str(error)
    assert (error.causes, error.__cause__) == ((), None)


CALLS = {
    "commit_transaction": lambda one: one.commit_transaction(),
    "partitions_for": lambda one: one.partitions_for("nowhere"),
    "flush": lambda one: one.flush(SHORT_MS / 1000),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_dead_bootstrap_server_is_not_the_cause_of_a_calls_time_out(monkeypatch, call):
    client = LiveClient(topics={"topic": 1})
    use_live_clients(monkeypatch, lambda: client)
    servers = "boot:9092,dead:9092"
    with TransactionalProducer(servers, "txn", linger_ms=0, max_block_ms=10_000) as one:
        one.init_transactions()
        one.partitions_for("topic")
        with one._lock:
            one._core.failed_tries.note(-2, DEAD, 0)
        one._config = one._config.replace(max_block_ms=SHORT_MS)
        one._max_block_s = SHORT_MS / 1000
        one.begin_transaction()
        with one._lock:
            client.held.add(ApiKey.PRODUCE)
        one.send("topic", b"value")
        with pytest.raises(KafkaTimeoutError) as told:
            call(one)
        with one._lock:
            client.release(ApiKey.PRODUCE)
    assert str(told.value).endswith(f"; also: {IN_WORDS}.")
    assert (told.value.causes, told.value.__cause__) == ((DEAD,), None)


QUOTA_WAITS = {
    "commit_transaction": (Channel.COORDINATOR, "is the coordinator"),
    "flush": (Channel.DATA, "leads topic-0"),
}


@pytest.mark.parametrize("call", QUOTA_WAITS)
def test_a_time_out_names_the_broker_that_takes_nothing_by_its_quota(monkeypatch, call):
    client = LiveClient(topics={"topic": 1})
    use_live_clients(monkeypatch, lambda: client)
    channel, role = QUOTA_WAITS[call]
    with TransactionalProducer("boot:9092", "txn", linger_ms=0, max_block_ms=10_000) as one:
        one.init_transactions()
        one.partitions_for("topic")
        one._config = one._config.replace(max_block_ms=SHORT_MS)
        one._max_block_s = SHORT_MS / 1000
        one.begin_transaction()
        with one._lock:
            client.throttle(ConnectionId(0, channel), 600_000)
        one.send("topic", b"value")
        with pytest.raises(KafkaTimeoutError, match=f"broker 0 {role}, and takes no") as told:
            CALLS[call](one)
        with one._lock:
            client.throttle(ConnectionId(0, channel), 0)
    assert isinstance(told.value.__cause__, ThrottlingQuotaExceededError)
    assert "quota" in str(told.value)
