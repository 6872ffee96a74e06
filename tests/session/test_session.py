"""A session: offsets with their results, the way back after an abort, its settings and its end."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.live_client import commits_sent
from tests.session.consumers import (
    INPUT,
    Consumer,
    copy,
    joined,
    offsets_sent,
    run_until,
)
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.session import Batch, Record, TransactSession
from txnproducer.testing import InMemoryKafka

# --- one batch -----------------------------------------------------------------------------------


def test_a_batch_is_committed_with_the_offset_after_its_last_record(session, consumer, client):
    batch = session.poll(max_records=4)
    assert [record.offset for record in batch] == [0, 1, 2, 3]
    with session.transaction(batch) as transaction:
        for record in batch:
            copy(record, transaction)
    assert transaction.outcome == "committed"
    assert offsets_sent(client) == [{INPUT: 4}]
    (request,) = client.sent(ApiKey.TXN_OFFSET_COMMIT)
    assert (request.generation_id, request.member_id) == (3, "member")
    assert [record.offset for record in session.poll()] == [4, 5]


def test_offsets_of_several_partitions_and_gaps_of_markers_are_right():
    records = [Record("in", place, n, None, b"") for place, n in ((0, 5), (1, 7), (0, 9), (1, 8))]
    batch = Batch(records)
    other = TopicPartition("in", 1)
    assert batch.next_offsets == {INPUT: 10, other: 9}
    assert batch.first_offsets == {INPUT: 5, other: 7}


def test_an_exception_aborts_and_the_batch_is_read_again(session, consumer, client):
    batch = session.poll(max_records=4)
    block = session.transaction(batch)
    with pytest.raises(ZeroDivisionError), block as transaction:
        copy(batch[0], transaction) or batch[1 // 0]
    assert block.outcome == "aborted"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert consumer.log[-1] == ("seek", {INPUT: 0})
    assert commits_sent(client) == [False]


@pytest.mark.parametrize("when", ["in the block", "before it"])
def test_lost_partitions_abort_without_an_exception(session, consumer, client, when):
    batch = session.poll(max_records=4)
    if when == "before it":
        consumer.on_loss()
    block = session.transaction(batch)
    with block as transaction:
        copy(batch[0], transaction)
        if when == "in the block":
            consumer.on_loss()
    assert block.outcome == "aborted"
    session.poll()
    assert consumer.log[-1] == "rewind", "another consumer may have gone on"
    assert commits_sent(client) == [False]
    assert offsets_sent(client) == []


def test_records_of_partitions_that_were_lost_in_the_poll_are_not_handed_out(session, consumer):
    consumer.loses_in_poll = True
    assert len(session.poll(max_records=4)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert consumer.log[-1] == "rewind"


@pytest.mark.parametrize(
    "identity", [("group", 4, "member"), ("group", 3, "another"), ("group", -1, "")]
)
def test_a_changed_identity_sets_all_positions_back_to_the_committed_ones(
    session, consumer, identity
):
    consumer.metadata = ConsumerGroupMetadata(*identity)
    consumer.committed = 2  # by another consumer, which had the partition meanwhile
    assert len(session.poll(max_records=4)) == 0, "a commit could not be fenced"
    consumer.metadata = ConsumerGroupMetadata("group", 5, "member")
    assert len(session.poll(max_records=4)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [2, 3]
    assert consumer.log.count("rewind") >= 2


@pytest.mark.parametrize(
    "identity", [("group", -1, ""), ("group", 3, ""), ("group", -1, "member")]
)
def test_records_are_not_handed_out_while_the_consumer_is_outside_its_group(
    session, consumer, identity
):
    consumer.metadata = ConsumerGroupMetadata(*identity)
    assert [len(session.poll(max_records=4)) for _ in range(4)] == [0, 0, 0, 0]


def test_a_way_back_that_fails_is_tried_again_before_the_next_poll(session, consumer):
    consumer.on_loss()
    consumer.loses_in_poll = True
    session.poll(max_records=4)
    usual, left = consumer.rewind, [2]

    def rewind(first):
        left[0] -= 1
        if left[0] == 1:
            raise ZeroDivisionError
        return left[0] < 0 and usual(first)

    consumer.rewind = rewind
    with pytest.raises(ZeroDivisionError):
        session.poll(max_records=4)
    assert len(session.poll(max_records=4)) == 0, "the offsets are not known yet"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_the_consumer_is_polled_while_the_way_back_is_not_known_and_its_records_come_again(
    session, consumer
):
    batch = session.poll(max_records=2)
    with session.transaction(batch):
        consumer.on_loss()
    asked: list[Any] = []

    def rewind(first):
        asked.append(first)
        if len(asked) == 3:
            consumer.position = first[INPUT]
        return len(asked) == 3

    consumer.rewind = rewind
    consumer.polls = 0
    assert [len(session.poll(max_records=2)) for _ in range(2)] == [0, 0]
    assert consumer.polls == 2, "a member that does not poll is given up by its group"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert asked == [{INPUT: 0}] * 3


def test_records_that_an_interrupt_takes_away_come_again(session, consumer):
    usual = consumer.group_metadata

    def interrupted():
        consumer.group_metadata = usual
        raise KeyboardInterrupt

    consumer.group_metadata = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.poll(max_records=2)
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_committed_offsets_that_stay_unknown_are_logged(session, consumer, caplog):
    with session.transaction(session.poll(max_records=2)):
        consumer.on_loss()
    usual, consumer.rewind = consumer.rewind, lambda first: False
    for _ in range(61):
        session.poll(max_records=2)
    assert caplog.text.count("transaction with offsets of this group") == 2
    consumer.rewind = usual
    assert len(session.poll(max_records=2)) == 2


def test_partitions_that_are_lost_on_the_way_back_are_noticed(session, consumer):
    with session.transaction(session.poll(max_records=2)):
        consumer.on_loss()
    usual, losses = consumer.rewind, [consumer.on_loss]

    def rewind(first):
        done = usual(first)
        while losses:
            losses.pop()()
        return done

    consumer.rewind = rewind
    assert len(session.poll(max_records=2)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_a_static_member_that_is_fenced_ends_the_run(session, consumer, client):
    client.prepare_txn_offset_commit(error_code=82)  # FENCED_INSTANCE_ID
    with pytest.raises(KafkaError, match="instance"):
        run_until(session, consumer, copy)


def test_a_result_that_is_too_large_is_a_failure_of_its_record(consumer, make, client):
    producer = make(max_request_size=1000)
    producer.init_transactions()
    session = joined(consumer, producer, max_failures=1, dead_letter_topic="topic")

    def fn(record, transaction):
        future = transaction.send("topic", bytes(2000) if record.offset == 1 else b"")
        future.result(10)

    run_until(session, consumer, fn)
    assert [sent for sent in commits_sent(client) if sent] == [True] * 3


@pytest.mark.parametrize("code", [22, 25], ids=["generation", "member"])
def test_a_consumer_that_the_group_has_given_up_on_aborts_and_polls_on(
    session, consumer, client, code
):
    batch = session.poll(max_records=4)
    client.prepare_txn_offset_commit(error_code=code)
    block = session.transaction(batch)
    with block as transaction:
        copy(batch[0], transaction)
    assert block.outcome == "aborted"
    assert len(session.poll()) > 0


def test_a_batch_that_is_left_out_is_noticed_at_the_next_poll(session):
    batch = session.poll(max_records=4)
    with pytest.raises(IllegalStateError, match="would be skipped"):
        session.poll()
    with pytest.raises(IllegalStateError, match="not the open batch"):
        session.transaction(Batch(batch.records))


def test_an_empty_batch_needs_no_transaction(ready):
    session = TransactSession(Consumer(count=0), ready, ["in"])
    assert len(session.poll()) == len(session.poll()) == 0


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "name", "advice"),
    [
        ("kafka", "KafkaConsumer", "KafkaPythonConsumer"),
        ("confluent_kafka", "Consumer", "for_confluent"),
        ("aiokafka", "AIOKafkaConsumer", "member id is private"),
    ],
)
def test_a_consumer_of_a_library_itself_is_refused_with_advice(ready, library, name, advice):
    consumer = getattr(pytest.importorskip(library, reason=f"{library} is missing"), name)
    with pytest.raises(InvalidConfigurationError, match=advice):
        TransactSession(consumer.__new__(consumer), ready, ["in"])


def test_a_closed_session_leaves_the_group_and_closes_the_producer(session, consumer, ready):
    with session:
        pass
    assert consumer.log[-1] == ("close", 5.0)
    with pytest.raises(KafkaError, match="closed"):
        ready.begin_transaction()


@pytest.fixture
def closes(ready, monkeypatch):
    """Return the time-outs with which the producer of a session is closed."""
    found: list[float | None] = []
    monkeypatch.setattr(ready, "close", lambda timeout=None: found.append(timeout))
    yield found
    monkeypatch.undo()


def test_a_time_out_of_close_is_for_the_consumer_and_the_producer_together(
    session, consumer, closes
):
    consumer.leaves_in_s = 0.2
    session.close(timeout=10)
    session.close(timeout=0.1)
    session.close()
    assert [each for each in consumer.log if "close" in each] == [
        ("close", 5.0),
        ("close", 0.1),
        ("close", 5.0),
    ]
    assert 9 < closes[0] <= 9.8
    assert closes[1:] == [0, None]


def test_a_negative_time_out_of_close_is_refused_before_anything_is_closed(
    session, consumer, closes
):
    with pytest.raises(ValueError, match="timeout must not be negative: -1"):
        session.close(timeout=-1)
    assert consumer.log == closes == []


def test_the_end_of_the_block_of_a_session_has_the_limits_of_that_of_a_producer(
    session, ready, closes
):
    with session:
        pass
    with pytest.raises(SystemExit), session:
        raise SystemExit
    usual, after_error = closes
    assert ready._delivery_s - 1 < usual <= ready._delivery_s
    assert 29 < after_error <= 30


@pytest.mark.parametrize(
    ("topics", "settings", "error", "text"),
    [
        ("orders", {}, TypeError, r"topics is 'orders': .* as in \['orders'\]"),
        ([b"orders"], {}, TypeError, "topics: a name must be a str, not b'orders'"),
        (None, {}, TypeError, "topics: a name must be a str, not None"),
        ([], {}, ValueError, "topics is empty"),
        (["in"], {"max_failures": 0}, ValueError, "max_failures=0: at least one"),
        (["in"], {"max_failures": "3"}, TypeError, "max_failures must be an int, not '3'"),
        (["in"], {"max_failures": 1.5}, TypeError, "max_failures must be an int, not 1.5"),
        (["in"], {"dead_letter_topic": 5}, TypeError, "dead_letter_topic must be a str or None"),
        (["in"], {"dead_letter_topic": ""}, ValueError, "dead_letter_topic: '' is not a valid"),
        (["in"], {"dead_letter_topic": "a b"}, ValueError, "dead_letter_topic: 'a b' is not"),
        (["a", "in"], {"dead_letter_topic": "in"}, ValueError, "is one of the topics to read"),
    ],
)
@pytest.mark.parametrize("how", ["class", "for_kafka_python", "for_confluent"])
def test_wrong_arguments_are_refused_before_anything_is_made(
    ready, client, topics, settings, error, text, how
):
    consumer = Consumer()
    count = len(client.requests)
    if how == "class":
        make = partial(TransactSession, consumer, ready)
    else:
        named = getattr(TransactSession, how)
        make = partial(
            named, group_id="group", transactional_id="txn", bootstrap_servers="localhost:1"
        )
    with pytest.raises(error, match=text):
        make(topics, **settings)
    assert consumer.log == []
    assert len(client.requests) == count, "a producer would have been fenced"


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("for_kafka_python", {"consumer_settings": {"isolation_level": "read_uncommitted"}}),
        ("for_kafka_python", {"consumer_settings": {"nosuch": 1}}),
        ("for_kafka_python", {"producer_settings": {"nosuch": 1}}),
        ("for_confluent", {"consumer_settings": {"isolation.level": "read_uncommitted"}}),
        ("for_confluent", {"consumer_settings": {"nosuch": 1}}),
    ],
)
def test_a_wrong_setting_fences_no_session_that_is_at_work(how, settings):
    with InMemoryKafka({"in": 1}) as kafka, kafka.producer("txn") as at_work:
        at_work.init_transactions()
        with pytest.raises(Exception, match=r"nosuch|isolation.level"):
            getattr(TransactSession, how)(
                ["in"], "group", "txn", bootstrap_servers=kafka.listen(), **settings
            )
        with at_work.transaction() as transaction:
            transaction.send("in", b"value")
        assert len(kafka.records("in")) == 1


@pytest.mark.parametrize("how", ["for_kafka_python", "for_confluent"])
def test_without_a_broker_the_error_is_the_producers(how):
    """It names the cause, where kafka-python's tries again for 30 s and confluent's only logs."""
    with pytest.raises(KafkaTimeoutError, match=r"init_transactions .*cannot connect to 127"):
        getattr(TransactSession, how)(
            ["in"],
            "group",
            "txn",
            bootstrap_servers="127.0.0.1:1",
            producer_settings={"max_block_ms": 500},
        )


@pytest.mark.parametrize(
    ("how", "settings", "name"),
    [
        ("for_kafka_python", {"consumer_settings": {"group_id": "other"}}, "group_id"),
        ("for_kafka_python", {"consumer_settings": {"bootstrap_servers": "a:1"}}, "bootstrap_ser"),
        ("for_confluent", {"consumer_settings": {"group.id": "other"}}, "group.id"),
        (
            "for_kafka_python",
            {"producer_settings": {"transactional_id": "other"}},
            "transactional_id",
        ),
        ("for_confluent", {"producer_settings": {"bootstrap.servers": "a:1"}}, "bootstrap.serve"),
    ],
)
def test_a_setting_that_is_an_argument_is_refused(how, settings, name):
    (argument,) = settings
    make = getattr(TransactSession, how)
    with pytest.raises(InvalidConfigurationError, match=f"{argument}: '{name}.* leave it out"):
        make(["in"], "group", "txn", bootstrap_servers="localhost:1", **settings)


def test_a_run_needs_an_event(session):
    with pytest.raises(TypeError, match=r"stop must be a threading.Event, not None"):
        session.run(copy, None)
