"""`InMemoryKafka`: a modelled Kafka in this process, for unit tests that take milliseconds.

Why it exists: a service's tests want the producer that ships, a broker's own answers, and the
failures that a real broker gives only with much effort. There is no JVM and no port.
Owns: the public calls of a test. Must not know: bytes, sockets.

Rules:
* The model is held to real brokers' answers by one suite of cases (docs/conformance.md). A test of
  consumers, of brokers' settings or of performance needs a real one: `EmbeddedKafka`.
* A fault is asked for by the API's name in Kafka's protocol, and meets the next request of it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._broker.handlers import handle
from txnproducer._protocol.messages import ApiKey, CoordinatorType, InitProducerIdRequest
from txnproducer._server.login import Users
from txnproducer._server.script import Fault, ScriptedFault
from txnproducer._wire.platform import Platform
from txnproducer._wire.tcp import BufferSizes
from txnproducer.errors import DisconnectError, ErrorCode
from txnproducer.producer import TransactionalProducer
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._memory_server import MemoryServer

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

_APIS: Final[Mapping[str, ApiKey]] = {
    "".join(word.capitalize() for word in api.name.split("_")): api
    for api in ApiKey
    if api is not ApiKey.API_VERSIONS
}
_LEAST_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record as a consumer gets it.

    Attributes:
        timestamp_ms: milliseconds since the epoch.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), repr=False)
    timestamp_ms: int = field(default=-1, repr=False)


@dataclass(frozen=True, slots=True)
class MemoryTransaction:
    """A transactional id as its coordinator knows it.

    Attributes:
        state: by Kafka's names, as `Ongoing` or `CompleteCommit`.
        partitions: in the transaction that is open or being ended.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    partitions: frozenset[TopicPartition]


class InMemoryKafka:
    """A modelled Kafka cluster, without a JVM and without ports.

    For example::

        with InMemoryKafka(topics={"orders": 3}) as kafka:
            with kafka.producer(transactional_id="t") as producer:
                ...
            assert [record.value for record in kafka.records("orders")] == [b"order 1"]

    Args:
        topics: The number of partitions by topic.
        nodes: The number of brokers.
        transaction_version: The finalized `transaction.version`: 2 or 1.
        users: Names and passwords for SASL logins by PLAIN and SCRAM; None for listeners without
            a login.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        nodes: int = 1,
        transaction_version: int = 2,
        users: Mapping[str, str] | None = None,
    ) -> None:
        if transaction_version not in (1, 2):
            raise ValueError(f"transaction_version is {transaction_version}: it must be 1 or 2")
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}: a cluster has at least one")
        options = ClusterOptions(node_count=nodes, transaction_version=transaction_version)
        # Seeded: two runs of a test see the same cluster.
        cluster = BrokerCluster(options, random.Random(1))
        self._nodes = {(node.host, node.port): n for n, node in cluster.nodes.items()}
        self._server = MemoryServer(cluster, None if users is None else Users(dict(users)))
        platform = _MemoryPlatform(self._open_socket)

        class _MemoryProducer(TransactionalProducer):
            _platform = platform

        _MemoryProducer.__name__ = _MemoryProducer.__qualname__ = TransactionalProducer.__name__
        self._producer_type = _MemoryProducer
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster. Producers that are still open lose their connections.

        Its records can still be read.
        """
        self._server.close()

    # --- clients --------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses. Only `producer` can use them; for others see `listen`."""
        return ",".join(f"{host}:{port}" for host, port in self._nodes)

    def producer(
        self, transactional_id: str | None = None, **settings: Any
    ) -> TransactionalProducer:
        """Make a producer that is connected to this cluster. Its owner closes it.

        Args:
            transactional_id: as of `TransactionalProducer`.
            settings: likewise.
        """
        return self._producer_type(self.bootstrap_servers, transactional_id, **settings)

    def listen(self) -> str:
        """Open a port on 127.0.0.1 for each broker. Return the addresses, for any client."""
        return ",".join(f"{host}:{port}" for host, port in self._server.listen())

    def _open_socket(
        self,
        host: str,
        port: int,
        buffers: BufferSizes,  # noqa: ARG002 - a socket without a network keeps its sizes
        remaining_s: Callable[[], float],
        on_socket: Callable[[socket.socket], None],
    ) -> socket.socket:
        node_id = self._nodes.get((host, port))
        try:
            if node_id is None:
                raise ConnectionRefusedError("no broker of this cluster has this address")
            sock = self._server.connect(node_id)
        except OSError as error:
            remaining_s()
            raise DisconnectError(f"cannot connect to {host}:{port} ({error})") from error
        on_socket(sock)
        return sock

    # --- topics and records ---------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic. Every broker knows it at once."""
        self._server.call(lambda cluster, _: cluster.create_topic(name, partitions))

    def records(
        self, topic: str, *, isolation: Isolation = "read_committed"
    ) -> list[MemoryRecord]:
        """Return the records of a topic that a consumer gets, by partition and offset.

        Args:
            topic: its name.
            isolation: "read_committed" ends before the first open transaction, and leaves aborted
                records out.

        Raises:
            KeyError: there is no such topic.
        """
        if isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(
                f"isolation is {isolation!r}: it must be read_committed or read_uncommitted"
            )
        is_committed = isolation == "read_committed"

        def read(cluster: BrokerCluster, _: int) -> list[MemoryRecord]:
            places = [TopicPartition(topic, n) for n in range(cluster.topics[topic])]
            return [
                record
                for place in places
                for record in _visible(cluster, place, is_committed=is_committed)
            ]

        return self._server.call(read)

    # --- transactions ---------------------------------------------------------------------------

    def transactions(self) -> dict[str, MemoryTransaction]:
        """Return each transactional id that was ever used, as its coordinator knows it."""

        def describe(cluster: BrokerCluster, _: int) -> dict[str, MemoryTransaction]:
            return {name: _transaction(cluster, name) for name in cluster.transactional_ids}

        return self._server.call(describe)

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that were committed for a consumer group."""

        def read(cluster: BrokerCluster, _: int) -> dict[TopicPartition, OffsetAndMetadata]:
            return cluster.group_offsets(group_id).committed(group_id)

        return self._server.call(read)

    def fence(self, transactional_id: str) -> None:
        """Let a newer producer of the id take over, as `init_transactions()` of one does."""
        request = InitProducerIdRequest(transactional_id, _LEAST_TIMEOUT_MS)

        def take_over(cluster: BrokerCluster, now_ms: int) -> None:
            coordinator = cluster.coordinator_node(CoordinatorType.TRANSACTION, transactional_id)
            # The first answer may only say that the open transaction is being aborted.
            for _ in range(2):
                handle(cluster, coordinator, request, now_ms)

        self._server.call(take_over)

    def time_out_transaction(self, transactional_id: str) -> None:
        """Let the coordinator abort the id's open transaction, as if its time were up.

        Raises:
            ValueError: none is open.
        """

        def abort(cluster: BrokerCluster, now_ms: int) -> None:
            if transactional_id not in cluster.open_transactions:
                raise ValueError(f"{transactional_id!r} has no open transaction to time out")
            coordinator = cluster.transaction_coordinator(transactional_id)
            known = coordinator.find(transactional_id)
            if known is not None:
                coordinator.fence(known, now_ms)

        self._server.call(abort)

    # --- brokers --------------------------------------------------------------------------------

    def move_coordinator(self, transactional_id: str) -> None:
        """Move the id's transaction coordinator to the next broker."""
        self._move(CoordinatorType.TRANSACTION, transactional_id)

    def move_group_coordinator(self, group_id: str) -> None:
        """Move a group's coordinator to the next broker."""
        self._move(CoordinatorType.GROUP, group_id)

    def _move(self, kind: CoordinatorType, key: str) -> None:
        def move(cluster: BrokerCluster, now_ms: int) -> None:
            node_id = (cluster.coordinator_node(kind, key) + 1) % len(cluster.nodes)
            cluster.move_coordinator(kind, cluster.coordinator_number(key), node_id, now_ms)

        self._server.call(move)

    def move_leader(self, topic: str, partition: int) -> None:
        """Give a partition the next broker as its leader."""
        place = TopicPartition(topic, partition)

        def move(cluster: BrokerCluster, now_ms: int) -> None:
            node_id = (cluster.leaders[place] + 1) % len(cluster.nodes)
            cluster.move_partition(place, node_id, now_ms)

        self._server.call(move)

    def stop_node(self, node: int) -> None:
        """Stop a broker. Its connections end, and others take over its partitions and ids."""
        self._server.call(lambda cluster, now_ms: cluster.stop_node(node, now_ms))

    def start_node(self, node: int) -> None:
        """Start a stopped broker."""
        self._server.call(lambda cluster, now_ms: cluster.start_node(node, now_ms))

    @contextmanager
    def stopped(self, node: int) -> Iterator[None]:
        """Keep a broker stopped for the length of a block."""
        self.stop_node(node)
        try:
            yield
        finally:
            self.start_node(node)

    # --- faults ---------------------------------------------------------------------------------

    def fail_next(self, api: str, *, error: str | int, times: int = 1) -> None:
        """Refuse the next requests of an API.

        Args:
            api: its name in Kafka's protocol, as "EndTxn".
            error: the name or the number of the error, as "NOT_COORDINATOR".
            times: how many requests.
        """
        self._add(api, Fault(ScriptedFault.REFUSED, code=_code(error)), times)

    def lose_request(self, api: str, *, times: int = 1) -> None:
        """Close the connection on which the next request of an API arrives, unread."""
        self._add(api, Fault(ScriptedFault.REQUEST_LOST), times)

    def lose_answer(self, api: str, *, times: int = 1) -> None:
        """Let the next request of an API take effect, and close the connection without answer."""
        self._add(api, Fault(ScriptedFault.ANSWER_LOST), times)

    def delay(self, api: str, seconds: float, *, times: int = 1) -> None:
        """Send the answer to the next request of an API late. It takes effect at once."""
        self._add(api, Fault(ScriptedFault.SLOW, delay_ms=round(seconds * 1000)), times)

    def remaining_faults(self) -> dict[str, int]:
        """Return how many faults have met no request so far, by API."""
        names = {api: name for name, api in _APIS.items()}
        found = self._server.call(lambda _, __: self._server.script.remaining())
        return {names[api]: count for api, count in found.items()}

    def clear_faults(self) -> None:
        """Forget the faults that have met no request."""
        self._server.call(lambda _, __: self._server.script.clear())

    def _add(self, api: str, fault: Fault, times: int) -> None:
        if api not in _APIS:
            raise ValueError(f"{api!r} is no API of a producer: it is one of {', '.join(_APIS)}")
        if times < 1:
            raise ValueError(f"times is {times}: a fault meets at least one request")
        self._server.call(lambda _, __: self._server.script.add(_APIS[api], fault, times))


class _MemoryPlatform(Platform):
    """The system, but for the sockets."""

    def __init__(self, open_socket: Callable[..., socket.socket]) -> None:
        self._open_socket = open_socket

    def open_socket(self, *arguments: Any) -> socket.socket:
        """Connect to a broker of the cluster."""
        return self._open_socket(*arguments)


def _code(error: str | int) -> ErrorCode:
    try:
        return ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ValueError(
            f"{error!r} is no error of Kafka's protocol; names are as NOT_COORDINATOR"
        ) from None


def _visible(
    cluster: BrokerCluster, place: TopicPartition, *, is_committed: bool
) -> Iterator[MemoryRecord]:
    for entry in cluster.logs[place].visible_entries(read_committed=is_committed):
        for record in entry.batch or ():
            yield MemoryRecord(
                place.topic,
                place.partition,
                entry.base_offset + record.offset_delta,
                record.key,
                record.value,
                tuple(record.headers),
                record.timestamp_ms,
            )


def _transaction(cluster: BrokerCluster, name: str) -> MemoryTransaction:
    known = cluster.transaction_coordinator(name).find(name)
    if known is None:  # the caller has the names of ids that exist
        raise KeyError(name)
    return MemoryTransaction(
        name, known.producer_id, known.producer_epoch, known.state.value, known.partitions
    )
