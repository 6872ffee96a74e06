"""The in-memory Kafka in virtual time: a test that waits for a minute takes none."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time

import pytest

from tests.interrupts import Interrupt
from tests.needs import NO_COMPILED_PARTS, in_python
from txnproducer._record.implementation import IMPL
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.testing import InMemoryKafka, memory
from txnproducer.testing._interruptible_baton import _Go

with_signals = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this platform has no timer signals"
)


@contextlib.contextmanager
def interrupts():
    """Yield a call that has an exception raised some seconds later, as pytest's time-out does."""

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda delay_s: signal.setitimer(signal.ITIMER_REAL, delay_s)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
def test_another_thread_can_make_no_producer(kafka):
    errors: list[str] = []

    def make() -> None:
        try:
            kafka.producer("payments")
        except RuntimeError as error:
            errors.append(str(error))

    before = threading.active_count()
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert 'needs clock="real"' in errors[0]
    assert threading.active_count() == before


@in_python
def test_a_delivery_callback_cannot_close_the_cluster_and_the_commit_goes_on():
    before = threading.active_count()
    with InMemoryKafka({"orders": 1}, clock="virtual") as kafka:
        raised: list[BaseException] = []

        def close(*_):
            try:
                kafka.close()
            except BaseException as error:
                raised.append(error)
                raise

        with kafka.producer("payments") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"1", on_delivery=close)
            producer.commit_transaction()
        assert [type(error) for error in raised] == [RuntimeError]
        assert "call close() after the call" in str(raised[0])
        kafka.create_topic("other")  # nothing has ended
        assert values(kafka) == [b"1"]
    assert threading.active_count() == before


@in_python
def test_a_closed_cluster_refuses_connections_and_keeps_its_records(kafka):
    with kafka.producer("payments") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"1")
        kafka.close()
        with pytest.raises(KafkaError, match="this InMemoryKafka is closed"):
            producer.begin_transaction()
    assert values(kafka) == [b"1"]


@in_python
@with_signals
@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.05, 0.2])
def test_an_interrupt_arrives_as_it_is_and_the_cluster_goes_on(kafka, delay_s):
    with interrupts() as interrupt_after, kafka.producer("payments") as producer:
        producer.init_transactions()
        interrupt_after(delay_s)
        with pytest.raises(Interrupt):
            kafka.sleep(10**7)  # some seconds of the real clock
        with producer.transaction():
            producer.send("orders", b"1")
    assert values(kafka) == [b"1"]


@in_python
@with_signals
def test_an_interrupt_leaves_the_blocks_of_a_cluster_and_a_producer():
    def run(interrupt_after):
        with InMemoryKafka(clock="virtual") as kafka, kafka.producer("payments") as producer:
            producer.init_transactions()
            interrupt_after(0.05)
            kafka.sleep(10**7)

    before = threading.active_count()
    with interrupts() as interrupt_after, pytest.raises(Interrupt):
        run(interrupt_after)
    assert threading.active_count() == before


@in_python
@with_signals
def test_interrupts_at_any_moment_leave_a_cluster_that_goes_on(kafka):
    def sleep_until_interrupted(after, delay_s):
        after(delay_s)
        while True:  # a timer may be later than a call takes
            kafka.sleep(10**4)

    rng = random.Random(1)
    with kafka.producer("payments", max_block_ms=600_000) as producer, interrupts() as after:
        producer.init_transactions()
        for _ in range(300):
            with pytest.raises(Interrupt):
                sleep_until_interrupted(after, rng.uniform(0.00002, 0.005))
        with producer.transaction():
            producer.send("orders", b"1")
    assert values(kafka) == [b"1"]


@in_python
def test_an_interrupt_between_the_choice_of_a_thread_and_its_wake_up_stops_nothing(
    kafka, monkeypatch
):
    release = _Go.release

    def interrupted(go):
        monkeypatch.setattr(_Go, "release", release)
        raise Interrupt

    with kafka.producer("payments") as producer:
        producer.init_transactions()
        monkeypatch.setattr(_Go, "release", interrupted)
        with pytest.raises(Interrupt):
            kafka.sleep(1_000)
        with producer.transaction():
            producer.send("orders", b"1")
    assert values(kafka) == [b"1"]


@in_python
def test_the_end_of_a_cluster_ends_the_threads_of_producers_that_are_still_open():
    before = threading.active_count()
    with InMemoryKafka(topics={"orders": 1}, clock="virtual") as kafka:
        producer = kafka.producer("payments", max_block_ms=60_000)
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send("orders", b"1")
        assert threading.active_count() > before
    assert threading.active_count() == before
    assert future.done()
    with pytest.raises(KafkaError, match="this InMemoryKafka is closed"):
        producer.commit_transaction()
    producer.close()
    assert threading.active_count() == before


@in_python
def test_no_port_is_opened(kafka):
    with pytest.raises(RuntimeError, match='needs clock="real"'):
        kafka.listen()


@in_python
def test_no_certificate_is_made_for_a_port_that_cannot_be(kafka, monkeypatch):
    monkeypatch.setattr(memory, "ListenerCertificate", None)
    for call in (lambda: kafka.listen(tls=True), lambda: kafka.ca_file):
        with pytest.raises(RuntimeError, match="has no ports"):
            call()


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
