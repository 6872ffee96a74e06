"""Many threads at one producer, on a real broker: some send, some look and some wait.

With a GIL they take turns; on a free-threaded interpreter they do not, and this is what shows that
the compiled parts do without it.
"""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from integration.readers import read_with_kafka_python, values
from txnproducer import FutureRecordMetadata

pytestmark = pytest.mark.integration
_THREADS = 6
_MOST_RECORDS = 1_500
_ROWS = 50
# Small batches and little memory: threads wait for each other, batches are compressed beside the
# lock, and the sender takes its turns meanwhile.
_SETTINGS = {"batch_size": 4_000, "buffer_memory": 4_000_000, "linger_ms": 1}


class Work:
    """The work of one transaction: senders note their records, and watchers look for them."""

    def __init__(self, producer, topic, number):
        self._producer, self._topic, self._number = producer, topic, number
        self._futures: list[list[FutureRecordMetadata]] = [[] for _ in range(_THREADS)]
        self.sent: list[list[bytes]] = [[] for _ in range(_THREADS)]
        self.watched = []
        self.called_back: Counter[tuple[bytes, bool]] = Counter()
        self.errors = []
        self._is_over = threading.Event()

    def run(self):
        with self._running(self._look, self._look, self._flush):
            senders = [
                threading.Thread(target=self._noting(self._send, n)) for n in range(_THREADS)
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()

    @contextmanager
    def _running(self, *others: Callable[[], None]):
        threads = [threading.Thread(target=self._noting(self._again, call)) for call in others]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _noting(self, call, *args):
        def noted():
            try:
                call(*args)
            except BaseException as error:  # noqa: BLE001 - told by the test
                self.errors.append(error)

        return noted

    def _again(self, call):
        while not self._is_over.is_set():
            call()

    def _send(self, me):
        producer, topic, rng = self._producer, self._topic, random.Random(me)
        for index in range(rng.randrange(_MOST_RECORDS)):
            name = b"%d-%d-%d" % (self._number, me, index)
            if index % 200 == 0:
                rows = [b"%b-row-%d" % (name, row) for row in range(_ROWS)]
                producer.send_batch(topic, rows, keys=rows)
                self.sent[me] += rows
            watched = self._watch(name) if index % 11 == 0 else None
            headers = [("h", b"v")] if index % 7 == 0 else None
            key = b"%d" % (index % 50) if index % 3 else None
            future = producer.send(topic, name, key, headers, on_delivery=watched)
            self._futures[me].append(future)
            self.sent[me].append(name)

    def _watch(self, name):
        self.watched.append(name)
        return lambda metadata, error: self.called_back.update([(name, error is None)])

    def _look(self):
        assert self._producer.metrics()["requests-in-flight"] >= 0
        for futures in self._futures:
            for future in futures[-50:]:
                if future.done():
                    assert future.result(0).offset >= 0
                    assert future.error is None

    def _flush(self):
        self._producer.flush()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_threads_that_send_look_and_wait_at_once_lose_and_double_nothing(
    broker, transactional_id, codec
):
    topic = broker.topic(partitions=6)
    committed = []
    with broker.ready(transactional_id, compression_type=codec, **_SETTINGS) as producer:
        for number in range(6):
            work = Work(producer, topic, number)
            producer.begin_transaction()
            work.run()
            assert work.errors == []
            if number % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed += [name for names in work.sent for name in names]
                assert work.called_back == Counter((name, True) for name in work.watched)
            assert sorted(name for name, _ in work.called_back.elements()) == sorted(work.watched)
    assert Counter(values(read_with_kafka_python(broker.servers, topic))) == Counter(committed)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not getattr(sys, "_is_gil_enabled", bool)()
