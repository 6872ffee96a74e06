"""A prepared transaction waits for a decision, and any process completes it, once or twice."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from txnproducer import (
    ClaimRefusedError,
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.errors import (
    GroupAuthorizationError,
    TransactionAbortedError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.prepared import PreparedTransaction, StoredDecision
from txnproducer.records import OffsetAndMetadata, TopicPartition
from txnproducer.testing import InMemoryKafka

GROUP = "__txn.t"
DECISIONS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"payments": 2}, nodes=3) as kafka:
        yield kafka


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


def prepare(producer, value=b"1"):
    producer.begin_transaction()
    producer.send("payments", value, partition=1)
    return producer.prepare_transaction()


@pytest.fixture
def producer(kafka):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        yield producer


@pytest.fixture
def other(kafka):
    """Another process's producer of the id, which is not initialized."""
    with kafka.producer("t") as producer:
        yield producer


def values(kafka):
    return [record.value for record in kafka.records("payments")]


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


# --- what the answers mean -----------------------------------------------------------------------


def test_a_commit_may_be_repeated_by_anyone_at_any_time(kafka, producer, other):
    prepared = prepare(producer)
    assert producer.complete(prepared, commit=True) == "committed"
    assert producer.complete(prepared, commit=True) == "committed"
    assert other.complete(prepared, commit=True) == "committed"
    other.init_transactions()
    assert other.complete(prepared, commit=True) == "committed"
    assert producer.complete(prepared, commit=True) == "committed"
    assert values(kafka) == [b"1"]


@DECISIONS
@pytest.mark.parametrize("by", ["its time-out", "a newer producer"])
def test_nothing_is_left_of_a_transaction_that_the_brokers_have_aborted(
    kafka, producer, other, commit, by
):
    prepared = prepare(producer)
    if by == "its time-out":
        kafka.time_out_transaction("t")
    else:
        with kafka.producer("t") as newer:
            newer.init_transactions()
    for completer in (producer, other):
        assert completer.complete(prepared, commit=commit) == ("lost" if commit else "aborted")
    assert values(kafka) == []


def test_an_abort_after_a_commit_tells_that_it_is_committed(kafka, producer, other):
    prepared = prepare(producer)
    assert producer.complete(prepared, commit=True) == "committed"
    assert other.complete(prepared, commit=False) == "committed"
    assert values(kafka) == [b"1"]


def test_a_commit_after_an_abort_tells_that_it_is_lost(kafka, producer, other):
    prepared = prepare(producer)
    assert producer.complete(prepared, commit=False) == "aborted"
    assert other.complete(prepared, commit=True) == "lost"
    assert other.complete(prepared, commit=False) == "aborted"
    assert values(kafka) == []


def test_an_entry_that_was_replaced_leaves_it_unknown(producer, other):
    first = prepare(producer)
    producer.complete(first, commit=True)
    second = prepare(producer)
    producer.complete(second, commit=True)
    assert other.complete(first, commit=True) == "unknown"
    assert other.complete(second, commit=True) == "committed"


def test_a_later_transaction_that_is_open_keeps_nobody_waiting(producer, other):
    first = prepare(producer)
    producer.complete(first, commit=True)
    second = prepare(producer)
    assert other.complete(first, commit=True) == "committed"
    assert other.complete(second, commit=True) == "committed"


def test_a_lost_one_before_a_later_one_that_is_open_is_lost(kafka, producer, other):
    first = prepare(producer)
    kafka.time_out_transaction("t")
    with kafka.producer("t") as newer:
        newer.init_transactions()
        second = prepare(newer, b"2")
        assert other.complete(first, commit=True) == "lost"
        assert newer.complete(second, commit=True) == "committed"


def test_a_missing_entry_of_an_old_transaction_leaves_it_unknown(kafka, producer, other):
    prepared = prepare(producer)
    kafka.time_out_transaction("t")
    # The modelled brokers do not tell offsets.retention.minutes.
    recent = replace(prepared, number=prepared.number - 5 * 60_000)
    old = replace(prepared, number=prepared.number - 3600_000)
    ahead = replace(prepared, number=prepared.number + 3600_000)
    assert other.complete(recent, commit=True) == "lost"
    assert other.complete(old, commit=True) == "unknown"
    assert other.complete(ahead, commit=True) == "unknown"


# --- faults --------------------------------------------------------------------------------------


@DECISIONS
def test_a_lost_answer_to_the_end_changes_nothing(kafka, producer, commit):
    prepared = prepare(producer)
    kafka.lose_answer("EndTxn")
    assert producer.complete(prepared, commit=commit) == ("committed" if commit else "aborted")
    assert values(kafka) == ([b"1"] if commit else [])


@DECISIONS
def test_coordinators_may_move_meanwhile(kafka, producer, other, commit):
    prepared = prepare(producer)
    kafka.move_coordinator("t")
    kafka.move_group_coordinator(GROUP)
    kafka.move_leader("payments", 1)
    assert other.complete(prepared, commit=commit) == ("committed" if commit else "aborted")
    kafka.move_coordinator("t")
    kafka.move_group_coordinator(GROUP)
    assert producer.complete(prepared, commit=commit) == ("committed" if commit else "aborted")


@DECISIONS
def test_two_processes_may_complete_at_once(kafka, producer, commit):
    prepared = prepare(producer)
    found = []

    def complete():
        with kafka.producer("t") as one:
            found.append(one.complete(prepared, commit=commit))

    threads = [threading.Thread(target=complete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["committed" if commit else "aborted"] * 4
    assert values(kafka) == ([b"1"] if commit else [])


def test_a_completion_that_cannot_reach_the_coordinator_is_repeated(kafka, producer):
    prepared = prepare(producer)
    with kafka.producer("t", max_block_ms=300) as hasty:
        kafka.delay("EndTxn", 1.0)
        with pytest.raises(KafkaTimeoutError):
            hasty.complete(prepared, commit=True)
        assert hasty.complete(prepared, commit=True) == "committed"


def test_a_refused_completion_leaves_the_transaction_prepared(kafka, producer, other):
    prepared = prepare(producer)
    producer.close()
    kafka.deny(transactional_id="t")
    with pytest.raises(TransactionalIdAuthorizationError):
        other.complete(prepared, commit=True)
    assert kafka.transactions()["t"].state == "Ongoing"
    kafka.allow(transactional_id="t")
    assert other.complete(prepared, commit=True) == "committed"


def test_an_interrupted_completion_leaves_the_transaction_prepared(kafka, producer, other):
    prepared = prepare(producer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txnproducer.producer.TransactionalProducer.commit_transaction", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            other.complete(prepared, commit=True)
    assert kafka.transactions()["t"].state == "Ongoing"
    assert other.complete(prepared, commit=True) == "committed"


def _interrupt(_):
    raise KeyboardInterrupt


# --- refusals ------------------------------------------------------------------------------------


def test_another_ids_transaction_is_refused(kafka, producer):
    with kafka.producer("u") as other, pytest.raises(ValueError, match="they need one id"):
        other.complete(prepare(producer), commit=True)


def test_another_clusters_transaction_is_refused(producer, other):
    elsewhere = replace(prepare(producer), cluster_id="another")
    with pytest.raises(ClaimRefusedError, match="of cluster 'another'"):
        other.complete(elsewhere, commit=True)


def test_a_text_that_is_none_is_refused(other):
    with pytest.raises(ValueError, match="is no prepared transaction"):
        other.complete("paid", commit=True)


def test_another_threads_block_is_not_completed(producer):
    with producer.transaction() as block:
        block.send("payments", b"1")
        prepared = producer.prepare_transaction()
        caught = []

        def complete():
            try:
                producer.complete(prepared, commit=True)
            except IllegalStateError as error:
                caught.append(error)

        thread = threading.Thread(target=complete)
        thread.start()
        thread.join()
        assert len(caught) == 1
        assert producer.complete(prepared, commit=True) == "committed"


# --- recovery ------------------------------------------------------------------------------------


@DECISIONS
def test_recovery_comes_before_the_initialization(kafka, producer, other, commit):
    text = str(prepare(producer))
    told: list[str] = []
    other.init_transactions(recover=lambda: StoredDecision(text, commit, told.append))
    assert told == ["committed" if commit else "aborted"]
    assert other.transaction_state == "READY"
    assert values(kafka) == ([b"1"] if commit else [])


def test_a_plain_pair_will_do(kafka, producer, other):
    prepared = prepare(producer)
    other.init_transactions(recover=lambda: (prepared, True))
    assert values(kafka) == [b"1"]


def test_without_a_stored_token_the_initialization_aborts_what_was_prepared(
    kafka, producer, other
):
    prepared = prepare(producer)
    other.init_transactions(recover=lambda: None)
    assert producer.complete(prepared, commit=True) == "lost"
    assert values(kafka) == []


def test_a_lost_transaction_stops_the_recovery_before_the_initialization(kafka, producer):
    prepared = prepare(producer)
    kafka.time_out_transaction("t")
    for _ in range(2):
        with kafka.producer("t") as other:
            with pytest.raises(TransactionAbortedError, match="Write its records again") as told:
                other.init_transactions(recover=lambda: (prepared, True))
            assert told.value.recovery == "fix"
            with pytest.raises(IllegalStateError, match="closed"):
                other.init_transactions()
    with kafka.producer("t") as other:
        other.init_transactions()
        assert other.complete(prepare(other), commit=True) == "committed"


def test_a_recovery_that_returns_something_else_is_refused(other):
    with pytest.raises(TypeError, match=r"must return \(token, commit\)"):
        other.init_transactions(recover=lambda: "v1:text")


def test_an_unknown_outcome_stops_the_recovery(producer, other):
    first = prepare(producer)
    producer.complete(first, commit=True)
    producer.complete(prepare(producer), commit=True)
    with pytest.raises(CommitOutcomeUnknownError, match="Look for its records"):
        other.init_transactions(recover=lambda: (first, True))


def test_a_decision_to_abort_that_came_too_late_stops_the_recovery(producer, other):
    prepared = prepare(producer)
    producer.complete(prepared, commit=True)
    with pytest.raises(IllegalStateError, match="two parties have decided"):
        other.init_transactions(recover=lambda: (prepared, False))


def test_a_producer_that_is_initialized_recovers_nothing(producer):
    def never():
        raise AssertionError

    with pytest.raises(IllegalStateError):
        producer.init_transactions(recover=never)


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
