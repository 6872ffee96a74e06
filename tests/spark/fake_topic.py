"""A ledger in a topic, without a cluster. A record that is written is there at once.

Owns: the records and the groups. Must not know: what they mean.
"""

from __future__ import annotations

from contextlib import contextmanager

from txnproducer.ledger.topic_log import LogState, Snapshot, Stored
from txnproducer.records import OffsetAndMetadata


class Killed(BaseException):
    """The end of a process, which no handler of errors sees."""


class FakeCluster:
    """A topic, and the groups of a ledger in offsets. A producer's writes are there at once."""

    def __init__(self):
        self.topic: dict[str, Stored] = {}
        self.groups: dict[str, OffsetAndMetadata] = {}
        self.asked: list[str] = []
        self.steps = 0
        self.last_step: int | None = None

    def step(self):
        """End the process here, if this is its last step."""
        self.steps += 1
        if self.steps == self.last_step:
            raise Killed

    def read(self, keys, *_, **__):
        self.asked.append("topic")
        return LogState(len(self.topic), dict(self.topic))

    def snapshot(self, keys=None):
        return Snapshot(len(self.topic), dict(self.topic))

    def go_on_from(self, snapshot):
        """See `TopicLog`."""

    # As a producer.

    @contextmanager
    def transaction(self):
        before = dict(self.topic), dict(self.groups)
        try:
            self.step()
            yield
            self.step()
        except BaseException:
            self.topic, self.groups = before
            raise
        self.step()

    def send(self, topic, value, key, partition):
        assert (topic, partition) == ("books", 0)
        self.step()
        self.topic[key.decode()] = Stored(len(self.topic), 0, value)

    def send_offsets_to_transaction(self, offsets, group):
        ((place, stored),) = offsets.items()
        assert tuple(place) == ("orders", 0)
        self.step()
        self.groups[group.group_id] = stored
