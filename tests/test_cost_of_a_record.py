"""The cost of a record, counted and not timed: no slow path can creep in unnoticed.

Counted are Python's calls and bytecodes, and what stays allocated; none of them depends on the
machine. A limit that a change breaks is either the change's mistake, or raised here, with it.
"""

from __future__ import annotations

import tracemalloc

import pytest

from tests.counting import counted
from tests.harness import CoreHarness
from tests.live_client import use_live_clients
from tests.needs import needs_compiled
from txnproducer import TransactionalProducer
from txnproducer._core.append.row_appender import RowRun
from txnproducer._record import IMPL
from txnproducer._record.implementation import Rows
from txnproducer._wire.platform import SYSTEM, Platform

RECORDS = 200
VALUE = b"v" * 100


@pytest.fixture
def open_transaction(monkeypatch):
    use_live_clients(monkeypatch)
    with TransactionalProducer("boot:9092", "txn", linger_ms=10_000, batch_size=1 << 20) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("topic", VALUE)  # the batch that takes the others
        yield one
        one.abort_transaction()


def per_record(counts, name):
    return counts[name] / RECORDS


def send_some(one, **more):
    def send():
        for _ in range(RECORDS):
            one.send("topic", VALUE, **more)

    return send


@needs_compiled
@pytest.mark.parametrize(
    "more",
    [{}, {"key": b"key"}, {"partition": 0}, {"headers": [("h", b"1")]}, {"timestamp_ms": 5}],
    ids=["value", "key", "partition", "headers", "timestamp"],
)
def test_a_usual_record_costs_one_compiled_call(open_transaction, more):
    open_transaction.send("topic", VALUE, **more)  # its partition may be another one
    counts = counted(send_some(open_transaction, **more))
    # The loop itself, and not one function of Python's.
    assert per_record(counts, "opcode") <= 16
    assert per_record(counts, "call") <= 0.05
    assert per_record(counts, "c_call") <= 0.05


@needs_compiled
def test_a_wrapper_around_send_would_be_noticed(open_transaction):
    class Wrapper:
        def send(self, *arguments, **more):
            return open_transaction.send(*arguments, **more)

    assert per_record(counted(send_some(Wrapper())), "call") >= 1


def test_a_record_costs_few_bytecodes_without_compiled_parts(open_transaction, monkeypatch):
    # Where counting takes long, the time since the batch's first record is longer by a byte.
    begun_ms = SYSTEM.wall_clock_ms()
    monkeypatch.setattr(Platform, "wall_clock_ms", lambda _: begun_ms)
    counts = counted(send_some(open_transaction))
    assert per_record(counts, "opcode") <= 380
    assert per_record(counts, "c_call") <= 25


def test_a_record_leaves_its_bytes_and_a_light_future(open_transaction):
    send_some(open_transaction)()
    tracemalloc.start()
    try:
        kept = [open_transaction.send("topic", VALUE) for _ in range(RECORDS)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The future, its place in the list, and (without compiled parts) the record's pieces; the
    # compiled twin's buffer has its room already.
    assert size / len(kept) <= (120 if IMPL == "cython" else 420)


@needs_compiled
def test_a_batch_that_is_full_costs_by_the_batch_and_not_by_the_record(monkeypatch):
    use_live_clients(monkeypatch)
    batch_size = 1 << 14
    with TransactionalProducer("boot:9092", "txn", linger_ms=10_000, batch_size=batch_size) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("topic", VALUE)

        def send(count):
            def send_all():
                for _ in range(count):
                    one.send("topic", VALUE)

            return send_all

        more = []
        for _ in range(3):
            few, many = (counted(send(count))["opcode"] for count in (1_000, 5_000))
            more.append(many - few)
        one.abort_transaction()
    batches = 4_000 * 107 / batch_size
    assert batches > 20
    # The loop itself takes 16 bytecodes. A batch adds the long way of one record: 360 and a little
    # more, but up to 710 if the I/O thread has just woken up. Three bytecodes a record would add
    # 460.
    assert (min(more) - 16 * 4_000) / batches <= 700


def send_rows(count):
    """Return a function that appends rows to a core of its own, batch after batch."""
    harness = CoreHarness(linger_ms=10_000, batch_size=1 << 16, topics={"topic": 1})
    harness.start_transaction()
    harness.know_topics()
    run = RowRun(Rows(count, (VALUE,) * count, None, None, 0), None, 0, 1, 0, count)

    def send():
        run.next = 0
        while run.next < run.stop:
            harness.core.rows.append("topic", run, harness.now_ms)

    return send


@needs_compiled
def test_rows_cost_by_the_batch_and_not_by_the_record():
    few, many = (counted(send_rows(count))["opcode"] for count in (2_000, 20_000))
    more_batches = 18_000 * 107 / (1 << 16)
    assert (many - few) / more_batches <= 2_000
