"""The modelled cluster of an in-memory Kafka, with its answers to a test's calls.

Why it exists: a test asks for an event that the model may bring about by itself at any time. The
model alone does not say that it has.
Owns: `MemoryCluster`. Must not know: threads, sockets, the arguments of a test.

Rules:
* A move that ends where it began is one that went away and came back: the next request of a client
  is refused once, as by a broker that has not taken over again. Requests between brokers find it
  back: the writing of markers, and a leader that asks a coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from txnproducer._broker.cluster import NOBODY, BrokerCluster, ClusterOptions
from txnproducer._broker.transaction_coordinator import LogWrite, Marker
from txnproducer._broker.transaction_metadata import TransactionMetadata
from txnproducer._protocol.messages import BrokerNode, CoordinatorType
from txnproducer._protocol.rng import Rng
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition


class _LookedUp(int):
    """A coordinator's broker as brokers find it, and not as the one that a client has asked."""


class _Leaders(dict[TopicPartition, int]):
    """The leaders by partition.

    Attributes:
        returned: the partitions that have left their leader and come back. The next look finds
            them without a leader.
    """

    def __init__(self, leaders: Mapping[TopicPartition, int]) -> None:
        super().__init__(leaders)
        self.returned: set[TopicPartition] = set()

    def __getitem__(self, place: TopicPartition) -> int:
        if place in self.returned:
            self.returned.remove(place)
            return NOBODY
        return super().__getitem__(place)


class MemoryCluster(BrokerCluster):
    """A cluster of brokers in memory, for one test.

    Args:
        options: the settings of the cluster.
        rng: the source of all randomness.
    """

    def __init__(self, options: ClusterOptions, rng: Rng) -> None:
        super().__init__(options, rng)
        # Names that no name service knows (RFC 6761), for a client that has not come by a producer
        # of the cluster: "broker-0" alone may be a host of the network that the test runs in.
        for n in self.nodes:
            self.nodes[n] = BrokerNode(n, f"broker-{n}.use-kafka-listen.invalid", 9092)
        # By id: how often time had ended a transaction of it when the id was last written.
        self._acts_when_written: Counter[str] = Counter()
        # Before any topic is created, since both have to see the same leaders.
        self._leaders = self.leaders = self.topology.leaders = _Leaders(self.leaders)
        # The ids and groups that have left their coordinator's broker and come back.
        self._returned: set[tuple[CoordinatorType, str]] = set()

    # --- brokers --------------------------------------------------------------------------------

    def stop_node(self, node_id: int, now_ms: int) -> None:
        """Stop a broker that is up."""
        if not self.is_up(node_id):
            raise ValueError(f"broker {node_id} is stopped already: start_node({node_id}) first")
        super().stop_node(node_id, now_ms)

    def start_node(self, node_id: int, now_ms: int) -> None:
        """Start a broker that is stopped."""
        if self.is_up(node_id):
            raise ValueError(f"broker {node_id} is up already: stop_node({node_id}) first")
        super().start_node(node_id, now_ms)

    # --- moves ----------------------------------------------------------------------------------

    def return_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Let the next request of a client for an id or a group find that it has moved."""
        self._returned.add((kind, key))

    def return_leader(self, place: TopicPartition) -> None:
        """Let the next batch of a client for a partition find that it has moved."""
        self._leaders.returned.add(place)

    def move_partition(self, place: TopicPartition, node_id: int, now_ms: int) -> None:
        """Give a partition another leader, or none (-1)."""
        # Before the move: the news of it name the leader by an index.
        self._leaders.returned.discard(place)
        super().move_partition(place, node_id, now_ms)

    def coordinator_node(self, kind: CoordinatorType, key: str) -> int:
        """Return the broker that coordinates an id or a group."""
        return _LookedUp(super().coordinator_node(kind, key))

    def check_coordinator(
        self, node_id: int, kind: CoordinatorType, key: str, now_ms: int
    ) -> ErrorCode:
        """Return the error if a broker is not the loaded coordinator of an id or a group."""
        # A leader that asks for a client passes on the broker that it has looked up.
        if (kind, key) in self._returned and not isinstance(node_id, _LookedUp):
            self._returned.remove((kind, key))
            return ErrorCode.NOT_COORDINATOR
        return super().check_coordinator(node_id, kind, key, now_ms)

    def write_marker(self, place: TopicPartition, marker: Marker, now_ms: int) -> ErrorCode:
        """Write a marker to a partition of records or of offsets."""
        returned = self._leaders.returned
        self._leaders.returned = set()
        code = super().write_marker(place, marker, now_ms)
        self._leaders.returned = returned
        return code

    # --- time-outs ------------------------------------------------------------------------------

    def log_write(self, changed: TransactionMetadata) -> LogWrite:
        """Decide the outcome of a write to the transaction log."""
        name = changed.transactional_id
        self._acts_when_written[name] = self.acts_of_time[name]
        return super().log_write(changed)

    def has_timed_out(self, transactional_id: str) -> bool:
        """Return whether the last change of an id was the abort at its transaction's time-out."""
        # The coordinator counts a time-out after it has written the abort and its completion. Both
        # come at once: here no marker takes time.
        written = self._acts_when_written[transactional_id]
        return self.acts_of_time[transactional_id] > written
