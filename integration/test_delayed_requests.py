"""Requests of dead connections that arrive later, and answers that are lost, on real brokers.

A proxy holds a request back, cuts its connection, and delivers it in the midst of the next
transaction (KAFKA-17754, KAFKA-14402; Jepsen's report on Bufstream). With transactions v1 such a
request bears the epoch of all transactions, unless the producer takes a new one in between: that
is its guard. Each kind of request is shown twice, with the guard and with the guard switched off,
when the same schedule does the harm. With v2 every transaction has an epoch of its own, and there
is nothing to switch off.

The guard has two halves. A leader or a group's coordinator that has not met the new epoch yet
refuses the old one because it asks the transaction's coordinator (KIP-890); on brokers that do not
(`transaction.partition.verification.enable=false`) late records and offsets get in until it has.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from integration import delaying_proxy
from integration.delaying_proxy import HOST, DelayingProxy
from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    admin,
    errors,
)
from txnproducer._core.transactions.identity import ProducerIdentity
from txnproducer._core.transactions.progress import TransactionProgress
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import base_producer
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.network_client import NetworkClient
from txnproducer.errors import ErrorCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

EXPIRY_MS = 2_000
PATIENCE_S = 30.0
FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
with_and_without_guard = pytest.mark.parametrize(
    "is_guarded", [True, False], ids=["guarded", "unguarded"]
)


@pytest.fixture
def proxy(broker):
    host, _, port = broker.servers.partition(":")
    with DelayingProxy((host, int(port))) as one:
        yield one


@pytest.fixture
def ready(broker, proxy, monkeypatch, transactional_id):
    """Make a producer whose every connection goes through the proxy."""

    class ThroughProxy(NetworkClient):
        def update_nodes(self, nodes):
            super().update_nodes(replace(node, host=HOST, port=proxy.port) for node in nodes)

    monkeypatch.setattr(base_producer, "NetworkClient", ThroughProxy)
    made = []

    def make(**settings):
        made.append(broker.ready(transactional_id, reconnect_backoff_ms=20, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close(0)


@pytest.fixture
def does_harm(broker, monkeypatch, is_guarded):
    """Switch the guard off if the test asks for that. Return whether harm must be seen then."""
    if not is_guarded:
        # A lost request asks for an epoch by the one, a batch that failed by the other.
        for owner, name in (
            (TransactionProgress, "request_lost"),
            (ProducerIdentity, "require_epoch_bump"),
        ):
            monkeypatch.setattr(owner, name, lambda *_, **__: None)
    return not is_guarded and broker.mode.transaction_version == 1


@pytest.fixture
def told(broker, transactional_id):
    """Ask the coordinator about the transaction, once the markers of the one before are written.

    Until they are, it answers a late request by CONCURRENT_TRANSACTIONS.
    """

    def ask():
        answer = admin.describe_transaction(broker.servers, transactional_id)
        assert answer is not None
        return answer

    def ask_until_settled():
        wait_until(lambda: not ask().state.startswith("Prepare"), "its markers are not written")
        return ask()

    return ask_until_settled


def topics_of(description):
    return {topic for topic, _ in description.partitions}


@with_and_without_guard
def test_a_commit_that_comes_late_leaves_the_next_transaction_alone(
    broker, proxy, ready, told, does_harm
):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.END_TXN)
    with producer.transaction():
        producer.send(topic, b"first")
    assert told().producer_epoch == (0 if does_harm else 1)
    producer.begin_transaction()
    producer.send(topic, b"half")
    producer.flush()
    (late,) = proxy.held
    code = late.deliver()
    producer.send(topic, b"other half")
    if does_harm:
        # Half of a transaction that was aborted is visible.
        assert code is ErrorCode.NONE
        with pytest.raises(errors.KafkaError):
            producer.abort_transaction()
        expected = [b"first", b"half"]
    else:
        assert code in FENCED
        producer.abort_transaction()
        expected = [b"first"]
    producer.close(5)
    assert values(read_with_confluent(broker.servers, topic)) == expected


@with_and_without_guard
def test_an_abort_that_comes_late_leaves_the_next_transaction_alone(
    broker, proxy, ready, told, does_harm
):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.END_TXN)
    producer.begin_transaction()
    producer.send(topic, b"aborted")
    producer.flush()
    producer.abort_transaction()
    assert told().producer_epoch == (0 if does_harm else 1)
    producer.begin_transaction()
    producer.send(topic, b"kept")
    producer.flush()
    (late,) = proxy.held
    code = late.deliver()
    if does_harm:
        # A transaction that nobody aborted is, and its producer is at its end.
        assert code is ErrorCode.NONE
        with pytest.raises(errors.KafkaError) as caught:
            producer.commit_transaction()
        assert caught.value.recovery == "restart"
        expected = []
    else:
        assert code in FENCED
        producer.commit_transaction()
        expected = [b"kept"]
    assert values(read_with_confluent(broker.servers, topic)) == expected


@with_and_without_guard
def test_a_partition_that_is_added_late_begins_no_transaction(
    broker, proxy, ready, told, does_harm
):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.ADD_PARTITIONS_TO_TXN)
    with producer.transaction():
        producer.send(topic, b"value")
    if broker.mode.transaction_version == 2:
        assert proxy.held == []  # v2 adds a partition with its first batch
        return
    assert told().producer_epoch == (0 if does_harm else 1)
    (late,) = proxy.held
    code = late.deliver()
    if does_harm:
        # A transaction that nobody began, and nobody will end.
        assert code is ErrorCode.NONE
        assert told().state == "Ongoing"
    else:
        assert code in FENCED
        assert told().state == "Empty"  # the state of an epoch that was just taken
    assert values(read_with_confluent(broker.servers, topic)) == [b"value"]


@pytest.fixture
def group(transactional_id):
    return ConsumerGroupMetadata(f"group-{transactional_id}")


@pytest.fixture
def settled_offsets(broker, group, told):
    """Return a group's offsets when its transaction has ended. Wait for the expected ones."""

    def settle(expected):
        deadline = time.monotonic() + PATIENCE_S
        # A partition whose first offset is not decided yet is left out of a group's offsets.
        told()
        while (found := committed()) != expected and time.monotonic() < deadline:
            time.sleep(0.05)  # markers may be written before the group's coordinator heeds them
        return found

    def committed():
        found = admin.committed_offsets(broker.servers, [group.group_id])[group.group_id]
        return {place: offset.offset for place, offset in found.items()}

    return settle


def abort_with_offsets(producer, group, offsets):
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, group)
    producer.abort_transaction()


@with_and_without_guard
def test_a_group_added_late_with_its_offsets_does_not_join_the_next_transaction(
    broker, proxy, ready, told, does_harm, group, settled_offsets
):
    topic = broker.topic()
    place = TopicPartition(topic, 0)
    producer = ready()
    proxy.hold_next(ApiKey.ADD_OFFSETS_TO_TXN)
    proxy.hold_next(ApiKey.TXN_OFFSET_COMMIT)
    abort_with_offsets(producer, group, {place: OffsetAndMetadata(5)})
    is_v2 = broker.mode.transaction_version == 2  # which adds a group with its offsets
    kinds = [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT]
    assert [late.api_key for late in proxy.held] == kinds[is_v2:]
    assert told().producer_epoch == (0 if does_harm else 1)
    with producer.transaction():
        producer.send(topic, b"next")
        producer.flush()
        codes = {late.deliver() for late in proxy.held}
        joined = topics_of(told())
    if does_harm:
        # The offsets of the aborted transaction are committed with the next one.
        assert codes == {ErrorCode.NONE}
        assert joined == {topic, admin.GROUP_TOPIC}
        assert settled_offsets({place: 5}) == {place: 5}
    else:
        assert codes <= FENCED
        assert joined == {topic}
        assert settled_offsets({}) == {}
    assert values(read_with_confluent(broker.servers, topic)) == [b"next"]


@with_and_without_guard
def test_offsets_that_come_late_are_not_committed_with_the_next_ones_of_the_group(
    broker, proxy, ready, told, does_harm, group, settled_offsets
):
    topic = broker.topic(partitions=2)
    aborted, kept = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = ready()
    proxy.hold_next(ApiKey.TXN_OFFSET_COMMIT)
    abort_with_offsets(producer, group, {aborted: OffsetAndMetadata(5)})
    assert told().producer_epoch == (0 if does_harm else 1)
    with producer.transaction() as txn:
        txn.send_offsets({kept: OffsetAndMetadata(7)}, group)
        (late,) = proxy.held
        code = late.deliver()
    if does_harm:
        # Records that no committed transaction has processed are skipped.
        assert code is ErrorCode.NONE
        assert settled_offsets({aborted: 5, kept: 7}) == {aborted: 5, kept: 7}
    else:
        assert code in FENCED
        assert settled_offsets({kept: 7}) == {kept: 7}


def test_records_that_come_late_in_their_own_transaction_are_not_written_twice(
    broker, proxy, ready
):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.PRODUCE)
    with producer.transaction():
        producer.send(topic, b"value")
        producer.flush()
        (late,) = proxy.held
        assert late.deliver() is ErrorCode.NONE  # a duplicate, which gets its offset
    everything = read_with_confluent(broker.servers, topic, "read_uncommitted")
    assert values(everything) == [b"value"]


@with_and_without_guard
def test_expired_records_that_arrive_late_are_not_written_into_the_next_transaction(
    broker, proxy, ready, told, does_harm
):
    topic = broker.topic()
    producer = ready(linger_ms=0, request_timeout_ms=EXPIRY_MS, delivery_timeout_ms=EXPIRY_MS)
    proxy.hold_next_in_silence(ApiKey.PRODUCE)
    producer.begin_transaction()
    expired = producer.send(topic, b"expired")
    with pytest.raises(errors.KafkaTimeoutError):
        expired.result(PATIENCE_S)
    producer.abort_transaction()
    assert told().producer_epoch == (0 if does_harm else 1)
    (late,) = proxy.held
    codes = []
    with producer.transaction():
        # The worst moment: the partition is in the transaction, and its leader has not seen the
        # new epoch, so that only its question to the coordinator keeps the old one out (KIP-890).
        proxy.do_before_next(ApiKey.PRODUCE, lambda: codes.append(late.deliver()))
        producer.send(topic, b"next").result(PATIENCE_S)
        codes.append(late.deliver())
    everything = values(read_with_confluent(broker.servers, topic, "read_uncommitted"))
    if does_harm:
        assert codes == [ErrorCode.NONE, ErrorCode.NONE]  # the second is a duplicate
        assert everything == [b"expired", b"next"]
    else:
        assert set(codes) <= FENCED
        assert everything == [b"next"]
    assert values(read_with_confluent(broker.servers, topic)) == everything


def test_an_own_initialization_that_comes_late_ends_the_producer_and_commits_nothing(
    broker, proxy, ready, monkeypatch
):
    # Here only its delivery counts, not the answer.
    monkeypatch.setitem(
        delaying_proxy._CODES,
        ApiKey.INIT_PRODUCER_ID,
        (kp.InitProducerIdResponse, lambda answer: (answer.error_code,)),
    )
    topic = broker.topic()
    proxy.hold_next(ApiKey.INIT_PRODUCER_ID)
    producer = ready()
    producer.begin_transaction()
    producer.send(topic, b"value")
    producer.flush()
    (late,) = proxy.held
    late.deliver()
    with pytest.raises(errors.KafkaError) as caught:
        producer.commit_transaction()
    assert caught.value.recovery == "restart"
    assert values(read_with_confluent(broker.servers, topic)) == []


def lose_commit(proxy, producer, topic, *, arrives):
    """Commit so that the answer is lost and nobody can be asked again. Return the transaction."""
    txn = producer.transaction()
    txn.__enter__()
    producer.send(topic, b"value")
    producer.flush()
    (proxy.drop_next_answer if arrives else proxy.hold_next)(ApiKey.END_TXN)
    proxy.is_open = False
    patience_s, producer._max_block_s = producer._max_block_s, 1.0
    with pytest.raises(errors.KafkaTimeoutError):
        txn.__exit__(None, None, None)
    producer._max_block_s = patience_s
    assert txn.outcome == "open"
    return txn


@pytest.mark.parametrize("arrives", [True, False])
def test_an_abort_after_a_lost_commit_learns_the_commits_outcome(broker, proxy, ready, arrives):
    topic = broker.topic()
    producer = ready()
    txn = lose_commit(proxy, producer, topic, arrives=arrives)
    proxy.is_open = True
    if arrives:
        with pytest.raises(errors.IllegalStateError, match="has succeeded"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
    assert txn.outcome == ("committed" if arrives else "aborted")
    with producer.transaction():
        producer.send(topic, b"next")
    expected = [b"value", b"next"] if arrives else [b"next"]
    assert values(read_with_confluent(broker.servers, topic)) == expected


def test_a_lost_commit_is_resolved_after_the_producer_was_closed_by_force(broker, proxy, ready):
    topic = broker.topic()
    producer = ready()
    txn = lose_commit(proxy, producer, topic, arrives=True)
    producer.close(0)
    assert txn.outcome == "unknown"
    assert producer.resolve_outcome() == "committed"
    assert txn.outcome == "committed"
    assert values(read_with_confluent(broker.servers, topic)) == [b"value"]


def test_a_lost_commit_cannot_be_resolved_once_another_producer_has_begun(
    broker, proxy, ready, monkeypatch, transactional_id
):
    topic = broker.topic()
    producer = ready()
    lose_commit(proxy, producer, topic, arrives=True)
    producer.close(0)
    monkeypatch.setattr(base_producer, "NetworkClient", NetworkClient)
    with broker.ready(transactional_id):
        assert producer.resolve_outcome() == "unknown"


def test_a_commit_that_never_arrived_is_resolved_once_the_coordinator_has_aborted(
    broker, proxy, ready
):
    topic = broker.topic()
    producer = ready(transaction_timeout_ms=3_000)
    lose_commit(proxy, producer, topic, arrives=False)
    producer.close(0)
    assert producer.resolve_outcome() == "unknown"  # it is open, and the commit on its way
    # With v1 the abort at the time-out looks like a fence, which proves nothing.
    expected = "aborted" if broker.mode.transaction_version == 2 else "unknown"
    wait_until(lambda: producer.resolve_outcome() == expected, f"it is not told as {expected}")
