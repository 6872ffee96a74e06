"""A payment ends: the database's commit fails or is in doubt, and all that comes after it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.two_phase.processes import booked, sent, stored
from txnproducer import ProducerFencedError
from txnproducer.errors import TransactionAbortedError
from txnproducer.two_phase.decision_row import DecisionRow


def commit_then(monkeypatch, follow_up, *, is_done=True):
    """Let the next commit of the database be done, or not, and then something else happen."""
    real = sa.Connection.commit

    def commit(connection):
        monkeypatch.undo()
        if is_done:
            real(connection)
        follow_up(connection)

    monkeypatch.setattr(sa.Connection, "commit", commit)


def lose_the_answer(_):
    raise ConnectionError("the answer is lost")


def test_a_database_that_refuses_to_commit_leaves_neither(kafka, engine, start):
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE owners (id INTEGER PRIMARY KEY)"))
        connection.execute(
            sa.text(
                "CREATE TABLE owned (owner INTEGER REFERENCES owners (id)"
                " DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    process = start()

    def pay_nobody():
        with process.decisions.transaction(process.producer) as connection:
            connection.execute(sa.text("PRAGMA defer_foreign_keys = ON"))
            connection.execute(sa.text("INSERT INTO owned VALUES (7)"))
            process.producer.send("payments", b"1")

    sa.event.listen(engine, "checkout", lambda raw, *_: raw.execute("PRAGMA foreign_keys = ON"))
    with pytest.raises(sa.exc.IntegrityError):
        pay_nobody()
    process.pay(2)
    assert booked(engine) == sent(kafka) == [2]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_that_raises_is_judged_by_the_rest_of_its_session(
    kafka, engine, start, monkeypatch, is_done
):
    process = start()
    commit_then(monkeypatch, lose_the_answer, is_done=is_done)
    if is_done:
        process.pay(1)
    else:
        with pytest.raises(ConnectionError, match="the answer is lost"):
            process.pay(1)
    assert booked(engine) == sent(kafka) == ([1] if is_done else [])
    process.pay(2)


def break_the_session(connection):
    connection.invalidate()
    raise ConnectionError("the server has closed the connection")


def refuse_the_look(connection):
    def refuse(*_):
        raise ConnectionError("no route to the database")

    connection.rollback = refuse
    lose_the_answer(connection)


def be_overtaken(connection):
    connection.execute(sa.text("UPDATE kafka_decisions SET generation = generation + 1"))
    connection.commit()
    lose_the_answer(connection)


def interrupt(_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "follow_up", [break_the_session, refuse_the_look, be_overtaken, interrupt]
)
def test_a_commit_of_unknown_success_leaves_the_transaction_prepared(
    kafka, engine, start, monkeypatch, follow_up
):
    process = start()
    commit_then(monkeypatch, follow_up)
    with pytest.raises((ConnectionError, KeyboardInterrupt)) as lost:
        process.pay(1)
    assert "is left prepared. Close the producer" in lost.value.__notes__[-1]
    assert sent(kafka) == []
    process.producer.close()
    start()
    assert booked(engine) == sent(kafka) == [1]


# --- after the database has committed ------------------------------------------------------------


def test_a_time_out_between_both_commits_is_raised(kafka, engine, start, monkeypatch):
    process = start()
    real = sa.Connection.commit

    def commit_late(connection):
        real(connection)
        monkeypatch.undo()
        kafka.time_out_transaction("t")

    monkeypatch.setattr(sa.Connection, "commit", commit_late)
    with pytest.raises(TransactionAbortedError) as lost:
        process.pay(1)
    assert "The database has committed, with the token" in lost.value.__notes__[0]
    assert stored(engine) is not None


def refuse_once(monkeypatch, target, name, error):
    """Let the next call raise."""

    def refuse(*_, **__):
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(target, name, refuse)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a mistake")])
def test_any_exception_says_that_the_database_has_committed(
    kafka, engine, start, monkeypatch, error
):
    process = start()
    refuse_once(monkeypatch, process.producer, "complete", error)
    with pytest.raises(type(error)) as raised:
        process.pay(1)
    assert "The database has committed, with the token" in raised.value.__notes__[0]
    process.producer.close()
    start()
    assert booked(engine) == sent(kafka) == [1]


def test_a_token_that_cannot_be_dropped_makes_no_failure_of_a_success(
    kafka, engine, start, monkeypatch, caplog
):
    process = start()
    locked = sa.exc.OperationalError("UPDATE", {}, ValueError("database is locked"))
    refuse_once(monkeypatch, process.decisions, "forget", locked)
    process.pay(1)
    assert "is completed, and could not be dropped" in caplog.text
    assert stored(engine) is not None
    process.pay(2)
    assert booked(engine) == sent(kafka) == [1, 2]
    assert stored(engine) is None


def test_a_process_that_sleeps_after_its_commit_learns_that_it_was_overtaken(
    kafka, engine, start, monkeypatch
):
    sleeper = start()
    complete = sleeper.producer.complete

    def sleep(*args, **kwargs):
        start().pay(2)  # its recovery completes the sleeper's
        return complete(*args, **kwargs)

    monkeypatch.setattr(sleeper.producer, "complete", sleep)
    with pytest.raises(ProducerFencedError, match="which the database has committed: stop"):
        sleeper.pay(1)
    assert booked(engine) == sent(kafka) == [1, 2]


# --- the database has committed, and Kafka's transaction is lost -------------------------------


def lose(kafka, engine, process, amount):
    """Let the database decide, and Kafka's coordinator abort."""
    prepared = process.prepare(amount)
    process.decide(engine, amount, prepared)
    kafka.time_out_transaction("t")
    process.producer.close()
    return prepared


def note_lost(connection, prepared, outcome):
    connection.execute(sa.text("CREATE TABLE IF NOT EXISTS to_send (token TEXT, outcome TEXT)"))
    row = {"token": str(prepared), "outcome": outcome}
    connection.execute(sa.text("INSERT INTO to_send VALUES (:token, :outcome)"), row)


def noted(engine):
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT token, outcome FROM to_send")).all()


def test_a_lost_one_is_noted_in_the_database_and_the_producer_goes_on(kafka, engine, start):
    prepared = lose(kafka, engine, start(), 1)
    process = start(on_lost=note_lost)
    assert noted(engine) == [(str(prepared), "lost")]
    assert stored(engine) is None
    with process.decisions.transaction(process.producer) as connection:
        connection.execute(sa.text("DELETE FROM to_send"))
        process.producer.send("payments", b"1", partition=0)
    assert booked(engine) == sent(kafka) == [1]


def test_a_note_is_taken_back_if_the_producer_is_not_initialized(kafka, engine, start):
    prepared = lose(kafka, engine, start(), 1)
    note_lost_table = sa.text("CREATE TABLE to_send (token TEXT, outcome TEXT)")
    with engine.begin() as connection:
        connection.execute(note_lost_table)
    kafka.fail_next("InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with pytest.raises(Exception, match="transactional"):
        start(on_lost=note_lost)
    assert noted(engine) == []
    assert stored(engine) == str(prepared)
    start(on_lost=note_lost)
    assert noted(engine) == [(str(prepared), "lost")]


def test_a_holder_that_reads_an_old_snapshot_learns_that_it_was_overtaken(
    engine, start, monkeypatch
):
    sleeper = start()
    prepared = sleeper.prepare(1)
    old = {"generation": 1, "prepared": None}
    start()
    monkeypatch.setattr(DecisionRow, "_read", lambda *_: old)
    with engine.begin() as connection, pytest.raises(ProducerFencedError):
        sleeper.decisions.record(connection, prepared)
