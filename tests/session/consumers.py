"""A consumer that hands out records from a list, and runs of a session with it."""

from __future__ import annotations

import threading
import time
from typing import Any

from txnproducer._protocol.messages import ApiKey
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.session import Record, TransactSession

INPUT = TopicPartition("in", 0)
METADATA = ConsumerGroupMetadata("group", 3, "member")


class Consumer:
    """Hands out records from its position, and notes where it is set to."""

    def __init__(self, count: int = 6, position: int = 0) -> None:
        self.records = [
            Record("in", 0, n, b"key", b"%d" % n, [("name", b"header")]) for n in range(count)
        ]
        self.position = position
        self.committed = 0
        self.log: list[Any] = []
        self.on_loss: Any = None
        self.loses_in_poll = False
        self.metadata = METADATA
        self.assigned = {INPUT}
        self.polls = 0
        self.leaves_in_s = 0.0

    def check(self):
        self.log.append("check")

    def subscribe(self, topics, on_loss):
        self.log.append(("subscribe", list(topics)))
        self.on_loss = on_loss

    def poll(self, timeout_s, most):
        self.polls += 1
        found = self.records[self.position : self.position + most]
        self.position += len(found)
        if self.loses_in_poll:
            self.loses_in_poll = False
            self.on_loss()
        return found

    def group_metadata(self):
        return self.metadata

    def seek(self, offsets):
        self.log.append(("seek", offsets))
        self.position = offsets[INPUT]
        return True

    def assignment(self):
        return self.assigned

    def rewind(self, first):
        self.log.append("rewind")
        self.position = self.committed
        return True

    def close(self, timeout_s):
        self.log.append(("close", timeout_s))
        time.sleep(self.leaves_in_s)


def joined(consumer, producer, **settings):
    """Return a session that has joined its group, which takes two polls."""
    session = TransactSession(consumer, producer, ["in"], **settings)
    assert len(session.poll(max_records=1)) == 0
    assert session._goes_back()
    consumer.log.clear()
    return session


def offsets_sent(client):
    return [
        {place: one.offset for place, one in dict(request.offsets).items()}
        for request in client.sent(ApiKey.TXN_OFFSET_COMMIT)
    ]


def copy(record, transaction):
    transaction.send("topic", record.value)


def run_until(session, consumer, fn, is_done=None, **settings):
    """Run a session until all records were read and committed, or a condition holds."""
    stop = threading.Event()
    usual = consumer.poll

    def poll(timeout_s, most):
        found = usual(timeout_s, most)
        if not found:
            stop.set()
        return found

    consumer.poll = poll
    session.run(fn, stop, max_records=2, **settings)
