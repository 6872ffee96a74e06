"""A small stage for the broker model's own tests: one cluster, one clock, short requests.

Owns: `Bench`, `Who`, `HighestRng`, `batch_of`. Must not know: what the answers should be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from integration.conformance.target import coordinated_by
from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._protocol import messages as m
from txnproducer._record import RecordBatch, RecordBatchBuilder
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

TOPIC = "t"
T0, T1, T2 = (TopicPartition(TOPIC, number) for number in range(3))
GROUP = "g"


class HighestRng:
    """An Rng that returns its highest number, or 0: delays are as long as possible, or none.

    Attributes:
        is_high: whether it returns the highest number.
    """

    is_high = True

    def random(self) -> float:
        raise AssertionError("the model draws integers alone")

    def randrange(self, stop: int, /) -> int:
        return stop - 1 if self.is_high else 0


class Who(NamedTuple):
    """A producer. Without a transactional id it is only idempotent."""

    transactional_id: str | None
    producer_id: int
    epoch: int


def batch_of(
    who: Who, sequence: int, *values: str, is_transactional: bool | None = None
) -> RecordBatch:
    """Build a batch, which is transactional if its producer is, or if a test says so."""
    builder = RecordBatchBuilder(100_000)
    for value in values or ("v",):
        builder.append(1_000, b"k", value.encode())
    if is_transactional is None:
        is_transactional = who.transactional_id is not None
    builder.set_producer_state(
        who.producer_id, who.epoch, sequence, is_transactional=is_transactional
    )
    return RecordBatch(bytes(builder.build()))


class Bench:
    """A cluster with a topic of three partitions. Broker p leads partition p.

    Args:
        options: of the cluster.
    """

    def __init__(self, **options: Any) -> None:
        self.rng = HighestRng()
        self.cluster = BrokerCluster(ClusterOptions(**options), self.rng)
        self.cluster.create_topic(TOPIC, 3)
        self.now_ms = 0

    @property
    def is_v2(self) -> bool:
        return self.cluster.transaction_version >= 2

    def pass_ms(self, time_ms: int) -> None:
        """Let time go by, with all that is due on the way."""
        self.now_ms += time_ms
        self.cluster.advance(self.now_ms)

    # --- requests -------------------------------------------------------------------------------

    def ask(self, request: m.Request, node_id: int | None = None) -> Any:
        """Put a request to the named broker, or to the one that it is for."""
        node = self._home(request) if node_id is None else node_id
        return handlers.handle(self.cluster, node, request, self.now_ms)

    def _home(self, request: m.Request) -> int:
        if isinstance(request, m.ProduceRequest):
            return self.cluster.leaders[request.partitions[0].topic_partition]
        key = coordinated_by(request)
        return 0 if key is None else self.cluster.coordinator_node(*key)

    def init(self, name: str = "a", *, timeout_ms: int = 60_000) -> Who:
        """Become an id's producer."""
        answer = self.ask(m.InitProducerIdRequest(name, timeout_ms))
        assert answer.error_code == ErrorCode.NONE
        return Who(name, answer.producer_id, answer.producer_epoch)

    def init_code(self, name: str = "a") -> int:
        """Return the verdict of InitProducerId."""
        return int(self.ask(m.InitProducerIdRequest(name, 60_000)).error_code)

    def add(self, who: Who, *places: TopicPartition, node_id: int | None = None) -> set[int]:
        """Add partitions, and return the verdicts."""
        name = who.transactional_id or ""
        request = m.AddPartitionsToTxnRequest(name, who.producer_id, who.epoch, places)
        return {result.error_code for result in self.ask(request, node_id).results}

    def produce(
        self, who: Who, place: TopicPartition, sequence: int, *values: str, node: int | None = None
    ) -> m.ProducePartitionResponse:
        """Produce one batch."""
        data = bytes(batch_of(who, sequence, *values))
        is_v2 = self.is_v2 and who.transactional_id is not None
        parts = (m.ProducePartition(place, data),)
        request = m.ProduceRequest(who.transactional_id, -1, 30_000, parts, is_v2)
        (answer,) = self.ask(request, node).partitions
        assert isinstance(answer, m.ProducePartitionResponse)
        return answer

    def open(
        self, *places: TopicPartition, name: str = "a", value: str = "v", timeout_ms: int = 60_000
    ) -> Who:
        """Begin a transaction with a record in each partition, as a new producer."""
        who = self.init(name, timeout_ms=timeout_ms)
        self.go_on(who, *places, value=value)
        return who

    def go_on(self, who: Who, *places: TopicPartition, value: str = "v", at: int = 0) -> None:
        """Begin a transaction of a producer that there is."""
        if not self.is_v2:
            assert self.add(who, *places) == {ErrorCode.NONE}
        for place in places:
            assert self.produce(who, place, at, value).error_code == ErrorCode.NONE

    def end(self, who: Who, *, commit: bool, node_id: int | None = None) -> m.EndTxnResponse:
        """End the transaction."""
        name = who.transactional_id or ""
        request = m.EndTxnRequest(name, who.producer_id, who.epoch, commit, self.is_v2)
        answer = self.ask(request, node_id)
        assert isinstance(answer, m.EndTxnResponse)
        return answer

    def commit(self, who: Who) -> Who:
        """Commit, and return the identity that follows."""
        answer = self.end(who, commit=True)
        assert answer.error_code == ErrorCode.NONE
        if not self.is_v2:
            return who
        return Who(who.transactional_id, answer.producer_id, answer.producer_epoch)

    def add_offsets(self, who: Who) -> int:
        """Add the group to the transaction, and return the verdict."""
        name = who.transactional_id or ""
        request = m.AddOffsetsToTxnRequest(name, who.producer_id, who.epoch, GROUP)
        return int(self.ask(request).error_code)

    def commit_offset(
        self,
        who: Who,
        offset: int,
        place: TopicPartition = T0,
        *,
        metadata: str = "",
        node_id: int | None = None,
        **member: Any,
    ) -> int:
        """Write an offset of the group in the transaction, and return the verdict."""
        request = m.TxnOffsetCommitRequest(
            who.transactional_id or "",
            GROUP,
            who.producer_id,
            who.epoch,
            ((place, OffsetAndMetadata(offset, metadata=metadata)),),
            is_transaction_v2_enabled=self.is_v2,
            **member,
        )
        (result,) = self.ask(request, node_id).results
        return int(result.error_code)

    def describe(self, name: str = "a") -> m.TransactionDescription:
        """Look at an id."""
        answer = self.ask(m.DescribeTransactionsRequest((name,)))
        (found,) = answer.transactions
        assert isinstance(found, m.TransactionDescription)
        return found

    # --- looking --------------------------------------------------------------------------------

    def values(self, place: TopicPartition, *, committed: bool = True) -> list[str]:
        """Return the values that a consumer reads."""
        records = self.cluster.read(place, read_committed=committed)
        return [(record.value or b"").decode() for record in records]

    def markers(self, place: TopicPartition) -> list[tuple[int, bool]]:
        """Return a partition's control records: each one's epoch, and whether it commits."""
        return [
            (entry.producer_epoch, entry.is_commit)
            for entry in self.cluster.logs[place].entries
            if entry.batch is None
        ]

    def transaction_node(self, name: str = "a") -> int:
        """Return an id's coordinator."""
        return self.cluster.coordinator_node(m.CoordinatorType.TRANSACTION, name)

    def move_coordinator_of(self, name: str, node_id: int, *, resigning_ms: int = 0) -> None:
        """Let another broker coordinate an id, and those that share its place."""
        number = self.cluster.coordinator_number(name)
        kind = m.CoordinatorType.TRANSACTION
        self.cluster.move_coordinator(
            kind, number, node_id, self.now_ms, resigning_ms=resigning_ms
        )
