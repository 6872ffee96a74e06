"""The ends of a pool's producers: an id that is lost to a newer one, an interrupt, the close."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.ctrl_c import hear_ctrl_c
from tests.interrupts import Interrupt, Interrupter
from tests.live_client import LiveClient, kept_clients
from tests.lost_pools import ID, REFUSAL, SETTINGS
from tests.waiting import wait_until
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import transaction_runs
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    InvalidConfigurationError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.pool import ProducerPool
from txnproducer.producer import TransactionalProducer
from txnproducer.testing import InMemoryKafka

PATIENCE_S = 10.0


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka(topics={"topic": 1}, transaction_version=request.param) as kafka:
        yield kafka


@pytest.fixture
def make_pool(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)
    made: list[ProducerPool] = []

    def make(**settings):
        settings = {**SETTINGS, "lock_folder": tmp_path, **settings}
        made.append(ProducerPool(kafka.listen(), "svc", worker=0, **settings))
        return made[-1]

    yield make
    for pool in made:
        pool.close(1)


@pytest.fixture
def pool(make_pool):
    """Return a pool that has written once."""
    pool = make_pool()
    pool.run(write)
    return pool


def write(transaction):
    return transaction.send("topic", b"value").result(PATIENCE_S)


def epoch(kafka):
    return kafka.transactions()[ID].producer_epoch


# --- an id that a newer producer has taken -------------------------------------------------------


def in_a_block(pool, kafka):
    with pool.producer() as producer, producer.transaction() as transaction:
        kafka.fence(ID)
        write(transaction)


def in_a_block_whose_error_is_caught(pool, kafka):
    with pool.producer() as producer, suppress(KafkaError):
        with producer.transaction() as transaction:
            kafka.fence(ID)
            write(transaction)


def in_a_transaction_that_is_left_open(pool, kafka):
    with pool.producer() as producer:
        producer.begin_transaction()
        write(producer)
        kafka.fence(ID)


def in_a_run(pool, kafka):
    def lose(transaction):
        kafka.fence(ID)
        write(transaction)

    pool.run(lose)


def in_a_run_with_an_error_of_its_own(pool, kafka):
    def lose(transaction):
        kafka.fence(ID)
        try:
            write(transaction)
        except KafkaError as error:
            raise LookupError("the order could not be written") from error

    pool.run(lose, retry_on=LookupError)


def in_a_run_with_a_group_of_errors(pool, kafka):
    def lose(transaction):
        kafka.fence(ID)
        try:
            write(transaction)
        except KafkaError as error:
            raise ExceptionGroup("two orders", [error, ValueError()]) from None

    pool.run(lose, retry_on=ExceptionGroup)


LOSSES = (
    in_a_block,
    in_a_block_whose_error_is_caught,
    in_a_transaction_that_is_left_open,
    in_a_run,
    in_a_run_with_an_error_of_its_own,
    in_a_run_with_a_group_of_errors,
)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_an_id_that_a_newer_producer_has_taken_is_left_to_it(pool, kafka, lose):
    with suppress(KafkaError, LookupError, ExceptionGroup):
        lose(pool, kafka)
    taken = epoch(kafka)
    assert "a newer producer of this id" in str(pool.failure)
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=REFUSAL):
            pool.run(write)
        with pytest.raises(ProducerFencedError, match=REFUSAL), pool.producer():
            pass
    assert epoch(kafka) == taken, "the newer producer was fenced"


def test_the_error_of_a_run_says_that_the_pool_has_ended(pool, kafka):
    with pytest.raises(LookupError) as found:
        in_a_run_with_an_error_of_its_own(pool, kafka)
    assert "two processes would fence each other for ever" in found.value.__notes__[-1]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_doubt_after_a_fence_is_looked_at_without_a_new_producer(pool, kafka, is_written):
    calls, epochs, fences = [], [], []

    def take_over():
        wait_until(lambda: not kafka.remaining_faults())  # the commit has no answer
        kafka.fence(ID)

    def write_and_lose_the_answer(transaction):
        calls.append(write(transaction))
        if len(calls) == 1:
            kafka.lose_answer("EndTxn")
            fences.append(threading.Thread(target=take_over))
            fences[0].start()

    def look():
        fences[0].join()
        epochs.append(epoch(kafka))
        return is_written

    def run():
        pool.run(write_and_lose_the_answer, is_written=look)

    if is_written:
        run()
    else:
        with pytest.raises(CommitOutcomeUnknownError) as found:
            run()
        assert "two processes would fence each other for ever" in found.value.__notes__[-1]
    assert len(calls) == 1
    assert "a newer producer of this id" in str(pool.failure)
    assert epochs == [epoch(kafka)]
    with pytest.raises(ProducerFencedError, match=REFUSAL):
        pool.run(write)


def test_a_producer_whose_loan_was_longer_than_its_transaction_may_be_is_renewed(make_pool, kafka):
    pool = make_pool(transaction_timeout_ms=100)
    for is_left_open in (False, True):
        with pool.producer() as producer, suppress(KafkaError):
            producer.begin_transaction()
            write(producer)
            time.sleep(0.2)
            kafka.time_out_transaction(ID)
            if not is_left_open:
                producer.commit_transaction()
        assert pool.run(write)
        assert pool.failure is None


# --- with the scripted client --------------------------------------------------------------------


@pytest.fixture
def clients(monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)
    return kept_clients(monkeypatch)


@pytest.fixture
def make_scripted(clients, tmp_path):
    def make():
        return ProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS)

    return make


def test_an_error_of_another_producer_does_not_end_the_pool(make_scripted, clients):
    def fail(_):
        raise ProducerFencedError(
            "the transaction is lost: a newer producer of this id, epoch 7, has taken over (x)"
        )

    with make_scripted() as pool:
        with pytest.raises(ProducerFencedError):
            pool.run(fail)
        assert pool.run(write)
        assert pool.failure is None
    assert len(clients) == 1


def test_no_run_renews_its_producer_once_the_pool_has_ended(make_scripted, clients):
    def fail(transaction):
        clients[0].prepare_produce(error_code=90)  # PRODUCER_FENCED
        scripted._note_taken(ProducerFencedError("another thread's"))
        write(transaction)

    scripted = make_scripted()
    with scripted as pool:
        with pytest.raises(KafkaError):
            pool.run(fail)
        with pytest.raises(ProducerFencedError, match=REFUSAL):
            pool.run(write)
    assert len(clients) == 1


def test_a_producer_that_is_refused_its_initialization_for_a_fence_ends_the_pool(
    make_scripted, clients, monkeypatch
):
    usual = LiveClient._prepare_success

    def fence(client, kind):
        if kind is ApiKey.INIT_PRODUCER_ID:
            client.prepare_init_producer_id(error_code=90)
        usual(client, kind)

    monkeypatch.setattr(LiveClient, "_prepare_success", fence)
    with make_scripted() as pool:
        with pytest.raises(KafkaError), pool.producer():
            pass
        with pytest.raises(ProducerFencedError, match=REFUSAL):
            pool.run(write)
    assert len(clients) == 1


# --- interrupts ----------------------------------------------------------------------------------


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need it"
)
def test_a_producer_whose_close_was_interrupted_is_not_lent_again(pool, kafka):
    hear_ctrl_c()
    interrupt = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), pool.producer() as producer:  # noqa: PT012
        producer.begin_transaction()
        write(producer)
        kafka.delay("EndTxn", 0.3)
        interrupt.start()
    interrupt.join()
    wait_until(lambda: producer.transaction_state == "READY")  # the abort goes on
    for _ in range(2):
        assert pool.run(write)
        with pool.producer() as another, another.transaction():
            assert another is not producer


def test_an_interrupt_at_any_point_of_the_end_leaves_a_member_that_works(make_scripted, clients):
    def attempt(interrupter):
        with make_scripted() as pool:
            usual = pool._give_up
            pool._give_up = lambda member: interrupter.run(lambda: usual(member))
            try:
                with pool.producer() as producer:
                    producer.begin_transaction()
                    write(producer)
            finally:
                pool._give_up = usual
                assert pool.run(write), interrupter.passed[-1]

    noted = Interrupter(is_by_line=True)
    attempt(noted)
    assert len(noted.passed) > 20
    for point in noted.passed:
        with suppress(Interrupt):
            attempt(Interrupter(point, is_by_line=True))
    assert all(client.is_closed for client in clients)


def lend(pool):
    with pool.producer():
        pass


def run(pool):
    pool.run(write)


@pytest.mark.parametrize("use", [lend, run], ids=lambda use: use.__name__)
def test_an_interrupt_at_any_point_of_a_loan_leaves_a_pool_that_can_be_closed(
    make_scripted, clients, use
):
    def attempt(interrupter):
        pool = make_scripted()
        pool.run(write)
        with suppress(Interrupt):
            interrupter.run(lambda: use(pool))
        pool.close(1)
        with make_scripted() as another:
            assert another.run(write), "the worker was given back"

    noted = Interrupter(is_by_line=True)
    attempt(noted)
    points = [point for point in noted.passed if "ool" in point.name or "_loan" in point.name]
    assert len(points) > 10
    for point in points:
        attempt(Interrupter(point, is_by_line=True))
    assert all(client.is_closed for client in clients)


def fork_in_a_loan(pool):
    with pool.producer():
        return end_of_child()


def fork_in_a_run(pool):
    return pool.run(lambda _: end_of_child())


def end_of_child():
    """Fork a child that ends with 7, and return its exit code."""
    child = os.fork()
    if child == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is needed")
@pytest.mark.parametrize("use", [fork_in_a_loan, fork_in_a_run])
def test_a_child_that_is_forked_in_a_loan_ends_as_it_says(pool, use):
    parent = os.getpid()
    try:
        ended = use(pool)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(7 if isinstance(error, SystemExit) and error.code == 7 else 1)
        raise
    assert ended == 7
    assert pool.run(write)


def test_a_producer_that_its_borrower_has_closed_is_not_lent_again(make_scripted, clients):
    with make_scripted() as pool:
        with pool.producer() as producer, producer:
            pass
        assert pool.run(write)
    assert len(clients) == 2


# --- a closed pool -------------------------------------------------------------------------------


@pytest.fixture
def closes(monkeypatch):
    """Return the time-outs with which producers are closed."""
    seen: list[Any] = []
    usual = TransactionalProducer.close

    def close(producer, timeout=None):
        seen.append(timeout)
        usual(producer, timeout)

    monkeypatch.setattr(TransactionalProducer, "close", close)
    return seen


def test_a_producer_that_comes_back_to_a_closed_pool_obeys_its_time_out(make_scripted, closes):
    pool = make_scripted()
    with pool.producer():
        pool.run(write)
        pool.close(3)
        assert closes == [3]
    assert closes == [3, 3]
    with pytest.raises(ValueError, match="negative"):
        pool.close(-1)


def test_a_worker_is_given_back_after_an_interrupted_close_was_made_again(
    make_scripted, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    pool, other = make_scripted(), make_scripted()
    loan = pool.producer()
    loan.__enter__()
    pool.close()
    with monkeypatch.context() as patch:
        patch.setattr(TransactionalProducer, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loan.__exit__(None, None, None)
    with pytest.raises(InvalidConfigurationError, match="another pool of this process"):
        other.run(write)
    pool.close()
    with other:
        assert other.run(write)
