"""A ledger on real brokers: both places, a program that is killed, a topic that loses entries."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any, Literal, TypeAlias

import pytest

from integration.readers import read_with_confluent, values
from txnproducer import TransactionalProducer
from txnproducer.admin import create_topic, delete_topic, topic_settings
from txnproducer.ledger import Ledger, LedgerError, LedgerState

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
Where: TypeAlias = Literal["topic", "offsets"]
PLACES: tuple[Where, ...] = ("topic", "offsets")
LINES = 40


def new_ledger(place: Where, name: str, topic: str) -> Ledger:
    return Ledger(
        name, topic if place == "offsets" else None, ledger=place, on_missing="begin", start=0
    )


def looked(ledger: Ledger, servers: str) -> LedgerState:
    found = ledger.look(servers)
    assert found is not None
    return found


def import_lines(servers: str, topic: str, place: Where, name: str, killed_at: int) -> None:
    """Write lines from the ledger's position on, some in each transaction; die at a step."""
    step = 0

    def perhaps_die() -> None:
        nonlocal step
        step += 1
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = new_ledger(place, name, topic)
    with TransactionalProducer(servers, name, linger_ms=0) as producer:
        done = ledger.take_over(producer)
        while done < LINES:
            perhaps_die()
            until = min(done + 7, LINES)
            with producer.transaction():
                for number in range(done, until):
                    producer.send(topic, str(number).encode(), partition=0)
                ledger.advance(until, after=ledger.position)
                producer.flush()
                perhaps_die()
            perhaps_die()
            done = until


@pytest.mark.parametrize("place", PLACES)
def test_lines_are_written_once_by_programs_that_are_killed(kafka, topic, transactional_id, place):
    servers, fork = kafka.bootstrap_servers, multiprocessing.get_context("spawn")
    for killed_at in (2, 3, 1, 5, 99):
        process = fork.Process(
            target=import_lines, args=(servers, topic, place, transactional_id, killed_at)
        )
        process.start()
        process.join(60)
        assert process.exitcode == (0 if killed_at == 99 else -signal.SIGKILL)
    assert looked(new_ledger(place, transactional_id, topic), servers).position == LINES
    lines = [int(value or b"") for value in values(read_with_confluent(servers, topic))]
    assert lines == list(range(LINES))


@pytest.mark.parametrize("place", PLACES)
def test_a_look_waits_for_an_open_transaction_and_finds_the_committed_entry(
    kafka, topic, transactional_id, place
):
    servers, ledger = kafka.bootstrap_servers, new_ledger(place, transactional_id, topic)
    with TransactionalProducer(servers, transactional_id) as producer:
        assert ledger.take_over(producer) == 0
        with producer.transaction():
            ledger.advance("a", after=0)
        producer.begin_transaction()
        ledger.advance("b", after="a")
        producer.flush()
        producer.abort_transaction()
        found = looked(ledger, servers)
        assert (found.position, found.advances) == ("a", 1)
        assert found.transactional_id == transactional_id


def test_the_topic_of_a_ledger_is_made_compacted_and_several_share_it(
    kafka, topic, transactional_id
):
    servers, log = kafka.bootstrap_servers, f"{topic}.ledgers"
    for name in ("one", "two"):
        with TransactionalProducer(servers, f"{transactional_id}-{name}") as producer:
            ledger = Ledger(name, log)
            assert ledger.take_over(producer) is None
            with producer.transaction():
                ledger.advance(name, after=None)
    assert topic_settings(servers, log)["cleanup.policy"] == "compact"
    for name in ("one", "two"):
        assert looked(Ledger(name, log), servers).position == name


def test_a_topic_that_would_lose_entries_is_refused(kafka, topic, transactional_id):
    servers = kafka.bootstrap_servers
    with TransactionalProducer(servers, transactional_id) as producer:
        create_topic(servers, f"{topic}.1", 1)
        with pytest.raises(LedgerError, match=r"cleanup\.policy=delete"):
            Ledger("one", f"{topic}.1").take_over(producer)
        create_topic(servers, f"{topic}.2", 2, config={"cleanup.policy": "compact"})
        with pytest.raises(LedgerError, match="has 2 partitions"):
            Ledger("one", f"{topic}.2").take_over(producer)
        with pytest.raises(LedgerError, match="does not exist"):
            Ledger("one", f"{topic}.none", ledger="offsets").take_over(producer)
        # Nothing was fenced by these.
        assert producer.transaction_state == "UNINITIALIZED"


def test_a_topic_that_was_deleted_stops_a_program_that_knows_more(kafka, topic, transactional_id):
    servers, ledger = kafka.bootstrap_servers, Ledger(topic)
    with TransactionalProducer(servers, transactional_id) as producer:
        ledger.take_over(producer)
        with producer.transaction():
            ledger.advance(1, after=None)
        assert ledger.position == 1
    delete_topic(servers, f"{topic}.ledger")
    with TransactionalProducer(servers, transactional_id) as producer:
        with pytest.raises(LedgerError, match="was set back"):
            ledger.take_over(producer)
    with TransactionalProducer(servers, transactional_id) as producer:
        assert Ledger(topic).take_over(producer) is None


def test_two_starts_with_different_ids_do_not_both_write(kafka, topic, transactional_id) -> None:
    servers = kafka.bootstrap_servers
    with TransactionalProducer(servers, f"{transactional_id}-a") as one:
        old: Any = Ledger(topic)
        old.take_over(one)
        with TransactionalProducer(servers, f"{transactional_id}-b") as other:
            new = Ledger(topic, on_foreign="take_over")
            new.take_over(other)
            one.begin_transaction()
            old.advance(1, after=None)
            with pytest.raises(Exception, match="taken over"):
                one.commit_transaction()
            with other.transaction():
                new.advance(5, after=None)
    assert looked(new, servers).position == 5
