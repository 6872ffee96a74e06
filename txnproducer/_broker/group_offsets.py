"""One partition of `__consumer_offsets`: the committed and the pending offsets of groups.

Why it exists: offsets that are sent in a transaction count only after it is committed (KIP-98,
KIP-447).
Owns: `GroupOffsets`, one per partition of `__consumer_offsets`. Must not know: requests.

Rules:
* Offsets of an open transaction are pending. A consumer that asks for stable offsets must wait.
* A commit marker commits the pending offsets in the order in which they were written. An abort
  marker drops them.
* If a group has members, a request from any other than a present member is refused.

Simplification: groups do not rebalance by themselves. The code that simulates the consumers sets
generation and members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txnproducer._broker.producer_state import ProducerStates
from txnproducer._protocol.messages import TxnOffsetCommitRequest
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

# The default of the brokers' `offset.metadata.max.bytes`.
MAX_METADATA_BYTES = 4096


@dataclass(slots=True)
class Group:
    """One group.

    Attributes:
        committed: the committed offsets.
        generation_id: the present generation, or -1 if the group has no members.
        members: the member ids, each with its instance id or None.
    """

    committed: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    generation_id: int = -1
    members: dict[str, str | None] = field(default_factory=dict)


class GroupOffsets:
    """The groups of one offsets partition.

    Attributes:
        groups: the groups by their ids.
        history: every committed offset, in order.
        states: the state of transactional producers.
        lost: the groups that lost pending offsets because of a refused commit, as before Kafka
            4.0.
    """

    __slots__ = ("_pending", "groups", "history", "lost", "states")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.history: list[tuple[str, TopicPartition, OffsetAndMetadata]] = []
        self.states = ProducerStates()
        self.lost: set[str] = set()
        self._pending: dict[int, dict[tuple[str, TopicPartition], OffsetAndMetadata]] = {}

    def group(self, group_id: str) -> Group:
        """Return a group. Create it if it does not exist."""
        return self.groups.setdefault(group_id, Group())

    def check_member(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Return the error if a commit is not from a present member of the group (KIP-447)."""
        group = self.groups.get(request.group_id)
        # As `ClassicGroup.validateOffsetCommit`: an empty group also takes offsets of applications
        # that assign partitions themselves.
        if request.generation_id < 0 and (group is None or not group.members):
            return ErrorCode.NONE  # without members there is nothing to compare
        # OffsetMetadataManager creates a group only for offsets without a generation.
        if group is None:
            return ErrorCode.ILLEGAL_GENERATION
        instance_id = request.group_instance_id
        if instance_id is not None:
            return _check_instance(group, request.member_id, instance_id, request.generation_id)
        # TxnOffsetCommit before v3 has no member, so Kafka lets it pass although the group has
        # members.
        if request.generation_id < 0 and not request.member_id:
            return ErrorCode.NONE  # a producer before KIP-447, or one without a consumer group
        if request.member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_present = request.generation_id == group.generation_id
        return ErrorCode.NONE if is_present else ErrorCode.ILLEGAL_GENERATION

    def append(
        self,
        producer_id: int,
        epoch: int,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Write offsets in a transaction. The handler has checked the producer's epoch."""
        self.states.open(producer_id, epoch)
        pending = self._pending.setdefault(producer_id, {})
        for place, offset in offsets.items():
            # An updated key would keep its old place in the dict, and a commit goes by this order.
            pending.pop((group_id, place), None)
            pending[group_id, place] = offset
        self.group(group_id)

    def forget_pending(
        self, producer_id: int, group_id: str, places: Iterable[TopicPartition]
    ) -> None:
        """Remove pending offsets of an open transaction."""
        pending = self._pending.get(producer_id, {})
        for place in places:
            # The judges excuse these groups: no client can prevent that the broker loses their
            # offsets.
            if pending.pop((group_id, place), None) is not None:
                self.lost.add(group_id)

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        now_ms: int,
        *,
        is_commit: bool,
        is_v2: bool,
    ) -> ErrorCode:
        """End a producer's transaction in this partition."""
        code = self.states.check_marker(producer_id, epoch, coordinator_epoch, is_v2=is_v2)
        if code:
            return code
        self.states.append_marker(producer_id, epoch, coordinator_epoch, now_ms)
        # For an abort, too: offsets that stay pending would let stable reads of the group wait for
        # ever.
        pending = self._pending.pop(producer_id, {})
        if is_commit:
            for (group_id, place), offset in pending.items():
                self.group(group_id).committed[place] = offset
                self.history.append((group_id, place, offset))
        return ErrorCode.NONE

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        group = self.groups.get(group_id)
        return {} if group is None else dict(group.committed)

    def pending_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions whose offsets are pending."""
        return {
            place
            for pending in self._pending.values()
            for pending_group, place in pending
            if pending_group == group_id
        }

    @property
    def has_pending(self) -> bool:
        """Whether a transaction with offsets in this partition is open."""
        return any(self._pending.values())


def _check_instance(
    group: Group, member_id: str, instance_id: str, generation_id: int
) -> ErrorCode:
    owners = {instance: member for member, instance in group.members.items() if instance}
    owner = owners.get(instance_id)
    # As `ClassicGroup.validateMember`: only an instance that another member has taken over is
    # fenced.
    if owner is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if owner != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    is_present = generation_id == group.generation_id
    return ErrorCode.NONE if is_present else ErrorCode.ILLEGAL_GENERATION
