"""Any process completes a prepared transaction, once or twice, and learns how it ended."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from tests.two_phase.prepared import DECISIONS, GROUP, prepare, values
from txnproducer import (
    ClaimRefusedError,
    IllegalStateError,
    KafkaTimeoutError,
)
from txnproducer.errors import (
    TransactionalIdAuthorizationError,
)

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


def test_a_decision_that_is_no_bool_is_refused(kafka, producer, other):
    prepared = prepare(producer)
    for completer in (producer, other):
        with pytest.raises(TypeError, match=r"must be True or False, not 'abort'"):
            completer.complete(prepared, commit="abort")
    assert producer.complete(prepared, commit=True) == "committed"


# --- an end that has timed out -------------------------------------------------------------------


@pytest.fixture
def hasty(kafka):
    with kafka.producer("t", max_block_ms=300) as producer:
        producer.init_transactions()
        yield producer


def time_out(kafka, hasty, prepared, *, commit):
    kafka.delay("EndTxn", 0.6)
    with pytest.raises(KafkaTimeoutError):
        hasty.complete(prepared, commit=commit)
    time.sleep(0.5)  # the delayed answer


def goes_on(producer):
    return producer.complete(prepare(producer, b"2"), commit=True) == "committed"


@DECISIONS
def test_the_same_call_again_sees_it(kafka, hasty, commit):
    prepared = prepare(hasty)
    time_out(kafka, hasty, prepared, commit=commit)
    assert hasty.complete(prepared, commit=commit) == ("committed" if commit else "aborted")
    assert goes_on(hasty)


@DECISIONS
def test_a_call_with_the_other_decision_learns_how_it_ended(kafka, hasty, commit):
    prepared = prepare(hasty)
    time_out(kafka, hasty, prepared, commit=commit)
    assert hasty.complete(prepared, commit=not commit) == ("committed" if commit else "lost")
    assert goes_on(hasty)


def test_an_end_that_is_still_under_way_is_not_given_up_for_the_other_one(kafka, hasty):
    prepared = prepare(hasty)
    kafka.delay("EndTxn", 0.8)
    for commit in (True, False):
        with pytest.raises(KafkaTimeoutError, match=r"commit_transaction\(\)"):
            hasty.complete(prepared, commit=commit)
    time.sleep(0.4)  # the delayed answer
    assert hasty.complete(prepared, commit=False) == "committed"
    assert goes_on(hasty)


def test_a_later_transaction_is_not_ended_in_place_of_one_that_another_thread_has_completed(
    kafka, producer, monkeypatch
):
    prepared, end = prepare(producer), producer._end

    def end_late(call, begin):
        monkeypatch.undo()
        assert producer.complete(prepared, commit=True) == "committed"
        producer.begin_transaction()
        producer.send("payments", b"half", partition=1)
        end(call, begin)

    monkeypatch.setattr(producer, "_end", end_late)
    with pytest.raises(IllegalStateError, match="another thread has completed"):
        producer.complete(prepared, commit=True)
    producer.abort_transaction()
    assert values(kafka) == [b"1"]


def test_a_completion_that_is_repeated_logs_no_error(producer, other, caplog):
    prepared = prepare(producer)
    producer.complete(prepared, commit=True)
    with producer.transaction():
        producer.send("payments", b"2")
    caplog.set_level(logging.INFO, "txnproducer")
    assert other.complete(prepared, commit=True) == "committed"
    assert [line for line in caplog.messages if "cannot go on" in line] == []
