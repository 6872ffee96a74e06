"""Sessions on a real broker: workers that come, go and are killed; slow and poisonous records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from integration.readers import read_with_confluent, values
from integration.session_kills import Feeder, account, make_topics, open_session, play
from tests.waiting import wait_until
from txnproducer.session import TransactSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
LONGEST_POLL = {
    "kafka-python": {"max_poll_interval_ms": 6_000},
    "confluent": {"max.poll.interval.ms": 6_000},
}


@pytest.fixture
def topics(kafka, transactional_id):
    return make_topics(kafka, transactional_id)


@pytest.fixture(params=["kafka-python", "confluent"])
def consumer(request) -> str:
    return str(request.param)


@contextmanager
def running(session: TransactSession, fn: Callable[..., Any]) -> Iterator[None]:
    """Run a session in a thread, and stop it at the end of the block."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            session.run(fn, stop)
        except BaseException as error:  # noqa: BLE001 - told at the end
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors


def committed(kafka, topic) -> list[Any]:
    return values(read_with_confluent(kafka.bootstrap_servers, topic))


def test_workers_join_leave_and_are_killed_at_random(kafka, topics, consumer):
    found = play(kafka, consumer, 4, 7, topics)
    assert found.account.is_exact, found
    assert found.terms > 0


def test_a_function_that_is_slower_than_the_poll_interval_aborts_and_goes_on(
    kafka, topics, transactional_id, consumer
):
    Feeder(kafka.bootstrap_servers, topics[0]).fill(40)
    seen: list[int] = []

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        seen.append(record.offset)
        if len(seen) == 5:
            time.sleep(8)  # longer than the poll interval: the group gives up on it

    with (
        open_session(
            consumer,
            kafka.bootstrap_servers,
            topics,
            transactional_id,
            consumer_settings=LONGEST_POLL[consumer],
        ) as session,
        running(session, copy),
    ):
        wait_until(lambda: len(committed(kafka, topics[1])) >= 40, longest_s=60)
    assert account(40, read_with_confluent(kafka.bootstrap_servers, topics[1])).is_exact
    assert len(seen) > 40, "the batch of the slow call was read again"


def test_a_record_that_always_fails_is_in_the_dead_letter_topic_once(
    kafka, topics, transactional_id, consumer
):
    dead = f"dead-{transactional_id}"
    kafka.create_topic(dead)
    Feeder(kafka.bootstrap_servers, topics[0]).fill(30)

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        if record.value == b"7":
            raise ValueError("of the record")

    with (
        open_session(
            consumer,
            kafka.bootstrap_servers,
            topics,
            transactional_id,
            max_failures=2,
            dead_letter_topic=dead,
        ) as session,
        running(session, copy),
    ):
        wait_until(lambda: len(committed(kafka, topics[1])) >= 29, longest_s=60)
    results = sorted(int(value) for value in committed(kafka, topics[1]))
    assert results == [number for number in range(30) if number != 7]
    (buried,) = read_with_confluent(kafka.bootstrap_servers, dead)
    assert (buried.key, buried.value) == (b"key 7", b"7")
    assert ("dlt-topic", topics[0].encode()) in buried.headers
