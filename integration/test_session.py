"""Sessions on a real broker: workers that come, go and are killed; slow and poisonous records."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from integration.readers import read_with_confluent, values
from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer.session import TransactSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
PARTITIONS = 6
KEYS = 12
# Short, so that the group notices a killed worker soon. The broker allows no less.
CONSUMER = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
PRODUCER = {"linger_ms": 0, "transaction_timeout_ms": 15_000}


@pytest.fixture
def topics(kafka, transactional_id):
    names = f"in-{transactional_id}", f"out-{transactional_id}"
    for name in names:
        kafka.create_topic(name, partitions=PARTITIONS)
    return names


def fill(kafka, topic, first, count):
    """Write numbers, each key's in ascending order."""
    with TransactionalProducer(kafka.bootstrap_servers, f"filler-{topic}") as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(first, first + count):
                producer.send(topic, b"%d" % number, key=b"key %d" % (number % KEYS))


def open_session(servers, topics, transactional_id, **settings):
    consumer = {**CONSUMER, **settings.pop("consumer", {})}
    return TransactSession.for_kafka_python(
        [topics[0]],
        f"group-{topics[0]}",
        transactional_id,
        bootstrap_servers=servers,
        consumer_settings=consumer,
        producer_settings=PRODUCER,
        **settings,
    )


def results(kafka, topic):
    return sorted(int(value or b"0") for value in committed(kafka, topic))


def committed(kafka, topic) -> list[Any]:
    return values(read_with_confluent(kafka.bootstrap_servers, topic))


def assert_in_order(kafka, topic):
    """Check that each key's numbers ascend, as they did in the input."""
    by_key = defaultdict(list)
    for record in read_with_confluent(kafka.bootstrap_servers, topic):
        by_key[record.key].append((record.partition, record.offset, int(record.value or b"0")))
    for found in by_key.values():
        numbers = [number for _, _, number in sorted(found)]
        assert numbers == sorted(numbers)


def work(servers, topics, transactional_id):
    """Copy records until the process is ended; SIGTERM ends it in good order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        time.sleep(0.001)  # so that a kill meets a batch

    with open_session(servers, topics, transactional_id) as session:
        session.run(copy, stop, max_records=20)


def test_workers_join_leave_and_are_killed_at_random(kafka, topics, transactional_id):
    spawn: Any = multiprocessing.get_context("spawn")
    rng, workers, count = random.Random(11), {}, 0

    def start(slot):
        arguments = (kafka.bootstrap_servers, topics, f"{transactional_id}-{slot}")
        workers[slot] = spawn.Process(target=work, args=arguments)
        workers[slot].start()

    try:
        for slot in range(3):
            start(slot)
        for _ in range(6):
            fill(kafka, topics[0], count, 300)
            count += 300
            time.sleep(rng.uniform(0.5, 3.0))  # into a poll, a batch, a rebalance
            slot = rng.randrange(3)
            if rng.random() < 0.7:
                workers[slot].kill()
            else:
                os.kill(workers[slot].pid, signal.SIGTERM)
            workers[slot].join(60)
            start(slot)
        wait_until(lambda: len(committed(kafka, topics[1])) >= count, longest_s=120)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join(30)
            worker.kill()
    assert results(kafka, topics[1]) == list(range(count)), "each record has one result"
    assert_in_order(kafka, topics[1])


def test_a_function_that_is_slower_than_the_poll_interval_aborts_and_goes_on(
    kafka, topics, transactional_id
):
    fill(kafka, topics[0], 0, 40)
    stop, seen = threading.Event(), []
    settings = {"max_poll_interval_ms": 6_000}

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        seen.append(record.offset)
        if len(seen) == 5:
            time.sleep(9)  # longer than max_poll_interval_ms: the group gives up on it

    with open_session(
        kafka.bootstrap_servers, topics, transactional_id, consumer=settings
    ) as session:
        running = threading.Thread(target=session.run, args=(copy, stop))
        running.start()
        try:
            wait_until(lambda: len(committed(kafka, topics[1])) >= 40, longest_s=60)
        finally:
            stop.set()
            running.join()
    assert results(kafka, topics[1]) == list(range(40))
    assert len(seen) > 40, "the batch of the slow call was read again"


def test_a_record_that_always_fails_is_in_the_dead_letter_topic_once(
    kafka, topics, transactional_id
):
    dead = f"dead-{transactional_id}"
    kafka.create_topic(dead)
    fill(kafka, topics[0], 0, 30)
    stop = threading.Event()

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        if record.value == b"7":
            raise ValueError("of the record")

    with open_session(
        kafka.bootstrap_servers, topics, transactional_id, max_failures=2, dead_letter_topic=dead
    ) as session:
        running = threading.Thread(target=session.run, args=(copy, stop))
        running.start()
        try:
            wait_until(lambda: len(committed(kafka, topics[1])) >= 29, longest_s=60)
        finally:
            stop.set()
            running.join()
    assert results(kafka, topics[1]) == [number for number in range(30) if number != 7]
    (buried,) = read_with_confluent(kafka.bootstrap_servers, dead)
    assert buried.value == b"7"
