"""Shared parts of the tests of draining: queues, brokers, an identity with switches."""

from __future__ import annotations

from tests.core.support import (
    TP0,
    TP1,
    append,
    know,
    make_accumulator,
    make_metadata,
    topic_metadata,
)
from txnproducer._core.sending.drain import check_ready, drain
from txnproducer._core.sequences.sequence_manager import SequenceManager
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

PRODUCER = ProducerIdAndEpoch(5, 1)
TP2 = TopicPartition("topic", 2)


class Identity:
    """A producer's identity with a switch for everything that draining asks."""

    def __init__(self, is_transactional=False):
        self.is_transactional = is_transactional
        self.is_completing = False
        self.sequences = SequenceManager(is_transactional=is_transactional)
        self.sequences.producer_id_and_epoch = PRODUCER
        self.sequences._known_as = dict.fromkeys((TP0, TP1, TP2), PRODUCER.producer_id)
        self.forbidden = set()

    def is_send_to_partition_allowed(self, place):
        return place not in self.forbidden


class Scene:
    """An accumulator, a cluster of two brokers, and the two looks."""

    def __init__(self, leaders=(0, 1, 0), identity=None, **options):
        options.setdefault("is_idempotent", identity is not None)
        self.accumulator = make_accumulator(**options)
        self.metadata = make_metadata()
        self.identity = identity
        know(self.metadata, topic_metadata("topic", list(leaders)))

    def append(self, place=TP0, value=b"value", now_ms=0):
        return append(self.accumulator, place, value, now_ms=now_ms)

    def check(self, now_ms=0):
        return check_ready(self.accumulator, self.metadata, self.identity, now_ms)

    def ready(self, now_ms=0):
        return set(self.check(now_ms).ready_nodes)

    def drain(self, node_id=0, max_size=1_000_000, now_ms=0):
        queues = self.check(now_ms).ready_nodes.get(node_id, [])
        drained = drain(self.accumulator, queues, self.identity, max_size)
        self.has_more = drained.has_more
        for batch in drained.batches:
            batch.sent(now_ms)
        return drained.batches
