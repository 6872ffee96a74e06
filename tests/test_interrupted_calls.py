"""An exception at every point of every call, on the caller's thread, over real threads.

Each point gets a producer of its own over the modelled cluster. Afterwards the call is repeated,
or the transaction committed, aborted, or left to `close()`: one of these goes on, the producer is
sound, no consumer sees a part of a transaction, and none is left open. The slices in which waiting
threads look for themselves are too long to help: a wake-up that is lost shows.

Compiled parts are passed over in one piece. What real signals do to those is tried at the end.
`make test` tries a part of the calls (`tests/turns.py`).
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from functools import partial
from itertools import product

import pytest

from tests.interrupts import IS_THOROUGH, Interrupt, Interrupter
from tests.live_client import use_live_clients
from tests.model_client import ModelClient, ModelTime, RequestFault
from tests.turns import of_this_turn
from txnproducer import TransactionalProducer
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._protocol.messages import ApiKey
from txnproducer._record.implementation import IMPL
from txnproducer._shell import io_thread
from txnproducer._sync.core_lock import Lock, enter
from txnproducer._wire.platform import Platform
from txnproducer.errors import KafkaError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PLACES = [TopicPartition("topic", 0), TopicPartition("topic", 1), TopicPartition("new", 0)]
CLOSE_S = 5.0
# The limit of a call that waits for a wake-up alone. A lost one costs it `max_block_ms`.
PATIENCE_S = 4.0
VALUE = b"x" * 16_000
SETTINGS = {
    "max_block_ms": 10_000,
    "linger_ms": 0,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "buffer_memory": 40_000,
    "batch_size": 16_384,
}
SMALL_GZIP = {"compression_type": "gzip", "batch_size": 1_000, "linger_ms": 50}
WAYS = ("repeat", "commit", "abort", "close")


class ReentrantLock(Lock):
    """The lock of the model, with calls that a signal may interrupt as well."""

    __enter__ = enter


class ModelProducer:
    """A producer over a cluster of its own."""

    def __init__(self, version, **settings):
        model_time, lock = ModelTime(), ReentrantLock()
        self.cluster = BrokerCluster(ClusterOptions(transaction_version=version), random.Random(1))
        for topic in ("topic", "new", "in"):
            self.cluster.create_topic(topic, 2)
        self.client = ModelClient(self.cluster, model_time, lock)
        with pytest.MonkeyPatch.context() as patch:
            use_live_clients(patch, lambda: self.client)
            self.one = TransactionalProducer("node-0:9092", "txn", **{**SETTINGS, **settings})
        self.transaction = None

    def ready(self):
        self.one.init_transactions()
        self.one.partitions_for("topic")
        return self

    def begun(self):
        self.ready().one.begin_transaction()
        return self

    def written(self):
        self.begun().one.send("topic", b"before", partition=0)
        return self

    def without_memory(self):
        """Fill the buffer. The answers that free it take a moment."""
        self.begun()
        for partition in (0, 1):
            self.client.plan(RequestFault.ANSWER_SLOW, ApiKey.PRODUCE, 5)
            self.one.send("topic", VALUE, partition=partition)
        return self

    def filled(self):
        """Write batches that are full, and are compressed meanwhile."""
        self.begun()
        for number in range(6):
            self.one.send("topic", random.Random(number).randbytes(900), partition=0)
        return self

    def outside(self):
        """Stand before a block."""
        self.ready()
        self.transaction = self.one.transaction()
        return self

    def closing(self):
        """Let another thread close it, which takes a moment."""
        self.written()
        for kind in (ApiKey.PRODUCE, ApiKey.END_TXN):
            self.client.plan(RequestFault.ANSWER_SLOW, kind, 5)
        threading.Thread(target=self.one.close, args=(CLOSE_S,), daemon=True).start()
        return self

    def entered(self):
        self.ready()
        self.transaction = self.one.transaction()
        self.transaction.__enter__()
        self.one.send("topic", b"before", partition=0)
        return self


def leave(error):
    def call(run):
        run.transaction.__exit__(None if error is None else type(error), error, None)

    return call


OFFSETS = ({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))
CALLS = {
    "init_transactions": (ModelProducer, lambda run: run.one.init_transactions()),
    "begin_transaction": (
        lambda version: ModelProducer(version).ready(),
        lambda run: run.one.begin_transaction(),
    ),
    "send": (
        lambda version: ModelProducer(version).begun(),
        lambda run: run.one.send("topic", b"interrupted", partition=0),
    ),
    "send to an open batch": (
        lambda version: ModelProducer(version, linger_ms=50).written(),
        lambda run: run.one.send("topic", b"interrupted", partition=0),
    ),
    "send to a new topic": (
        lambda version: ModelProducer(version).written(),
        lambda run: run.one.send("new", b"interrupted", partition=0),
    ),
    "send without memory": (
        lambda version: ModelProducer(version).without_memory(),
        lambda run: run.one.send("topic", VALUE, partition=0),
    ),
    "send_batch": (
        lambda version: ModelProducer(version).begun(),
        lambda run: run.one.send_batch("topic", [b"row"] * 4, partitions=[0, 1, 0, 1]),
    ),
    "send_batch without memory": (
        lambda version: ModelProducer(version).without_memory(),
        lambda run: run.one.send_batch("topic", [VALUE] * 2, partitions=[0, 1]),
    ),
    "send_offsets": (
        lambda version: ModelProducer(version).written(),
        lambda run: run.one.send_offsets_to_transaction(*OFFSETS),
    ),
    "commit": (
        lambda version: ModelProducer(version).written(),
        lambda run: run.one.commit_transaction(),
    ),
    "send after a full batch": (
        lambda version: ModelProducer(version, **SMALL_GZIP).filled(),
        lambda run: run.one.send("topic", b"interrupted", partition=0),
    ),
    "commit of full batches": (
        lambda version: ModelProducer(version, **SMALL_GZIP).filled(),
        lambda run: run.one.commit_transaction(),
    ),
    "abort": (
        lambda version: ModelProducer(version).written(),
        lambda run: run.one.abort_transaction(),
    ),
    "flush": (lambda version: ModelProducer(version).written(), lambda run: run.one.flush()),
    "lease": (lambda version: ModelProducer(version).begun(), lambda run: run.one.lease(2)),
    "hand over": (lambda version: ModelProducer(version).begun(), lambda run: run.one.lease(0)),
    "end of a block": (lambda version: ModelProducer(version).entered(), leave(None)),
    "end of a block that failed": (
        lambda version: ModelProducer(version).entered(),
        leave(ValueError("as it happens")),
    ),
    "entering a block": (
        lambda version: ModelProducer(version).outside(),
        lambda run: run.transaction.__enter__(),
    ),
    "a second close": (
        lambda version: ModelProducer(version).closing(),
        lambda run: run.one.close(CLOSE_S),
    ),
    "close": (
        lambda version: ModelProducer(version).written(),
        lambda run: run.one.close(CLOSE_S),
    ),
}
# Nothing can follow these.
ENDING = ("close", "a second close", "hand over")


@pytest.fixture
def only_wakeups(monkeypatch):
    """Let nobody look for himself."""
    monkeypatch.setattr(Platform, "wait_slice_s", 60.0)
    monkeypatch.setattr(io_thread, "_LONGEST_POLL_MS", 60_000)


def interrupted_everywhere(make, call, step=1):
    """Yield runs after an interrupted call, each with its point and the way to go on."""
    noted = Interrupter(is_by_line=not IS_THOROUGH)
    for is_noting in (False, True):
        run = make()
        noted.run(lambda: call(run)) if is_noting else call(run)  # noqa: B023
        run.one.close(0)
    points = [point for point in noted.passed if point.visit < 2][::step]
    missed = 0
    for number, point in enumerate(points):
        for way in WAYS if IS_THOROUGH else [WAYS[number % len(WAYS)]]:
            run = make()
            try:
                Interrupter(point, is_by_line=not IS_THOROUGH).run(lambda: call(run))  # noqa: B023
                missed += 1  # where threads meet differs from run to run
            except Interrupt:
                pass
            yield point, way, run
            run.one.close(0)
    assert missed <= len(points) / 3


def is_at_rest(one):
    with one._lock:
        manager = one._core.transaction_manager
        is_seen = manager._pending.unseen() is None
        return is_seen and one.transaction_state in ("READY", "UNINITIALIZED")


def in_time(what, call):
    began_s = time.monotonic()
    try:
        return call()
    finally:
        assert time.monotonic() - began_s < PATIENCE_S, what


def go_on(point, run, call, way):
    """Take a way out. If it is refused, another one is open."""
    one = run.one
    steps = {
        "repeat": lambda: call(run),
        "commit": one.commit_transaction,
        "abort": one.abort_transaction,
    }
    for step in (steps.pop(way), *steps.values()):
        if is_at_rest(one):
            return
        with contextlib.suppress(KafkaError):
            in_time((point, way, step), step)


def assert_is_sound(point, run):
    one = run.one
    if one.transaction_state == "UNINITIALIZED":
        one.init_transactions()
    for partition in (0, 1):
        with one.transaction():
            future = one.send("topic", b"after", partition=partition)
            in_time(point, partial(one.flush, PATIENCE_S))
        assert future.error is None, point
    metrics = one.metrics()
    assert metrics["waiting-threads"] == 0, point
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"], point
    assert not one._io._waits, point


def assert_is_closed(point, run, way):
    one = run.one
    in_time((point, way), partial(one.close, CLOSE_S))
    assert one._io.has_ended, point
    end_s = time.monotonic() + PATIENCE_S  # its last steps are not waited for
    while one._io._thread.ident in sys._current_frames():
        assert time.monotonic() < end_s, point
        time.sleep(0)  # gives way only: this is waited for at thousands of points
    # Another thread may have it for a moment, but no call has kept it.
    assert one._lock.acquire(timeout=10), point
    one._lock.release()


def assert_is_whole(point, run, way):
    """Compare the results of the calls with a consumer's records."""
    assert not run.cluster.open_transactions, (point, way)
    values: Counter[bytes] = Counter()
    for place in PLACES:
        values.update(each.value for each in run.cluster.read(place, read_committed=True))
    assert values[b"before"] <= 1, point
    assert values[b"after"] == (0 if way == "close" else 2), point
    assert values[b"row"] in (0, 4, 8), point
    if values[b"interrupted"] and run.transaction is not None:
        assert values[b"before"] == 1, point


@pytest.mark.timeout(1200 if IS_THOROUGH else 120)
@pytest.mark.parametrize(("name", "version"), of_this_turn(list(product(CALLS, [1, 2]))))
@pytest.mark.usefixtures("only_wakeups")
def test_a_call_that_an_exception_leaves_can_be_repeated_or_its_transaction_aborted(name, version):
    make, call = CALLS[name]
    # These wait at each point: `make interrupts` tries all of them.
    step = 4 if "without memory" in name and not IS_THOROUGH else 1
    count = 0
    for point, way, run in interrupted_everywhere(partial(make, version), call, step):
        if name not in ENDING and way != "close":
            if name != "entering a block":
                go_on(point, run, call, way)
            elif run.transaction._has_begun:  # missed
                leave(None)(run)
            assert_is_sound(point, run)
        assert_is_closed(point, run, way)
        if name != "hand over":
            assert_is_whole(point, run, "close" if name in ENDING else way)
        count += 1
    # Compiled, a usual `send` has no point at all.
    assert count > 5 or IMPL == "cython"
