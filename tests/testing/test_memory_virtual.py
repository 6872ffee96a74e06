"""The in-memory Kafka in virtual time: a test that waits for a minute takes none."""

from __future__ import annotations

import threading
import time

import pytest

from tests.needs import NO_COMPILED_PARTS
from txnproducer._record.implementation import IMPL
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.testing import InMemoryKafka

in_python = pytest.mark.skipif(
    IMPL != "python",
    reason="virtual time needs the parts in Python: run with TXNPRODUCER_IMPL=python",
)


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"orders": 1}, nodes=2, clock="virtual") as kafka:
        yield kafka


def values(kafka: InMemoryKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("orders")]


@in_python
def test_a_slow_broker_takes_no_time(kafka):
    began = time.monotonic()
    with kafka.producer("payments", max_block_ms=600_000) as producer:
        producer.init_transactions()
        kafka.delay("Produce", 20)
        kafka.delay("EndTxn", 25)
        with producer.transaction():
            producer.send("orders", b"1")
    assert values(kafka) == [b"1"]
    assert time.monotonic() - began < 20


@in_python
def test_time_stands_still_between_calls(kafka):
    with kafka.producer("payments", transaction_timeout_ms=1_000) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"1")
            producer.flush()
            time.sleep(1.5)  # longer than transaction_timeout_ms, by the real clock
    assert values(kafka) == [b"1"]


@in_python
def test_a_transaction_times_out_while_time_passes(kafka):
    with kafka.producer("payments", transaction_timeout_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"1")
        producer.flush()
        kafka.sleep(90)
        with pytest.raises(KafkaError):
            producer.commit_transaction()
    assert values(kafka) == []


@in_python
def test_a_cluster_that_is_down_is_waited_for_as_long_as_configured(kafka):
    for node in (0, 1):
        kafka.stop_node(node)
    with kafka.producer("payments", max_block_ms=300_000) as producer:
        with pytest.raises(KafkaTimeoutError, match="max_block_ms=300000"):
            producer.init_transactions()
        for node in (0, 1):
            kafka.start_node(node)
        producer.init_transactions()


@in_python
def test_the_same_test_is_the_same_run_each_time():
    def run() -> list[int]:
        with InMemoryKafka(topics={"orders": 3}, clock="virtual") as kafka:
            with kafka.producer("payments") as producer:
                producer.init_transactions()
                with producer.transaction():
                    for number in range(30):
                        producer.send("orders", str(number).encode())
            return [record.timestamp_ms for record in kafka.records("orders")]

    assert run() == run()


@in_python
def test_another_thread_is_refused_with_the_way_out(kafka):
    producer = kafka.producer("payments")
    errors: list[BaseException] = []

    def use() -> None:
        try:
            producer.init_transactions()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert 'needs clock="real"' in str(errors[0])
    producer.close()


@in_python
def test_a_closed_cluster_refuses_connections_and_keeps_its_records(kafka):
    with kafka.producer("payments") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"1")
        kafka.close()
        producer.begin_transaction()
        producer.send("orders", b"2")
        with pytest.raises(KafkaTimeoutError):
            producer.commit_transaction()
    assert values(kafka) == [b"1"]


@in_python
def test_no_port_is_opened(kafka):
    with pytest.raises(RuntimeError, match='needs clock="real"'):
        kafka.listen()


@pytest.mark.skipif(IMPL == "python", reason=NO_COMPILED_PARTS)
def test_the_compiled_parts_are_refused_with_the_way_out():
    with pytest.raises(RuntimeError, match="TXNPRODUCER_IMPL=python"):
        InMemoryKafka(clock="virtual")


def test_an_unknown_clock_is_refused():
    with pytest.raises(ValueError, match='must be "real" or "virtual"'):
        InMemoryKafka(clock="fast")  # type: ignore[arg-type]


def test_with_the_real_clock_time_passes_as_well():
    with InMemoryKafka() as kafka:
        began = time.monotonic()
        kafka.sleep(0.02)
        assert time.monotonic() - began >= 0.015
