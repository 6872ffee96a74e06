"""Prepared transactions on real brokers: they outlive kill -9, and both sides agree."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from integration.readers import read_with_confluent, values
from integration.two_phase_kills import (
    NO_TIMEOUT_MS,
    booked,
    broker,
    database,
    run,
    sent,
    workers,
)
from integration.waiting import wait_until
from txnproducer import ProducerFencedError, TransactionalProducer, admin
from txnproducer.errors import InvalidTxnTimeoutError, TransactionAbortedError
from txnproducer.two_phase import SqlAlchemyDecisions, complete

pytestmark = pytest.mark.integration

# Prepares a transaction, says its token, and waits to be killed.
VICTIM = """
import sys, time
from txnproducer import TransactionalProducer
servers, topic, transactional_id = sys.argv[1:]
producer = TransactionalProducer(servers, transactional_id, transaction_timeout_ms=2**31 - 1)
producer.init_transactions()
producer.begin_transaction()
producer.send(topic, b"1")
print(producer.prepare_transaction(), flush=True)
time.sleep(60)  # until it is killed
"""


@pytest.fixture(scope="module")
def endless():
    """A broker that lets a prepared transaction wait for ever."""
    with broker() as kafka:
        yield kafka


@pytest.fixture
def topic(endless, transactional_id):
    endless.create_topic(transactional_id, partitions=1)
    return transactional_id


@pytest.fixture
def make(endless, transactional_id):
    """Return a function that makes a producer of the test's id. The end closes them all."""
    made = []

    def make(timeout_ms=NO_TIMEOUT_MS, *, is_started=True):
        made.append(
            TransactionalProducer(
                endless.bootstrap_servers, transactional_id, transaction_timeout_ms=timeout_ms
            )
        )
        if is_started:
            made[-1].init_transactions()
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def prepare(producer, topic, value=b"1"):
    producer.begin_transaction()
    producer.send(topic, value)
    return producer.prepare_transaction()


def values_of(endless, topic):
    return values(read_with_confluent(endless.bootstrap_servers, topic))


def test_it_outlives_kill_9_of_its_producer_and_of_the_broker(endless, topic, transactional_id):
    command = [sys.executable, "-c", VICTIM, endless.bootstrap_servers, topic, transactional_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        token = victim.stdout.readline().strip()
        victim.send_signal(signal.SIGKILL)
    endless.kill_node(0)
    endless.start_node(0)
    servers = endless.bootstrap_servers
    for _ in range(2):
        assert complete(token, commit=True, bootstrap_servers=servers) == "committed"
    assert complete(token, commit=False, bootstrap_servers=servers) == "committed"
    assert values_of(endless, topic) == [b"1"]


@pytest.mark.parametrize("commit", [True, False])
def test_its_own_time_out_loses_it_and_the_outcome_says_so(endless, topic, make, commit):
    producer = make(timeout_ms=1_000)
    prepared = prepare(producer, topic)
    _wait_for_state(endless, prepared.transactional_id, "CompleteAbort")
    completers = (make(is_started=False), producer)
    found = [completer.complete(prepared, commit=commit) for completer in completers]
    assert found == ["lost" if commit else "aborted"] * 2
    with pytest.raises(TransactionAbortedError):
        make(is_started=False).init_transactions(recover=lambda: (str(prepared), True))
    assert values_of(endless, topic) == []


def _wait_for_state(endless, transactional_id, state):
    def is_so():
        found = admin.describe_transaction(endless.bootstrap_servers, transactional_id)
        return found is not None and found.state == state

    wait_until(is_so, f"the transaction is not in {state}")


def test_each_transaction_of_an_id_keeps_its_own_outcome(endless, topic, make):
    producer = make()
    aborted = prepare(producer, topic)
    assert make(is_started=False).complete(aborted, commit=False) == "aborted"
    second = make()
    committed = prepare(second, topic, b"2")
    assert second.complete(committed, commit=True) == "committed"
    later = prepare(second, topic, b"3")
    other = make(is_started=False)
    # The later one is open, and keeps nobody waiting.
    assert other.complete(committed, commit=True) == "committed"
    # A later entry has replaced any that the first one could have had.
    assert other.complete(aborted, commit=True) == "unknown"
    assert other.complete(later, commit=True) == "committed"
    third = make()
    assert third.complete(later, commit=True) == "committed"
    assert other.complete(committed, commit=True) == "unknown"
    assert values_of(endless, topic) == [b"2", b"3"]


@pytest.mark.parametrize("commit", [True, False])
def test_several_may_complete_at_once(endless, topic, make, commit):
    prepared = prepare(make(), topic)
    found = []

    def complete_it():
        found.append(
            complete(prepared, commit=commit, bootstrap_servers=endless.bootstrap_servers)
        )

    threads = [threading.Thread(target=complete_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["committed" if commit else "aborted"] * 3
    assert values_of(endless, topic) == ([b"1"] if commit else [])


def test_the_default_limit_of_brokers_refuses_to_wait_for_ever(broker, transactional_id):
    with broker.producer(transactional_id, transaction_timeout_ms=NO_TIMEOUT_MS) as producer:
        with pytest.raises(InvalidTxnTimeoutError, match="900000"):
            producer.init_transactions()


# --- with a database -----------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        with database("sqlite") as url:
            yield url


def two_processes(engine, topic, make):
    """Return the decisions of two processes, and the first one's prepared transaction."""
    sleeper, other = (SqlAlchemyDecisions(engine, topic) for _ in range(2))
    sleeper.create_table()
    first = make(is_started=False)
    first.init_transactions(recover=sleeper.recover)
    return sleeper, other, prepare(first, topic)


def test_a_process_that_sleeps_while_another_takes_over_commits_nothing(endless, topic, make, url):
    engine = sa.create_engine(url)
    sleeper, other, prepared = two_processes(engine, topic, make)
    second = make(is_started=False)
    second.init_transactions(recover=other.recover)  # it aborts the sleeper's transaction
    with engine.begin() as connection:
        with pytest.raises(ProducerFencedError):
            sleeper.record(connection, prepared)
    with other.transaction(second):
        second.send(topic, b"2")
    assert values_of(endless, topic) == [b"2"]
    engine.dispose()


def test_a_take_over_waits_for_a_decision_that_is_being_stored(endless, topic, make, postgres_url):
    engine = sa.create_engine(postgres_url)
    sleeper, other, prepared = two_processes(engine, topic, make)
    second = make(is_started=False)
    taking_over = threading.Thread(
        target=second.init_transactions, kwargs={"recover": other.recover}
    )
    with engine.begin() as connection:
        sleeper.record(connection, prepared)
        taking_over.start()
        taking_over.join(0.5)
        assert taking_over.is_alive()
    taking_over.join()
    assert values_of(endless, topic) == [b"1"]
    engine.dispose()


def test_a_process_that_is_killed_at_any_line_leaves_both_or_neither(endless, topic):
    with database("sqlite") as url:
        lines = 0
        # The example's time-out, which its own `start` has.
        with workers(endless, url, f"{topic}-lines", 900_000) as paying:
            while (answer := paying.ask(f"line {lines + 1} {lines + 1}")) == "killed":
                lines += 1
            assert answer == "done"
            assert paying.ask("recover") == "done"
        rows = booked(url)
        assert sorted(sent(endless.bootstrap_servers, f"{topic}-lines")) == rows
    # Some have died before the decision, and some after it. The last one was not killed.
    assert lines > 40
    assert 1 < len(rows) < lines


def test_kills_at_random_lose_nothing_and_double_nothing(endless, topic):
    with database("sqlite") as url:
        outcome = run(endless, url, f"{topic}-kills", kills=12, seed=3)
    assert outcome.wrong == []
    assert outcome.payments > 0
