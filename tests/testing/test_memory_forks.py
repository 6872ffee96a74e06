"""A fork of a process with an in-memory Kafka is refused at once, with either clock."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import pytest

from tests.needs import in_python
from tests.waiting import becomes_true
from txnproducer.testing import InMemoryKafka

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
_PATIENCE_S = 20.0


def in_child(action: Callable[[], object]) -> str:
    """Return the result or the error of an action in a fork, or "hangs"."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        told = "an exit"
        try:
            told = repr(action())
        except RuntimeError as error:
            told = str(error)
        finally:
            os.write(writes, told.encode())
            os._exit(0)
    os.close(writes)
    if not becomes_true(lambda: os.waitpid(child, os.WNOHANG)[0], _PATIENCE_S):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        return "hangs"
    with os.fdopen(reads) as pipe:
        return pipe.read()


@pytest.fixture(params=["real", pytest.param("virtual", marks=in_python)])
def kafka(request):
    with InMemoryKafka({"orders": 1}, clock=request.param) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "call",
    [
        lambda kafka: kafka.producer(),
        lambda kafka: kafka.listen(),
        lambda kafka: kafka.records("orders"),
        lambda kafka: kafka.create_topic("other"),
        lambda kafka: kafka.stop_node(0),
        lambda kafka: kafka.remaining_faults(),
    ],
)
def test_a_forked_child_is_refused_with_the_way_out(kafka, call):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        text = in_child(lambda: call(kafka))
    assert f"lives in process {os.getpid()}" in text
    assert "make a new InMemoryKafka in the child" in text


@in_python
def test_time_does_not_pass_in_the_fork_of_a_cluster_with_virtual_time():
    with InMemoryKafka(clock="virtual") as kafka, kafka.producer("t") as producer:
        producer.init_transactions()
        assert "make a new InMemoryKafka in the child" in in_child(lambda: kafka.sleep(10))


def leave(kafka, error):
    """Leave the block of a cluster, as in the child of a fork in the midst of it."""
    with contextlib.suppress(LookupError), contextlib.ExitStack() as stack:
        stack.push(kafka)
        if error is not None:
            raise error


@pytest.mark.parametrize(
    "close",
    [
        lambda kafka: kafka.close(),
        lambda kafka: leave(kafka, None),
        lambda kafka: leave(kafka, LookupError("of the child")),
    ],
)
def test_a_close_in_a_forked_child_does_nothing(kafka, close):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"one")
        assert in_child(lambda: close(kafka)) == "None"
        producer.commit_transaction()
    assert [record.value for record in kafka.records("orders")] == [b"one"]


def test_a_producer_is_left_in_a_forked_child(kafka):
    producer = kafka.producer("t")
    producer.init_transactions()
    assert in_child(lambda: producer.__exit__(None, None, None)) == "None"
    producer.close()
