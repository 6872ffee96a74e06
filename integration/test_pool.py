"""A pool of producers on a real broker: forked workers, of which one is killed and replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.readers import read_with_confluent, values
from tests.waiting import wait_until
from txnproducer import Transaction, TransactionalProducer
from txnproducer.admin import describe_transactions
from txnproducer.pool import ProducerPool

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ORDERS = 30
PATIENCE_S = 60


def write(topic: str, value: str, transaction: Transaction) -> None:
    transaction.send(topic, value.encode())


def work(pool: ProducerPool, topic: str, name: str, told: Any, may_end: Path) -> None:
    """Write orders, say so, and wait in the midst of a transaction."""
    for number in range(ORDERS):
        pool.run(partial(write, topic, f"{name}.{number}"))
    with pool.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, f"{name} is killed or leaves".encode())
        producer.flush()
        told.send((name, producer._config.transactional_id))
        wait_until(may_end.exists, longest_s=PATIENCE_S)
        producer.abort_transaction()
    pool.close()


def test_four_forked_workers_of_which_one_is_killed_and_replaced(
    kafka, topic, transactional_id, tmp_path
):
    fork: Any = multiprocessing.get_context("fork")
    # Made before the fork, as by gunicorn with preload_app, and not used there.
    pool = ProducerPool(
        kafka.bootstrap_servers, transactional_id, lock_folder=tmp_path, linger_ms=0
    )
    # A file and a pipe each: a process that is killed may hold the lock of an event or a queue.
    may_end = tmp_path / "may end"
    pipes = {}

    def start(name):
        pipes[name], told = fork.Pipe(duplex=False)
        process = fork.Process(target=work, args=(pool, topic, name, told, may_end))
        process.start()
        return process

    def told_by(name):
        assert pipes[name].poll(PATIENCE_S), f"{name} says nothing"
        return pipes[name].recv()

    workers = {f"worker {n}": start(f"worker {n}") for n in range(4)}
    try:
        ids = dict(told_by(name) for name in workers)
        assert len(set(ids.values())) == 4
        killed = workers.pop("worker 2")
        os.kill(killed.pid, signal.SIGKILL)
        killed.join(PATIENCE_S)
        workers["its replacement"] = start("its replacement")
        name, taken = told_by("its replacement")
        assert (name, taken) == ("its replacement", ids["worker 2"]), "the id that became free"
        may_end.touch()
        for worker in workers.values():
            worker.join(PATIENCE_S)
        assert {worker.exitcode for worker in workers.values()} == {0}, "nobody was fenced"
    finally:
        for worker in workers.values():
            worker.kill()
            worker.join()
    names = [*ids, "its replacement"]
    wanted = sorted(f"{name}.{number}".encode() for name in names for number in range(ORDERS))
    assert sorted(committed(kafka, topic)) == wanted
    found = describe_transactions(kafka.bootstrap_servers, sorted(ids.values()))
    assert {name for name, one in found.items() if one is None or one.state == "Ongoing"} == set()


def test_a_producer_whose_id_is_taken_leaves_it(kafka, topic, transactional_id, tmp_path):
    settings: dict[str, Any] = {"lock_folder": tmp_path, "linger_ms": 0}
    with ProducerPool(kafka.bootstrap_servers, transactional_id, worker=0, **settings) as pool:
        pool.run(lambda txn: txn.send(topic, b"first"))
        other = f"{transactional_id}-0-0"
        with TransactionalProducer(kafka.bootstrap_servers, other) as newer:
            newer.init_transactions()
            with pytest.raises(Exception, match="a newer producer of this id") as found:
                pool.run(lambda txn: txn.send(topic, b"never"))
            assert "fence each other for ever" in found.value.__notes__[-1]
            with newer.transaction():
                newer.send(topic, b"of the newer one")
    wanted = [b"first", b"of the newer one"]
    wait_until(lambda: sorted(committed(kafka, topic)) == wanted)


def committed(kafka, topic) -> list[Any]:
    return values(read_with_confluent(kafka.bootstrap_servers, topic))
