"""A prepared transaction waits for a decision, and its producer can add nothing to it."""

from __future__ import annotations

import logging
import time

import pytest

from tests.two_phase.prepared import DECISIONS, GROUP, prepare, values
from txnproducer import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.errors import (
    GroupAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.prepared import PreparedTransaction
from txnproducer.records import OffsetAndMetadata, TopicPartition
from txnproducer.testing import InMemoryKafka


def test_transactions_v1_are_refused_before_anything_is_prepared():
    with InMemoryKafka(topics={"payments": 2}, transaction_version=1) as kafka:
        with kafka.producer("t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("payments", b"1")
            with pytest.raises(UnsupportedVersionError, match="transactions v2"):
                producer.prepare_transaction()
            producer.abort_transaction()
            with producer.transaction():
                producer.send("payments", b"2")
        assert [record.value for record in kafka.records("payments")] == [b"2"]


# --- the usual course ----------------------------------------------------------------------------


@DECISIONS
def test_the_producer_that_prepares_completes_and_goes_on(kafka, producer, commit):
    prepared = prepare(producer)
    assert producer.transaction_state == "PREPARED_TRANSACTION"
    assert values(kafka) == []
    assert producer.complete(prepared, commit=commit) == ("committed" if commit else "aborted")
    assert producer.transaction_state == "READY"
    assert producer.complete(prepare(producer, b"2"), commit=True) == "committed"
    assert values(kafka) == ([b"1", b"2"] if commit else [b"2"])


@DECISIONS
def test_another_process_completes_by_the_text(kafka, producer, other, commit):
    text = str(prepare(producer))
    producer.close()
    assert other.complete(text, commit=commit) == ("committed" if commit else "aborted")
    assert values(kafka) == ([b"1"] if commit else [])
    assert other.transaction_state == "UNINITIALIZED"


def test_the_entry_belongs_to_the_transaction(kafka, producer):
    prepared = prepare(producer)
    place = TopicPartition("payments", 1)
    assert prepared.place == place
    assert kafka.committed(GROUP) == {}
    producer.complete(prepared, commit=True)
    assert kafka.committed(GROUP)[place].offset == prepared.number
    later = prepare(producer)
    assert later.number > prepared.number
    producer.complete(later, commit=False)
    assert kafka.committed(GROUP)[place].offset == prepared.number


def test_numbers_grow_from_one_producer_to_the_next_also_if_its_clock_is_late(kafka, producer):
    prepared = prepare(producer)
    producer.complete(prepared, commit=True)
    with kafka.producer("t") as late:
        late.init_transactions()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(late._platform), "wall_clock_ms", lambda _: 1_000)
            assert prepare(late).number == prepared.number + 1


def test_a_transaction_of_offsets_alone_can_be_prepared(kafka, producer):
    producer.begin_transaction()
    place = TopicPartition("payments", 0)
    producer.send_offsets_to_transaction({place: 7}, _group("consumers"))
    prepared = producer.prepare_transaction()
    assert prepared.place == place
    producer.complete(prepared, commit=True)
    assert kafka.committed("consumers")[place] == OffsetAndMetadata(7)


def _group(name):
    from txnproducer import ConsumerGroupMetadata

    return ConsumerGroupMetadata(name)


# --- the state -----------------------------------------------------------------------------------


def test_a_prepared_transaction_takes_nothing_more(producer):
    prepare(producer)
    for call in (
        lambda: producer.send("payments", b"2"),
        lambda: producer.send_offsets_to_transaction(
            {TopicPartition("payments", 0): 1}, _group("g")
        ),
        lambda: producer.lease(claims=0),
        producer.prepare_transaction,
        producer.begin_transaction,
        producer.init_transactions,
    ):
        with pytest.raises(IllegalStateError, match=r"prepared: complete\(\) it, or close"):
            call()
    assert producer.transaction_state == "PREPARED_TRANSACTION"


def test_a_transaction_without_anything_is_not_prepared(producer):
    producer.begin_transaction()
    with pytest.raises(IllegalStateError, match="in which nothing was sent: abort it"):
        producer.prepare_transaction()
    producer.abort_transaction()
    with pytest.raises(IllegalStateError, match="nothing to prepare in state READY"):
        producer.prepare_transaction()


def test_a_record_that_was_not_written_prevents_the_preparation(kafka, producer):
    producer.begin_transaction()
    kafka.fail_next("Produce", error="MESSAGE_TOO_LARGE")
    producer.send("payments", b"1")
    with pytest.raises(KafkaError) as refused:
        producer.prepare_transaction()
    assert refused.value.recovery == "abort"
    producer.abort_transaction()


def test_a_missing_right_on_the_group_prevents_the_preparation(kafka, producer):
    kafka.deny(group=GROUP)
    with pytest.raises(GroupAuthorizationError, match=GROUP):
        prepare(producer)
    producer.abort_transaction()
    kafka.allow(group=GROUP)
    assert producer.complete(prepare(producer), commit=True) == "committed"


def test_a_missing_right_to_read_the_topic_is_named(kafka, producer):
    kafka.fail_next("TxnOffsetCommit", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED") as refused:
        prepare(producer)
    assert "needs Read on the topic 'payments' and on the group" in refused.value.__notes__[0]


def test_a_preparation_that_timed_out_is_called_again(kafka):
    with kafka.producer("t", max_block_ms=300) as producer:
        producer.init_transactions()
        kafka.delay("TxnOffsetCommit", 0.6)
        with pytest.raises(KafkaTimeoutError, match="again"):
            prepare(producer)
        time.sleep(0.5)  # the delayed answer
        prepared = producer.prepare_transaction()
        assert producer.complete(prepared, commit=True) == "committed"
        assert len(kafka.committed(GROUP)) == 1


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_block_leaves_a_prepared_transaction_as_it_is(kafka, producer, has_failed):
    prepared = None
    try:
        with producer.transaction() as block:
            block.send("payments", b"1")
            prepared = producer.prepare_transaction()
            if has_failed:
                raise ConnectionError("was the database's commit done?")
    except ConnectionError:
        pass
    assert block.outcome == "open"
    assert producer.transaction_state == "PREPARED_TRANSACTION"
    assert producer.complete(prepared, commit=True) == "committed"
    assert block.outcome == "committed"
    assert values(kafka) == [b"1"]


def test_a_block_whose_transaction_is_lost_shows_it(kafka, producer):
    with producer.transaction() as block:
        block.send("payments", b"1")
        prepared = producer.prepare_transaction()
        kafka.time_out_transaction("t")
        assert producer.complete(prepared, commit=True) == "lost"
    assert block.outcome == "aborted"


def test_a_block_that_another_process_has_committed_is_never_called_aborted(
    kafka, producer, other
):
    with producer.transaction() as block:
        block.send("payments", b"1")
        prepared = producer.prepare_transaction()
    other.complete(prepared, commit=True)
    other.init_transactions()
    with pytest.raises(KafkaError):
        producer.commit_transaction()  # fenced
    assert block.outcome == "unknown"
    assert producer.complete(prepared, commit=True) == "committed"
    assert block.outcome == "committed"


# --- the time-out --------------------------------------------------------------------------------


def warnings_of(caplog, kafka, **settings):
    caplog.set_level(logging.INFO, "txnproducer._shell.completing")
    with kafka.producer("t", **settings) as producer:
        producer.init_transactions()
        for _ in range(2):
            producer.complete(prepare(producer), commit=True)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_time_out_below_the_brokers_limit_is_warned_of_once(kafka, caplog):
    ((level, text),) = warnings_of(caplog, kafka, transaction_timeout_ms=60_000)
    assert level == "WARNING"
    assert "is aborted after 60 s" in text
    assert "(it is 900000)" in text


def test_the_brokers_limit_as_the_time_out_is_no_mistake(kafka, caplog):
    ((level, _),) = warnings_of(caplog, kafka, transaction_timeout_ms=900_000)
    assert level == "INFO"


def test_the_deadline_counts_from_the_first_record(kafka, producer):
    producer.begin_transaction()
    before_ms = time.time() * 1000
    producer.send("payments", b"1").result()
    time.sleep(1.0)
    deadline_ms = producer.prepare_transaction().deadline_ms
    timeout_ms = producer._config.transaction_timeout_ms
    assert deadline_ms == pytest.approx(before_ms + timeout_ms, abs=700)


def test_a_transaction_without_a_time_out_has_no_deadline(caplog):
    endless = 2**31 - 1
    with InMemoryKafka({"payments": 2}, max_transaction_timeout_ms=endless) as kafka:
        assert warnings_of(caplog, kafka, transaction_timeout_ms=endless) == []
        with kafka.producer("t", transaction_timeout_ms=endless) as producer:
            producer.init_transactions()
            prepared = prepare(producer)
    assert prepared.deadline_ms is None
    assert PreparedTransaction.parse(str(prepared)) == prepared


def test_a_function_of_run_transaction_that_prepares_is_refused(kafka, producer):
    prepared = []

    def prepare_it(transaction):
        transaction.send("payments", b"1")
        prepared.append(producer.prepare_transaction())

    with pytest.raises(IllegalStateError, match="which this call does not end"):
        producer.run_transaction(prepare_it)
    assert producer.complete(prepared[0], commit=True) == "committed"


def test_a_prepared_transaction_is_not_prepared_again(producer):
    prepare(producer)
    with pytest.raises(IllegalStateError, match="PREPARED_TRANSACTION") as found:
        producer.prepare_transaction()
    # No right is missing.
    assert not getattr(found.value, "__notes__", None)
