"""The modelled cluster: its brokers, the leaders and coordinators, and the time.

Why it exists: the simulator, the tests and the comparison with real brokers send their requests
through this one entry point.
Owns: `BrokerCluster`: topics, leaders, the brokers of coordinators, timers, refusals. Must not
know: the meaning of requests (`handlers/`), networks.

Rules:
* `handle` answers a request completely and at once. `advance` does everything that takes time.
* A broker that is down answers nothing: the code that carries requests calls `is_up` first.
* All randomness comes from the rng that the cluster was made with.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from zlib import crc32

from txnproducer._broker.group_offsets import GroupOffsets
from txnproducer._broker.options import ClusterOptions
from txnproducer._broker.partition_log import PartitionLog, ReadRecord
from txnproducer._broker.resources import Resource
from txnproducer._broker.topics import Topics
from txnproducer._broker.transaction_coordinator import LogWrite, Marker, TransactionCoordinator
from txnproducer._broker.transaction_metadata import TransactionMetadata
from txnproducer._protocol.messages import (
    ApiKey,
    BrokerNode,
    CoordinatorType,
)
from txnproducer._protocol.rng import Rng
from txnproducer._protocol.versions import (
    TRANSACTION_VERSION_FEATURE,
    ApiVersionRange,
    FinalizedFeatures,
    NodeApiVersions,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

__all__ = ["BrokerCluster", "ClusterOptions", "Resource"]

OFFSETS_TOPIC = "__consumer_offsets"
NOBODY = -1
AppendDecision = Callable[[], tuple[ErrorCode, bool]]

_VERSIONS = {
    ApiKey.PRODUCE: ApiVersionRange(3, 13),
    ApiKey.METADATA: ApiVersionRange(0, 13),
    ApiKey.FIND_COORDINATOR: ApiVersionRange(0, 6),
    ApiKey.API_VERSIONS: ApiVersionRange(0, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiVersionRange(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiVersionRange(0, 4),
    ApiKey.END_TXN: ApiVersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiVersionRange(0, 0),
}
# One version below those that carry transactions v2, and below Metadata v10, which has topic ids.
_VERSIONS_BEFORE_V2 = {
    ApiKey.PRODUCE: ApiVersionRange(3, 11),
    ApiKey.METADATA: ApiVersionRange(0, 9),
    ApiKey.END_TXN: ApiVersionRange(0, 4),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 4),
}
# Kafka 3.9: without transactions v2 (KIP-890), and without Metadata v13 (KIP-1102).
_VERSIONS_BEFORE_4 = {
    ApiKey.PRODUCE: ApiVersionRange(3, 11),
    ApiKey.METADATA: ApiVersionRange(0, 12),
    ApiKey.END_TXN: ApiVersionRange(0, 4),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 4),
}
# The member of the group, which v3 carries, came with KIP-447 in Kafka 2.5.
_VERSIONS_BEFORE_2_5 = {ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 2)}
_TRANSACTIONS_V2 = 2


class BrokerCluster:
    """A cluster of brokers in memory.

    Args:
        options: the settings of the cluster.
        rng: the source of all randomness.

    Attributes:
        transaction_version: the finalized feature. Change it with `finalize`.
        topology: the topics, as they are and as each broker knows them.
        decide_log_write: decides the outcome of a write to the transaction log. Replace it for
            faults.
        decide_append: returns the error for a partition of a Produce request, and whether the
            batch is appended nevertheless. Replace it for faults.
        decide_offsets_append: the same for the offsets of a TxnOffsetCommit request.
        decide_wrong_topic_id: returns the error for a batch to a deleted topic. Replace it for
            faults.
        decide_refusal: returns the error of a coordinator that refuses a request without any
            change. Replace it for faults.
        denied: the resources to which access is refused.
        compacted: the topics whose records need a key.
        counts: how often each event occurred that no request caused: refused, stale, timed out,
            expired, forgotten, rotated.
        acts_of_time: for each transactional id, how often its transaction timed out or the id
            expired.
        misled: the producers to which a former coordinator has told a success from its memory,
            with transactions v1.
    """

    def __init__(self, options: ClusterOptions, rng: Rng) -> None:
        self.options = options
        self._rng = rng
        self.nodes = {n: BrokerNode(n, f"broker-{n}", 9092) for n in range(options.node_count)}
        self._down: set[int] = set()
        self.transaction_version = options.transaction_version
        self._features_epoch = 1
        self.counts: Counter[str] = Counter()
        self._timers: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()
        self.topology = Topics(options, rng, self.nodes, self.call_at, self.counts)
        self.topics = self.topology.partition_counts
        self.logs = self.topology.logs
        self.leaders = self.topology.leaders
        self.leader_epochs = self.topology.leader_epochs
        self.compacted: set[str] = set()
        count = options.coordinator_count
        self._transaction_coordinators = [TransactionCoordinator(self) for _ in range(count)]
        self._group_offsets = [GroupOffsets() for _ in range(count)]
        self._coordinator_nodes = {
            kind: [n % options.node_count for n in range(count)] for kind in CoordinatorType
        }
        self._group_loading_until_ms = [0] * count
        self.denied: set[tuple[Resource, str]] = set()
        self.acts_of_time: Counter[str] = Counter()
        self.misled: set[ProducerIdAndEpoch] = set()
        self.decide_log_write: Callable[[TransactionMetadata], LogWrite] = lambda _: LogWrite.DONE
        self.decide_append: AppendDecision = lambda: (ErrorCode.NONE, True)
        self.decide_offsets_append: AppendDecision = lambda: (ErrorCode.NONE, True)
        self.decide_wrong_topic_id: Callable[[], ErrorCode] = lambda: ErrorCode.UNKNOWN_TOPIC_ID
        self.decide_refusal: Callable[[], ErrorCode] = lambda: ErrorCode.NONE
        self._producer_ids = itertools.count(1000)
        self._check_every(options.abort_check_interval_ms, 0)

    # --- requests -------------------------------------------------------------------------------

    def api_versions(self, node_id: int) -> NodeApiVersions:
        """Return the API versions that a broker offers in its handshake."""
        newest = self.options.init_producer_id_version
        ranges = {**_VERSIONS, ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, newest)}
        if self.options.is_before_2_5:
            # DescribeTransactions came later (KIP-664).
            del ranges[ApiKey.DESCRIBE_TRANSACTIONS]
        if self.options.is_before_4:
            ranges |= _VERSIONS_BEFORE_4
        if self.is_old(node_id):
            ranges |= _VERSIONS_BEFORE_V2
        if self.options.is_before_2_5:
            ranges |= _VERSIONS_BEFORE_2_5
        return NodeApiVersions(ranges) if node_id in self.nodes else NodeApiVersions()

    def knows_topic_ids(self, node_id: int) -> bool:
        """Return whether a broker identifies topics by their ids."""
        return not self.is_old(node_id)

    def takes_topic_ids(self, node_id: int) -> bool:
        """Return whether a broker takes topic ids in Produce requests (KIP-516)."""
        return self.knows_topic_ids(node_id) and not self.options.is_before_4

    def told_log_start(self, log: PartitionLog) -> int:
        """Return the log start offset for an UNKNOWN_PRODUCER_ID error, or -1 for unknown."""
        # A broker answers -1 if the partition moved away before it made the answer. Java's
        # `canRetry` then repeats the batch until it learns the offset, so both answers have to
        # occur.
        return log.log_start_offset if self._rng.randrange(4) else -1

    def is_old(self, node_id: int) -> bool:
        return (
            node_id < self.options.old_node_count and self.transaction_version < _TRANSACTIONS_V2
        )

    @property
    def features(self) -> FinalizedFeatures:
        """The finalized features."""
        levels = {TRANSACTION_VERSION_FEATURE: self.transaction_version}
        return FinalizedFeatures(self._features_epoch, levels)

    def finalize(self, transaction_version: int) -> None:
        """Upgrade or downgrade the version of transactions."""
        self.transaction_version = transaction_version
        # Clients keep the features with the highest epoch, so a change without a new epoch would
        # stay unseen.
        self._features_epoch += 1

    def is_allowed(self, resource: Resource, name: str) -> bool:
        """Return whether access to a resource is allowed."""
        if self.denied and (resource, name) in self.denied:
            self.counts["refused"] += 1
            return False
        return True

    # --- time -----------------------------------------------------------------------------------

    def call_at(self, due_ms: int, action: Callable[[int], None]) -> None:
        """Schedule an action. `advance` runs it when its time is reached."""
        # The counter keeps timers of the same time in their order. Without it the heap would
        # compare the actions, which have no order.
        heapq.heappush(self._timers, (due_ms, next(self._order), action))

    def next_event_ms(self) -> int:
        """Return when the next timer is due."""
        return self._timers[0][0]

    def advance(self, now_ms: int) -> None:
        """Run the actions that are due."""
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            due_ms, _, action = heapq.heappop(timers)
            action(due_ms)

    def _check_every(self, interval_ms: int, now_ms: int) -> None:
        def check(due_ms: int) -> None:
            for number, coordinator in enumerate(self._transaction_coordinators):
                # A coordinator without a live broker aborts nothing until another broker takes it
                # over.
                if self.is_up(self._coordinator_nodes[CoordinatorType.TRANSACTION][number]):
                    timed_out = coordinator.abort_timed_out(due_ms)
                    self.counts["timed out"] += len(timed_out)
                    self.acts_of_time.update(timed_out)
                    self._expire_ids(coordinator, due_ms)
            self._expire_producers(due_ms)
            # From the time at which this check was due: one long step of `advance` runs every
            # check in it.
            self._check_every(interval_ms, due_ms)

        self.call_at(now_ms + interval_ms, check)

    def _expire_ids(self, coordinator: TransactionCoordinator, now_ms: int) -> None:
        expiration_ms = self.options.transactional_id_expiration_ms
        if expiration_ms is not None:
            forgotten = coordinator.forget_idle(now_ms - expiration_ms)
            self.counts["expired"] += len(forgotten)
            self.acts_of_time.update(forgotten)

    def _expire_producers(self, now_ms: int) -> None:
        expiration_ms = self.options.producer_id_expiration_ms
        if expiration_ms is not None:
            for log in self.logs.values():
                forgotten = log.states.forget_idle(now_ms - expiration_ms)
                self.counts["forgotten"] += forgotten
                if forgotten and self.options.is_before_2_5 and self._rng.randrange(2):
                    # Brokers before 2.5 forget a producer when retention deletes its records.
                    log.log_start_offset = log.last_stable_offset

    def marker_delay_ms(self) -> int:
        """Return how long a marker takes to reach its partition."""
        longest_ms = self.options.max_marker_delay_ms
        return self._rng.randrange(longest_ms + 1) if longest_ms else 0

    # --- topics and leaders ---------------------------------------------------------------------

    def create_topic(self, name: str, partition_count: int, now_ms: int | None = None) -> None:
        """Create a topic. Brokers learn of it after a delay, or at once if no time is given."""
        self.topology.create(name, partition_count, now_ms)

    def delete_topic(self, name: str, now_ms: int) -> None:
        """Delete a topic. Brokers learn of it after a delay."""
        self.topology.delete(name, now_ms)
        # A delay of 0 is a timer, too: the next request at this time must see the change.
        self.advance(now_ms)

    def add_partitions(self, name: str, partition_count: int, now_ms: int) -> None:
        """Raise the number of a topic's partitions to the given total."""
        self.topology.add_partitions(name, partition_count, now_ms)
        self.advance(now_ms)

    def known_leader(self, node_id: int, place: TopicPartition) -> tuple[int, int]:
        """Return a partition's leader and leader epoch as a broker knows them."""
        return self.topology.known_leader(node_id, place)

    def move_partition(self, place: TopicPartition, node_id: int, now_ms: int) -> None:
        """Give a partition another leader, or none (-1). Brokers learn of it after a delay."""
        self.topology.move(place, node_id, now_ms)
        self.advance(now_ms)

    # --- coordinators ---------------------------------------------------------------------------

    def coordinator_number(self, key: str) -> int:
        """Return the partition in which an id or a group is kept."""
        # Python's `hash` of a string differs between processes, and a seed has to give the same
        # run.
        return crc32(key.encode()) % self.options.coordinator_count

    def coordinator_node(self, kind: CoordinatorType, key: str) -> int:
        """Return the broker that coordinates an id or a group."""
        return self._coordinator_nodes[kind][self.coordinator_number(key)]

    def transaction_coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """Return the coordinator of an id, on whichever broker it is."""
        return self._transaction_coordinators[self.coordinator_number(transactional_id)]

    def group_offsets(self, group_id: str) -> GroupOffsets:
        """Return the offsets partition of a group."""
        return self._group_offsets[self.coordinator_number(group_id)]

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the partition that AddOffsetsToTxn adds for a group."""
        return TopicPartition(OFFSETS_TOPIC, self.coordinator_number(group_id))

    def check_coordinator(
        self, node_id: int, kind: CoordinatorType, key: str, now_ms: int
    ) -> ErrorCode:
        """Return the error if a broker is not the loaded coordinator of an id or a group."""
        number = self.coordinator_number(key)
        # First: a broker loads only the partitions that it leads, so any other one just says so.
        if self._coordinator_nodes[kind][number] != node_id:
            return ErrorCode.NOT_COORDINATOR
        if kind is CoordinatorType.TRANSACTION:
            until_ms = self._transaction_coordinators[number].loading_until_ms
        else:
            until_ms = self._group_loading_until_ms[number]
        is_loading = now_ms < until_ms
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE

    def move_coordinator(
        self,
        kind: CoordinatorType,
        number: int,
        node_id: int,
        now_ms: int,
        *,
        resigning_ms: int = 0,
    ) -> None:
        """Move one partition of ids, or of groups. The old broker may not know it for a while."""
        old_node_id = self._coordinator_nodes[kind][number]
        self._coordinator_nodes[kind][number] = node_id
        loading_ms = self.options.loading_ms
        if kind is CoordinatorType.TRANSACTION:
            coordinator = self._transaction_coordinators[number]
            coordinator.resign(old_node_id, now_ms + resigning_ms)
            coordinator.take_over(now_ms, loading_ms)
        else:
            self._group_loading_until_ms[number] = now_ms + loading_ms
            # Verifications are not in the log: they end with the broker that ran them.
            self._group_offsets[number].states.verifications.clear()

    def preset_epoch(self, transactional_id: str, epoch: int) -> None:
        """Create an id that has used all epochs below the given one."""
        self.transaction_coordinator(transactional_id).preset_epoch(transactional_id, epoch)

    def rehash_coordinators(self, now_ms: int) -> None:
        """Move every coordinator to a broker that is up, if there is one."""
        if self.pick_node() == NOBODY:
            return
        for kind in CoordinatorType:
            for number in range(self.options.coordinator_count):
                self.move_coordinator(kind, number, self.pick_node(), now_ms)

    # --- brokers --------------------------------------------------------------------------------

    def is_up(self, node_id: int) -> bool:
        """Return whether a broker is up."""
        return node_id in self.nodes and node_id not in self._down

    def pick_node(self) -> int:
        """Return any broker that is up, or -1 if there is none."""
        up = [n for n in self.nodes if n not in self._down]
        return up[self._rng.randrange(len(up))] if up else NOBODY

    def stop_node(self, node_id: int, now_ms: int) -> None:
        """Stop a broker. The brokers that are up take over its partitions and coordinators."""
        # Before the moves: `pick_node` must not choose the broker that stops.
        self._down.add(node_id)
        for place, leader in list(self.leaders.items()):
            if leader == node_id:
                self.move_partition(place, self.pick_node(), now_ms)
        for kind, places in self._coordinator_nodes.items():
            for number, coordinator in enumerate(places):
                # Unlike a partition, a coordinator is never without a broker: with all of them
                # down it stays where it is, and FindCoordinator answers COORDINATOR_NOT_AVAILABLE.
                if coordinator == node_id and self.pick_node() != NOBODY:
                    self.move_coordinator(kind, number, self.pick_node(), now_ms)

    def start_node(self, node_id: int, now_ms: int) -> None:
        """Start a stopped broker. It takes over partitions and coordinators without a broker."""
        self._down.discard(node_id)
        for place, leader in list(self.leaders.items()):
            if leader == NOBODY:
                self.move_partition(place, node_id, now_ms)
        for kind, places in self._coordinator_nodes.items():
            for number, coordinator in enumerate(places):
                # One that stayed here while the broker was down moves as well: a restart loses its
                # memory, so it has to be loaded from the log again.
                if not self.is_up(coordinator) or coordinator == node_id:
                    self.move_coordinator(kind, number, node_id, now_ms)

    # --- services for coordinators ---------------------------------------------------------------

    def new_producer_id(self) -> int:
        """Return a producer id that was never used."""
        return next(self._producer_ids)

    def log_write(self, changed: TransactionMetadata) -> LogWrite:
        """Decide the outcome of a write to the transaction log."""
        return self.decide_log_write(changed)

    def write_marker(self, place: TopicPartition, marker: Marker, now_ms: int) -> ErrorCode:
        """Write a marker to a partition of records or of offsets."""
        target: PartitionLog | GroupOffsets
        if place.topic == OFFSETS_TOPIC:
            # The leader of a partition of `__consumer_offsets` is the coordinator of its groups.
            leader = self._coordinator_nodes[CoordinatorType.GROUP][place.partition]
            target = self._group_offsets[place.partition]
        elif place not in self.logs:
            # TransactionMarkerChannelManager drops a partition that is gone from the metadata: a
            # transaction must not wait for ever for a marker that nobody can take.
            return ErrorCode.NONE  # the topic was deleted
        else:
            leader, target = self.leaders[place], self.logs[place]
        if not self.is_up(leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return target.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            now_ms,
            is_commit=marker.is_commit,
            is_v2=marker.is_v2,
        )

    # --- questions of consumers and judges ------------------------------------------------------

    def read(
        self, place: TopicPartition, *, read_committed: bool, from_offset: int = 0
    ) -> list[ReadRecord]:
        """Return the records that a consumer reads."""
        return self.logs[place].read(read_committed=read_committed, from_offset=from_offset)

    def log_end_offset(self, place: TopicPartition) -> int:
        """Return the offset of the next record."""
        return self.logs[place].log_end_offset

    def last_stable_offset(self, place: TopicPartition) -> int:
        """Return the offset up to which read_committed consumers read."""
        return self.logs[place].last_stable_offset

    def committed_offsets(
        self, group_id: str, *, require_stable: bool
    ) -> Mapping[TopicPartition, OffsetAndMetadata] | ErrorCode:
        """Return a group's offsets, or UNSTABLE_OFFSET_COMMIT if some are pending."""
        offsets = self.group_offsets(group_id)
        if require_stable and offsets.pending_partitions(group_id):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        return offsets.committed(group_id)

    def producer_states(self, place: TopicPartition) -> list[tuple[int, int, int]]:
        """Return producer id, epoch and last sequence of each producer known to a partition."""
        return [
            (producer_id, state.epoch, state.last_sequence)
            for producer_id, state in self.logs[place].states.producers.items()
        ]

    def has_forgotten(self, place: TopicPartition, producer_id: int) -> bool:
        """Return whether a partition forgot a producer that has appended nothing since."""
        return place in self.logs and producer_id in self.logs[place].states.forgotten

    def offsets_history(self) -> list[tuple[str, TopicPartition, OffsetAndMetadata]]:
        """Return every offset that was committed for a group, for each group in order."""
        return [change for offsets in self._group_offsets for change in offsets.history]

    def has_lost_offsets(self, group_id: str) -> bool:
        """Return whether a broker before 4.0 has lost pending offsets of a group."""
        return group_id in self.group_offsets(group_id).lost

    @property
    def has_pending_offsets(self) -> bool:
        """Whether offsets are pending until their transaction ends."""
        return any(offsets.has_pending for offsets in self._group_offsets)

    @property
    def transactional_ids(self) -> list[str]:
        """The transactional ids that a coordinator knows."""
        return [name for c in self._transaction_coordinators for name in c.ids]

    @property
    def open_transactions(self) -> list[str]:
        """The transactional ids whose transaction has not ended, or still has markers to write."""
        return [name for c in self._transaction_coordinators for name in c.open_ids]
