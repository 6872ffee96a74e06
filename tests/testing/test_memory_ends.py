"""The end of an in-memory Kafka: by `close`, by an interrupt, in a fork, by the collector."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import warnings
from pathlib import Path

import pytest

from tests.interrupts import Interrupt
from tests.testing.test_memory_forks import in_child
from tests.waiting import wait_until
from txnproducer.errors import KafkaError
from txnproducer.testing import InMemoryKafka
from txnproducer.testing._memory_producer import MemoryProducer

THREAD = "txnproducer-in-memory-kafka"


def is_running():
    return any(thread.name == THREAD for thread in threading.enumerate())


@contextlib.contextmanager
def dropped_clusters():
    """Collect the warnings about clusters. Other tests' objects may be collected here as well."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
    texts.extend(text for each in found if "InMemoryKafka" in (text := str(each.message)))


def test_a_closed_cluster_opens_no_port():
    kafka = InMemoryKafka()
    kafka.close()
    with pytest.raises(RuntimeError, match="closed"):
        kafka.listen()
    with pytest.raises(RuntimeError, match="closed"):
        kafka.listen(tls=True)
    with pytest.raises(RuntimeError, match="closed"):
        _ = kafka.ca_file


def test_a_cluster_that_is_dropped_warns_and_ends():
    kafka = InMemoryKafka({"orders": 1})
    address = kafka.listen()
    with kafka.producer() as producer:
        producer.send("orders", b"one").result(5)
    del producer
    with dropped_clusters() as texts:
        del kafka
        gc.collect()
    assert texts == ["unclosed InMemoryKafka: use `with`, or call close()"]
    wait_until(lambda: not is_running())
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1)


def test_a_producer_keeps_its_cluster():
    def make():
        return InMemoryKafka({"orders": 1}).producer()

    with make() as producer:
        gc.collect()
        assert producer.send("orders", b"one").result(5).offset == 0
    with dropped_clusters() as texts:
        del producer
        gc.collect()
    assert len(texts) == 1
    wait_until(lambda: not is_running())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_the_certificate_of_its_parent_alone():
    with InMemoryKafka() as kafka:
        kafka.listen(tls=True)

        def leave():
            kafka.close()
            gc.collect()

        assert in_child(leave) == "None"
        assert "fork" in in_child(lambda: kafka.ca_file)
        ca_file = Path(kafka.ca_file)
        assert ca_file.exists()
    assert not ca_file.exists()


def test_each_call_of_many_threads_is_made_or_refused_at_the_end():
    kafka = InMemoryKafka()
    made, refused = [], []

    def create(number):
        for step in range(50):
            name = f"t{number}-{step}"
            try:
                kafka.create_topic(name)
                made.append(name)
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=create, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    kafka.close()
    for thread in threads:
        thread.join(10)
    assert len(made) + len(refused) == 200
    assert set(kafka._cluster.topics) == set(made)
    assert all("is closed" in text for text in refused)


def test_a_producer_that_is_made_while_its_cluster_is_closed_is_closed_too(monkeypatch):
    kafka = InMemoryKafka()
    make = MemoryProducer.__init__

    def make_and_close(*arguments, **settings):
        make(*arguments, **settings)
        kafka.close()

    monkeypatch.setattr(MemoryProducer, "__init__", make_and_close)
    producer = kafka.producer("t")
    with pytest.raises(KafkaError, match="this InMemoryKafka is closed"):
        producer.init_transactions()
    assert producer._io.has_ended


def test_no_producer_is_made_once_a_close_has_begun(monkeypatch):
    kafka = InMemoryKafka()
    producer = kafka.producer()
    close = MemoryProducer.close_with_cluster
    texts: list[str] = []

    def make_and_close(closed):
        with pytest.raises(RuntimeError) as refused:
            kafka.producer()
        texts.append(str(refused.value))
        close(closed)

    monkeypatch.setattr(MemoryProducer, "close_with_cluster", make_and_close)
    kafka.close()
    assert ["closed" in text for text in texts] == [True]
    assert producer._io.has_ended


def test_an_interrupted_close_ends_the_loop(monkeypatch):
    kafka = InMemoryKafka()

    def interrupt(_):
        raise Interrupt

    with kafka.producer(), monkeypatch.context() as patch:
        patch.setattr(MemoryProducer, "close_with_cluster", interrupt)
        with pytest.raises(Interrupt):
            kafka.close()
        wait_until(lambda: not is_running())
    kafka.close()
