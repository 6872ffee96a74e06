"""The open transaction: its partitions and offsets, and the coordinator's knowledge of it.

Owns: `OpenTransaction`. It holds all that the end of a transaction clears, so that the end
replaces one object. Must not know: states, the queue of requests, how it ends.

A v1 transaction has started when the coordinator has accepted its first partition or group, a v2
transaction with its first call. A transaction that was not started ends without EndTxn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.handler import Offsets
from txnproducer._protocol.messages import BrokerNode
from txnproducer.errors import KafkaError
from txnproducer.records import OffsetAndMetadata, TopicPartition


@dataclass(slots=True)
class OpenTransaction:
    """The account of one transaction, from its beginning to its end.

    Attributes:
        new_partitions: to be added with the next request (v1).
        pending_partitions: named by a request without an answer so far (v1).
        partitions: of the transaction.
        is_started: whether the coordinator knows of it.
        begun_at: the brokers that have said so, each as the coordinator (v1).
        may_have_begun: whether it may have begun, but only by requests of unknown success.
        end_txn: the request that ends it; None before a commit or an abort.
        started_ms: when the coordinator's time-out began to run; None before.
        record_count: how many records are acknowledged.
        cause: the latest error.
        outcome: how it ended; None before. It stays, whatever is begun later.
    """

    new_partitions: set[TopicPartition] = field(default_factory=set)
    pending_partitions: set[TopicPartition] = field(default_factory=set)
    partitions: set[TopicPartition] = field(default_factory=set)
    is_started: bool = False
    begun_at: set[BrokerNode | None] = field(default_factory=set)
    may_have_begun: bool = False
    end_txn: EndTxnHandler | None = None
    started_ms: int | None = None
    record_count: int = 0
    cause: KafkaError | None = None
    outcome: ResolvedOutcome | None = None
    _lost_offsets: dict[tuple[str, TopicPartition], set[OffsetAndMetadata]] = field(
        default_factory=dict
    )

    def end(self, outcome: ResolvedOutcome) -> OpenTransaction:
        """Note the outcome, and return the account of the next transaction."""
        self.outcome = outcome
        return OpenTransaction()

    @property
    def has_partitions_to_add(self) -> bool:
        """Whether the coordinator has not accepted all partitions yet."""
        return bool(self.new_partitions or self.pending_partitions)

    @property
    def must_be_ended(self) -> bool:
        """Whether its end needs an EndTxn."""
        return self.is_started or self.may_have_begun

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit was sent and its outcome is still unknown."""
        return self.end_txn is not None and self.end_txn.may_be_committed

    @property
    def has_lost_offsets(self) -> bool:
        """Whether offsets were sent and not answered."""
        return bool(self._lost_offsets)

    def name_partition(self, place: TopicPartition, *, is_transaction_v2: bool) -> None:
        """Add a partition: with v2 at once, with v1 by the next AddPartitionsToTxn."""
        if is_transaction_v2:
            # The leader adds it with its first batch, so EndTxn is needed from now on.
            self.partitions.add(place)
            self.is_started = True
        elif place not in self.partitions and place not in self.pending_partitions:
            self.new_partitions.add(place)

    def take_new_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions of the next AddPartitionsToTxn.

        They are all partitions without an answer, also those of a request that is repeated.
        """
        self.pending_partitions |= self.new_partitions
        self.new_partitions.clear()
        # A copy, since answers change the set.
        return frozenset(self.pending_partitions)

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool
    ) -> None:
        """Note that partitions are, or are not, in the transaction."""
        self.pending_partitions -= partitions
        if are_added:
            self.partitions |= partitions

    def start(self) -> None:
        """Note that it was started, with v2 by any call, or by another process."""
        self.is_started = True

    def take_receipts(self, *, is_written: bool, record_count: int, are_all: bool) -> None:
        """Take in the participants' receipts.

        Args:
            is_written: whether one of them has written something.
            record_count: how many records the new receipts count.
            are_all: whether every participant has given its receipt.
        """
        self.is_started |= is_written
        self.record_count += record_count
        # With all receipts there is no doubt left, and `is_started` alone decides.
        if are_all:
            self.may_have_begun = False

    def acknowledged(self, record_count: int) -> None:
        """Count records that a broker has acknowledged."""
        self.record_count += record_count

    def time_begins(self, now_ms: int) -> None:
        """Note when the coordinator's time-out began to run."""
        self.started_ms = now_ms

    def failed(self, error: KafkaError) -> None:
        """Note the latest error."""
        self.cause = error

    def lease(self) -> None:
        """Note that participants may begin it. Their receipts will show it."""
        self.may_have_begun = True

    def end_with(self, end_txn: EndTxnHandler) -> None:
        """Note the request that ends it."""
        self.end_txn = end_txn

    def begun(self, at: BrokerNode | None) -> None:
        """Note that the coordinator knows of it.

        Args:
            at: the broker that has said so.
        """
        self.begun_at.add(at)
        self.is_started = True
        # An accepted request leaves no doubt.
        self.may_have_begun = False

    def begun_perhaps(self) -> None:
        """Note that a request of unknown success may have begun it."""
        # A transaction that is known to have begun is in no doubt.
        self.may_have_begun = self.may_have_begun or not self.is_started

    def lose_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Note that offsets were sent, and have no answer."""
        for place, offset in offsets:
            self._lost_offsets.setdefault((group_id, place), set()).add(offset)

    def could_be_overwritten(self, group_id: str, offsets: Offsets) -> bool:
        """Return whether a delayed copy of other offsets could arrive after these.

        Offsets have no sequence numbers: of two requests in one transaction the last one to arrive
        counts. (Java sends them; a group can then go back to offsets that it has passed.)
        """
        return any(
            # A copy that names the same offset does no harm.
            self._lost_offsets.get((group_id, place), {offset}) != {offset}
            for place, offset in offsets
        )
