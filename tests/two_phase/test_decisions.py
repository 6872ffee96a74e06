"""A database decides about a prepared transaction, and only its present holder may store one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import sqlalchemy as sa

from tests.test_pages import names_of
from tests.two_phase.processes import booked, sent, stored
from txnproducer import CommitOutcomeUnknownError, IllegalStateError, ProducerFencedError
from txnproducer.errors import (
    InvalidConfigurationError,
    KafkaTimeoutError,
    TransactionAbortedError,
)
from txnproducer.two_phase import SqlAlchemyDecisions, decisions_table
from txnproducer.two_phase.decision_row import DecisionRow


def test_both_are_committed_one_after_the_other(kafka, engine, start):
    process = start()
    process.pay(1)
    process.pay(2)
    assert booked(engine) == sent(kafka) == [1, 2]
    assert stored(engine) is None


def test_an_error_of_the_database_leaves_neither(kafka, engine, start):
    process = start()
    process.pay(1)
    with pytest.raises(sa.exc.IntegrityError):
        process.pay(1)
    process.pay(2)
    assert booked(engine) == sent(kafka) == [1, 2]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_that_ends_the_databases_transaction_sends_nothing(kafka, start, end):
    process = start()

    def end_in_the_block():
        with process.decisions.transaction(process.producer) as connection:
            process.producer.send("payments", b"1")
            getattr(connection, end)()

    with pytest.raises(IllegalStateError, match=r"leave commit\(\) and rollback\(\) out"):
        end_in_the_block()
    assert sent(kafka) == []


def test_a_record_that_is_not_written_leaves_neither(kafka, engine, start):
    process = start()
    kafka.fail_next("Produce", error="MESSAGE_TOO_LARGE")
    with pytest.raises(Exception, match="record"):
        process.pay(1)
    process.pay(2)
    assert booked(engine) == sent(kafka) == [2]


def test_a_process_that_dies_before_the_database_commits_leaves_neither(kafka, engine, start):
    start().prepare(1)
    start()
    assert booked(engine) == sent(kafka) == []


def test_a_process_that_dies_after_the_database_has_committed_leaves_both(kafka, engine, start):
    dead = start()
    dead.decide(engine, 1, dead.prepare(1))
    assert sent(kafka) == []
    start()
    assert booked(engine) == sent(kafka) == [1]
    assert stored(engine) is None


def test_a_process_that_dies_before_it_has_dropped_the_token_does_no_harm(kafka, engine, start):
    dead = start()
    prepared = dead.prepare(1)
    dead.decide(engine, 1, prepared)
    dead.producer.complete(prepared, commit=True)
    start().pay(2)
    start().pay(3)
    assert booked(engine) == sent(kafka) == [1, 2, 3]


def test_a_process_that_sleeps_while_another_takes_over_commits_nothing(kafka, engine, start):
    sleeper = start()
    prepared = sleeper.prepare(1)
    start().pay(2)  # its initialization has aborted the sleeper's transaction
    with pytest.raises(ProducerFencedError, match="another process has taken over the decisions"):
        sleeper.decide(engine, 1, prepared)
    assert booked(engine) == sent(kafka) == [2]
    assert sleeper.producer.complete(prepared, commit=True) == "unknown"


def test_a_take_over_sees_a_decision_that_was_stored_before_it(kafka, engine, start):
    sleeper = start()
    sleeper.decide(engine, 1, sleeper.prepare(1))
    start().pay(2)
    assert booked(engine) == sent(kafka) == [1, 2]


def test_the_token_of_a_transaction_that_the_brokers_have_aborted_is_kept(kafka, engine, start):
    process = start()
    process.decide(engine, 1, process.prepare(1))
    kafka.time_out_transaction("t")
    text = stored(engine)
    with pytest.raises(TransactionAbortedError, match="Write its records again"):
        start()
    with pytest.raises(TransactionAbortedError):
        start()
    assert stored(engine) == text
    process.decisions.forget(text)
    start().pay(2)
    assert sent(kafka) == [2]


def test_a_later_decision_is_not_forgotten_with_an_earlier_one(engine, start):
    process = start()
    first = process.prepare(1)
    process.producer.complete(first, commit=False)
    second = process.prepare(2)
    process.decide(engine, 2, second)
    process.decisions.forget(first)
    assert stored(engine) == str(second)


def test_a_decision_needs_a_take_over_and_a_transaction_of_the_id(kafka, engine, start):
    process = start()
    prepared = process.prepare(1)
    unprepared = SqlAlchemyDecisions(engine, "t")
    with engine.begin() as connection:
        with pytest.raises(IllegalStateError, match=r"recover=decisions\.recover"):
            unprepared.record(connection, prepared)
        with pytest.raises(ValueError, match="not of the transactional id 'u'"):
            SqlAlchemyDecisions(engine, "u").record(connection, prepared)


def recovered(decisions):
    with decisions.recover() as found:
        return found


def test_a_process_that_sleeps_before_its_initialization_aborts_no_decided_transaction(
    kafka, engine, monkeypatch
):
    sleeper, awake = SqlAlchemyDecisions(engine, "t"), SqlAlchemyDecisions(engine, "t")
    awake.create_table()
    usual = DecisionRow.take_over
    producers = [kafka.producer("t"), kafka.producer("t")]

    def take_over_and_sleep(decisions):
        usual(decisions)
        if decisions is sleeper._row:
            producers[1].init_transactions(recover=awake.recover)
            producers[1].begin_transaction()
            producers[1].send("payments", b"1")
            prepared = producers[1].prepare_transaction()
            with engine.begin() as connection:
                awake.record(connection, prepared)

    monkeypatch.setattr(DecisionRow, "take_over", take_over_and_sleep)
    with pytest.raises(ProducerFencedError, match="has taken over the decisions"):
        producers[0].init_transactions(recover=sleeper.recover)
    text = stored(engine)
    assert producers[1].complete(text, commit=True) == "committed"
    assert sent(kafka) == [1]
    for producer in producers:
        producer.close()


def test_a_take_over_waits_while_another_process_is_initialized(engine):
    first = SqlAlchemyDecisions(engine, "t")
    first.create_table()
    impatient = sa.create_engine(engine.url, connect_args={"timeout": 0.1})
    with first.recover():
        with pytest.raises(sa.exc.OperationalError, match="locked"):
            recovered(SqlAlchemyDecisions(impatient, "t"))
    assert recovered(SqlAlchemyDecisions(impatient, "t")) is None
    impatient.dispose()


def test_a_producer_that_could_not_be_initialized_is_closed(kafka, engine):
    decisions = SqlAlchemyDecisions(engine, "t")
    decisions.create_table()
    kafka.delay("InitProducerId", 2)
    with kafka.producer("t", max_block_ms=200) as producer:
        with pytest.raises(KafkaTimeoutError):
            producer.init_transactions(recover=decisions.recover)
        with pytest.raises(IllegalStateError, match="closed"):
            producer.init_transactions()


def test_an_engine_without_transactions_is_refused(engine):
    decisions = SqlAlchemyDecisions(engine, "t")
    decisions.create_table()
    other = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(InvalidConfigurationError, match="AUTOCOMMIT"):
        recovered(SqlAlchemyDecisions(other, "t"))
    other.dispose()


def test_the_token_of_a_transaction_that_nobody_has_completed_is_not_replaced(
    kafka, engine, start
):
    process = start()
    prepared = []
    for value in (b"1", b"2"):
        process.producer.begin_transaction()
        process.producer.send("payments", value)
        prepared.append(process.producer.prepare_transaction())
        if len(prepared) == 1:
            with engine.begin() as connection:
                process.decisions.record(connection, prepared[0])
            process.producer.complete(prepared[0], commit=True)
    with engine.begin() as connection:
        with pytest.raises(IllegalStateError, match="was not completed"):
            process.decisions.record(connection, prepared[1])
    process.decisions.forget(prepared[0])
    with engine.begin() as connection:
        process.decisions.record(connection, prepared[1])
        process.decisions.record(connection, prepared[1])  # an answer may be lost
    assert stored(engine) == str(prepared[1])


def test_two_processes_may_add_the_row_of_an_id_at_once(engine, monkeypatch):
    first, second = SqlAlchemyDecisions(engine, "t"), SqlAlchemyDecisions(engine, "t")
    first.create_table()
    real = DecisionRow._raise_generation
    race = iter(["the other one was faster"])

    def raise_generation(decisions):
        if next(race, None):
            assert recovered(second) is None
            raise sa.exc.IntegrityError("INSERT", {}, ValueError("the row exists"))
        return real(decisions)

    monkeypatch.setattr(DecisionRow, "_raise_generation", raise_generation)
    assert recovered(first) is None
    assert (first._row._generation, second._row._generation) == (2, 1)


def test_the_steps_of_the_page_commit_both(kafka, engine, start):
    process = start()
    names_of("two-phase-commit.md", "def pay")["pay"](process.producer, process.decisions, engine)
    assert booked(engine) == sent(kafka) == [100]
    assert stored(engine) is None


def test_an_own_table_can_be_a_part_of_the_applications_metadata(kafka, engine):
    metadata = sa.MetaData()
    table = decisions_table(metadata, "my_decisions")
    metadata.create_all(engine)
    decisions = SqlAlchemyDecisions(engine, "t", table)
    with kafka.producer("t") as producer:
        producer.init_transactions(recover=decisions.recover)
        with decisions.transaction(producer):
            producer.send("payments", b"1")
    assert sent(kafka) == [1]


def test_an_orm_session_can_store_the_decision(kafka, engine, start):
    from sqlalchemy.orm import Session

    process = start()
    prepared = process.prepare(1)
    with Session(engine) as session, session.begin():
        process.decisions.record(session, prepared)
    assert process.producer.complete(prepared, commit=True) == "committed"


def test_a_missing_library_is_named_with_the_line_that_installs_it(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(
        InvalidConfigurationError, match=r"pip install 'txnproducer\[sqlalchemy\]'"
    ):
        SqlAlchemyDecisions(engine, "t")


def test_an_unknown_outcome_is_raised(engine, start):
    process = start()
    prepared = process.prepare(1)
    process.decide(engine, 1, prepared)
    process.producer.complete(prepared, commit=True)
    process.producer.complete(process.prepare(2), commit=True)  # without its decision
    with pytest.raises(CommitOutcomeUnknownError):
        start()


def test_an_address_in_place_of_an_engine_is_refused():
    address: Any = "postgresql://user:hunter2@db/shop"
    with pytest.raises(TypeError, match=r"engine must be an Engine of .*, not str") as refused:
        SqlAlchemyDecisions(address, "t")
    assert "hunter2" not in str(refused.value)
