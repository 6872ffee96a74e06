"""A whole producer over the modelled cluster, without threads, and the records that consumers get.

A request is executed as soon as it is sent, and answered at once, unless a test has planned
something else for the next one of its kind: it arrives and its answer is lost, it stays on its way
until the test lets it arrive, or another answer is given.
"""

from __future__ import annotations

import random

from tests.harness import TP0, CoreHarness
from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._protocol.events import ClientRequest
from txnproducer._protocol.messages import API_KEY_OF, MetadataRequest, ProduceRequest


def make_cluster(version=2, **options):
    """Return a cluster of one broker that has the topic."""
    cluster = BrokerCluster(
        ClusterOptions(transaction_version=version, **options), random.Random(1)
    )
    cluster.create_topic("topic", 2)
    return cluster


class OnCluster(CoreHarness):
    """A producer whose requests the modelled cluster carries out, each at once.

    Attributes:
        lost: kinds of requests whose next answer is lost, with the connection.
        delayed: kinds of requests of which the next is held on its way; the connection is lost.
        stalled: kinds of requests that arrive, and are never answered.
        on_the_way: the bodies of what is held.
        rewrite: by kind, what becomes of the next answer.
        refused: by kind, the answer to the next request, which is not executed.
    """

    def __init__(self, cluster, now_ms=0, **settings):
        super().__init__(transaction_version=cluster.transaction_version, **settings)
        self.now_ms = now_ms
        self.cluster = cluster
        self.client.topic_ids = {name: topic_id for topic_id, name in cluster.topology.ids.items()}
        self.lost, self.delayed, self.stalled = [], [], set()
        self.on_the_way, self.rewrite, self.refused = [], {}, {}
        self._seen = set()

    def _unseen(self):
        return [
            request
            for request in self.client.outstanding.values()
            if request.correlation_id not in self._seen
            and not isinstance(request.body, MetadataRequest)
        ]

    def _is_something_due(self):
        return bool(self._unseen()) or super()._is_something_due()

    def step(self):
        self.cluster.advance(self.now_ms)
        for request in self._unseen():
            self._seen.add(request.correlation_id)
            self._carry(request)
        return super().step()

    def _carry(self, request):
        kind = API_KEY_OF[type(request.body)]
        if kind in self.delayed:
            self.delayed.remove(kind)
            self.on_the_way.append(request.body)
            self.client.disconnect(request.connection)
            return
        answer = self.refused.pop(kind, None) or handlers.handle(
            self.cluster, 0, request.body, self.now_ms
        )
        if kind in self.lost:
            self.lost.remove(kind)
            self.client.disconnect(request.connection)
        elif kind not in self.stalled:
            self.client.answer(request, self.rewrite.pop(kind, lambda given: given)(answer))

    def arrive_late(self):
        """Let the held requests arrive now. Return the answers, which never reach the producer."""
        held, self.on_the_way = self.on_the_way, []
        return [handlers.handle(self.cluster, 0, body, self.now_ms) for body in held]

    def init(self):
        self.complete(self.core.init_transactions())
        self.be_known()  # as if what is known there were forgotten when a test begins

    def begin(self):
        self.begin_transaction()

    def write(self, value):
        """Send a record and wait until it is written."""
        future = self.send("topic", value)
        self.run_until(future.done)
        return future.result()

    def end(self, *, is_commit):
        self.complete(self.core.begin_commit() if is_commit else self.core.begin_abort())

    def transact(self, value):
        """Write a record in a transaction of its own."""
        self.begin()
        self.write(value)
        self.end(is_commit=True)

    @property
    def identity(self):
        return self.manager.identity.producer_id_and_epoch


class Holding(OnCluster):
    """A producer whose Produce requests stay on their way, as long as that is wanted."""

    held: list[ClientRequest] | None = None

    def _carry(self, request):
        if self.held is not None and isinstance(request.body, ProduceRequest):
            self.held.append(request)
        else:
            super()._carry(request)

    def lose_the_connection(self):
        """Drop the held requests, for now."""
        late, self.held = self.held or [], None
        self.client.disconnect(late[0].connection)
        self.on_the_way = [request.body for request in late]


def started(cluster, **settings):
    """Return a producer that is initialized."""
    harness = OnCluster(cluster, **settings)
    harness.init()
    return harness


def committed(cluster, place=TP0):
    """Return the values that a read_committed consumer gets."""
    return [record.value for record in cluster.read(place, read_committed=True)]


def is_all_decided(cluster, place=TP0):
    """Return whether consumers can read up to the end of the log."""
    at_end = cluster.last_stable_offset(place) == cluster.log_end_offset(place)
    return at_end and not cluster.open_transactions
