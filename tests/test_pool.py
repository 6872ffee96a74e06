"""A pool of producers: their loans to threads, their renewal, the ids that are left to others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.live_client import kept_clients
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import transaction_runs
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidConfigurationError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from txnproducer.pool import ProducerPool
from txnproducer.producer import TransactionalProducer
from txnproducer.testing import InMemoryKafka

PATIENCE_S = 10.0
SETTINGS: dict[str, Any] = {"linger_ms": 0, "max_block_ms": 10_000}


@pytest.fixture
def clients(monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)
    return kept_clients(monkeypatch)


@pytest.fixture
def pool(clients, tmp_path):
    with ProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS) as pool:
        yield pool


def write(transaction):
    transaction.send("topic", b"value", partition=0)
    return "value"


def inits(client):
    return [request.transactional_id for request in client.sent(ApiKey.INIT_PRODUCER_ID)]


# --- loans ---------------------------------------------------------------------------------------


def test_a_producer_is_made_when_all_others_are_on_loan(pool, clients):
    assert clients == [], "nothing is made before it is needed"
    assert pool.run(write) == pool.run(write) == "value"
    assert [inits(client) for client in clients] == [["svc-0-0"]]
    with pool.producer() as first, pool.producer() as second:
        assert first is not second
        pool.run(write)
    assert [inits(client) for client in clients] == [["svc-0-0"], ["svc-0-1"], ["svc-0-2"]]


def test_each_of_many_threads_has_a_transaction_of_its_own(pool, clients):
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def work():
        try:
            pool.run(lambda transaction: barrier.wait(PATIENCE_S) and write(transaction))
            for _ in range(5):
                pool.run(write)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(clients) == 4


def test_a_producer_that_was_lent_with_a_transaction_left_open_is_not_lent_again(pool, clients):
    with pool.producer() as producer:
        producer.begin_transaction()
    assert clients[0].is_closed
    assert pool.run(write) == "value"
    assert inits(clients[1]) == ["svc-0-0"]


# --- renewal -------------------------------------------------------------------------------------


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"topic": 1}) as kafka:
        yield kafka


@pytest.fixture
def in_memory(kafka, tmp_path, monkeypatch):
    """Return a pool with producers of an in-memory Kafka."""
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)
    settings = {**SETTINGS, "lock_folder": tmp_path, "transaction_timeout_ms": 100}
    settings |= {"max_block_ms": 1_000, "request_timeout_ms": 500, "delivery_timeout_ms": 2_000}
    with ProducerPool(kafka.listen(), "svc", worker=0, **settings) as pool:
        yield pool


def test_a_producer_whose_transaction_timed_out_is_renewed_under_its_id(kafka, in_memory):
    seen: list[Any] = []

    def lose_once(transaction):
        transaction.send("topic", b"value", partition=0).result(PATIENCE_S)
        if not seen:
            time.sleep(0.2)  # longer than the time-out, or the loss would look like a fence
            kafka.time_out_transaction("svc-0-0")

    in_memory.run(lose_once, on_retry=seen.append)
    assert len(seen) == 1
    assert [record.value for record in kafka.records("topic")] == [b"value"]


def test_a_producer_that_cannot_be_initialized_is_tried_again(pool, clients, monkeypatch):
    usual, left = TransactionalProducer.init_transactions, [2]

    def init(producer):
        if left[0]:
            left[0] -= 1
            raise KafkaTimeoutError("no answer")
        usual(producer)

    monkeypatch.setattr(TransactionalProducer, "init_transactions", init)
    assert pool.run(write) == "value"
    assert len(clients) == 3
    assert all(client.is_closed for client in clients[:2])
    left[0] = 9
    with pool.producer(), pytest.raises(KafkaTimeoutError):
        pool.run(write, attempts=2)


def test_a_fence_of_an_uncertain_cause_ends_the_pool_as_well(pool, clients):
    pool.run(write)
    clients[0].prepare_produce(error_code=90)  # PRODUCER_FENCED, and the coordinator says no more
    with pytest.raises(ProducerFencedError):
        pool.run(write)
    with pytest.raises(ProducerFencedError, match="this pool makes no more producers"):
        pool.run(write)
    assert len(clients) == 1


def test_an_interrupt_while_a_failed_producer_is_closed_ends_the_runs(pool, clients, monkeypatch):
    calls = []

    def fail(_):
        calls.append(1)
        raise ZeroDivisionError

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_drop_if_failed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.run(fail, retry_on=ZeroDivisionError)
    assert len(calls) == 1


def test_an_interrupt_in_the_commit_says_how_it_ended(pool, clients, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(TransactionalProducer, "commit_transaction", interrupt)
    with pytest.raises(KeyboardInterrupt) as found:
        pool.run(write)
    assert found.value.__notes__ == ["The transaction's outcome: aborted"]


class SoftTimeLimitError(Exception):
    """Raised by a signal handler, as Celery's, and caught by the worker, which goes on."""


def test_a_commit_that_a_signal_handler_has_left_at_its_end_stops_no_later_run(
    pool, clients, monkeypatch
):
    usual = TransactionalProducer._wait_until_done

    def leave(producer, is_done):
        monkeypatch.setattr(TransactionalProducer, "_wait_until_done", usual)
        assert usual(producer, is_done)
        raise SoftTimeLimitError

    def write_and_leave(transaction):
        monkeypatch.setattr(TransactionalProducer, "_wait_until_done", leave)
        return write(transaction)

    pool.run(write)
    with pytest.raises(SoftTimeLimitError) as found:
        pool.run(write_and_leave)
    assert found.value.__notes__ == ["The transaction's outcome: committed"]
    assert pool.run(write) == "value"
    assert pool.failure is None


# --- commits in doubt ----------------------------------------------------------------------------


@pytest.fixture
def in_doubt(pool, monkeypatch):
    """Let the commit of the next run stay in doubt."""
    left = [1]
    usual = pool._ready

    def ready(member):
        producer = usual(member)

        def commit():
            if left[0]:
                left[0] -= 1
                producer._transaction.outcome = "unknown"
                raise CommitOutcomeUnknownError("its answer is lost")
            type(producer).commit_transaction(producer)

        producer.commit_transaction = commit
        producer.resolve_outcome = lambda: "unknown"
        return producer

    monkeypatch.setattr(pool, "_ready", ready)


@pytest.mark.usefixtures("in_doubt")
@pytest.mark.parametrize(("is_written", "calls"), [(True, 1), (False, 2)])
def test_the_look_at_the_output_comes_after_a_new_producer_has_the_id(
    pool, clients, is_written, calls
):
    seen: list[Any] = []

    def look():
        seen.append([inits(client) for client in clients])
        return is_written

    runs: list[str] = []

    def count(transaction):
        runs.append(write(transaction))
        return "value"

    assert pool.run(count, is_written=look) == "value"
    assert len(runs) == calls
    assert seen == [[["svc-0-0"], ["svc-0-0"]]]


@pytest.mark.usefixtures("in_doubt")
def test_a_doubt_without_a_look_is_raised(pool, clients):
    with pytest.raises(CommitOutcomeUnknownError):
        pool.run(write)
    assert len(clients) == 1


def test_a_commit_and_an_abort_that_time_out_leave_a_doubt_and_not_a_wait(kafka, in_memory):
    in_memory.run(write)

    def write_and_lose_the_ends(transaction):
        write(transaction)
        kafka.lose_answer("EndTxn", times=1_000)

    with pytest.raises(CommitOutcomeUnknownError, match="given up the producer") as found:
        in_memory.run(write_and_lose_the_ends, attempts=1)
    assert isinstance(found.value.__cause__, KafkaTimeoutError)
    kafka.clear_faults()


def test_a_time_out_before_the_commit_says_that_the_transaction_is_aborted(kafka, in_memory):
    in_memory.run(write)

    def write_to_nobody(transaction):
        write(transaction)
        kafka.stop_node(0)

    with pytest.raises(KafkaTimeoutError) as found:
        in_memory.run(write_to_nobody, attempts=1)
    assert found.value.__notes__ == ["The transaction's outcome: aborted"]
    kafka.start_node(0)


# --- the ends ------------------------------------------------------------------------------------


def test_a_closed_pool_lends_nothing_and_closes_what_comes_back(clients, tmp_path):
    pool = ProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS)
    with pool.producer():
        pool.run(write)
        pool.close()
        assert [client.is_closed for client in clients] == [False, True]
        with pytest.raises(IllegalStateError, match="closed: make another"):
            pool.run(write)
        other = ProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS)
        with pytest.raises(InvalidConfigurationError, match="another pool of this process"):
            other.run(write)
    assert all(client.is_closed for client in clients)
    with other:
        assert other.run(write) == "value"


def test_wrong_arguments_are_refused_when_the_pool_is_made(tmp_path):
    async def asynchronous(_):
        raise NotImplementedError

    with pytest.raises(InvalidConfigurationError, match="nonsense"):
        ProducerPool("boot:9092", "svc", nonsense=1)
    with pytest.raises(InvalidConfigurationError, match="name="):
        ProducerPool("boot:9092")
    with pytest.raises(InvalidConfigurationError, match="transactional_id"):
        ProducerPool("boot:9092", "svc", transactional_id="mine")
    pool = ProducerPool("boot:9092", "svc", lock_folder=tmp_path)
    with pytest.raises(TypeError, match="coroutine"):
        pool.run(asynchronous)  # type: ignore[unused-coroutine]
