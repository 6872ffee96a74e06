"""The calls with which cases are written: each leaves its line, and goes to a target.

Owns: `Stage`, `Identity`, and the types of calls that stand in tables of cases. Must not know:
which broker it is.
Rules: names that a case uses get the case's prefix, so that cases never meet on one broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from integration.conformance.target import Member, Target
from integration.conformance.transcript import Transcript, error, records
from txnproducer._broker.resources import Resource
from txnproducer._protocol import messages as m
from txnproducer._record import RecordBatchBuilder
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

# More than any broker of these tests gives out.
NOBODYS_ID = 10_004_711
NO_MEMBER = Member()
_BATCH_BYTES = 100_000


@dataclass(frozen=True)
class Identity:
    """A producer: its transactional id (None: only idempotent), producer id and epoch."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int

    def older(self, count: int = 1) -> Identity:
        """Return an earlier epoch's identity."""
        return replace(self, producer_epoch=self.producer_epoch - count)

    def newer(self, count: int = 1) -> Identity:
        """Return a later epoch's identity."""
        return self.older(-count)

    def stranger(self) -> Identity:
        """Return the identity with a producer id that nobody got."""
        return replace(self, producer_id=self.producer_id + NOBODYS_ID)


class Stage:
    """A target with a transcript, and the calls of one case.

    Args:
        target: the broker.
        case_name: whose stage it is.

    Attributes:
        is_v2: whether transactions are of version 2 (KIP-890); a case may play an older client.
        transcript: what has been asked and seen.
    """

    def __init__(self, target: Target, case_name: str) -> None:
        self._target = target
        self._prefix = f"{case_name}-"
        self.is_v2 = target.transaction_version >= 2
        self.transcript = Transcript(self._prefix)

    def name(self, name: str) -> str:
        """Return a name as the broker knows it."""
        return f"{self._prefix}{name}"

    def ask(self, request: m.Request) -> m.Response:
        """Put a request."""
        response = self._target.ask(request)
        self.transcript.exchange(request, response)
        return response

    def ask_elsewhere(self, request: m.Request) -> m.Response:
        """Put a request to a broker that it is not for."""
        response = self._target.ask_elsewhere(request)
        self.transcript.exchange(request, response)
        return response

    # --- topics ---------------------------------------------------------------------------------

    def partitions(
        self, topic: str, count: int, *, is_compacted: bool = False
    ) -> list[TopicPartition]:
        """Create a topic, and return its partitions."""
        name = self.name(topic)
        self._target.create_topic(name, count, is_compacted=is_compacted)
        return [TopicPartition(name, number) for number in range(count)]

    def partition(self, topic: str = "t") -> TopicPartition:
        """Create a topic of one partition."""
        return self.partitions(topic, 1)[0]

    def topic_id(self, place: TopicPartition) -> bytes | None:
        """Return the id of a partition's topic, if Produce takes one."""
        return self._target.topic_id(place.topic)

    def delete(self, place: TopicPartition) -> None:
        """Delete a partition's topic."""
        self._target.delete_topic(place.topic)
        self.transcript.note(f"{self.transcript.place(place)}: deleted with its topic")

    def add_partitions(self, place: TopicPartition, count: int) -> None:
        """Give a partition's topic more partitions: so many in all."""
        self._target.add_partitions(place.topic, count)
        self.transcript.note(f"{self.transcript.place(place)}: one of {count}")

    def near_and_far(self, name: str = "a") -> tuple[TopicPartition, TopicPartition]:
        """Create two partitions: led by an id's coordinator, and led by another broker."""
        near, far = self.name("near"), self.name("far")
        self._target.create_topic_at(near, self.name(name), is_far=False)
        self._target.create_topic_at(far, self.name(name), is_far=True)
        return TopicPartition(near, 0), TopicPartition(far, 0)

    def hold_markers(self, place: TopicPartition) -> AbstractContextManager[None]:
        """Keep markers from a far partition: transactions there stay in the midst of their end."""
        return self._target.hold_markers(place)

    @contextmanager
    def denied(self, *resources: tuple[Resource, str]) -> Iterator[None]:
        """Refuse access to resources. The cluster has no name."""
        told = ", ".join(f"{kind.name.lower()} {name}".strip() for kind, name in resources)
        with ExitStack() as stack:
            for kind, name in resources:
                full = self.name(name) if name else name
                stack.enter_context(self._target.deny(kind, full))
            self.transcript.note(f"denied: {told}")
            yield
        self.transcript.note(f"no more denied: {told}")

    def unknown_partition(self) -> TopicPartition:
        """Return a partition of a topic that there is not."""
        return TopicPartition(self.name("nowhere"), 0)

    # --- the life of a producer -----------------------------------------------------------------

    def init(
        self, name: str = "a", *, current: Identity | None = None, timeout_ms: int = 60_000
    ) -> Identity:
        """Ask for a producer id, or, with a current identity, for its next epoch (KIP-360)."""
        known = current or Identity(None, m.NO_PRODUCER_ID, m.NO_PRODUCER_EPOCH)
        full = self.name(name)
        answer = self.ask(
            m.InitProducerIdRequest(full, timeout_ms, known.producer_id, known.producer_epoch)
        )
        assert isinstance(answer, m.InitProducerIdResponse)
        return Identity(full, answer.producer_id, answer.producer_epoch)

    def init_until(self, producer_epoch: int, name: str = "a") -> Identity:
        """Ask for a producer id again and again, until its epoch is so high."""
        request = m.InitProducerIdRequest(self.name(name), 60_000)
        epoch = producer_id = m.NO_PRODUCER_ID
        while epoch < producer_epoch:
            # One answer at the beginning and one at the end show that all went well.
            self._target.init_often(request, producer_epoch - epoch - 1 if epoch >= 0 else 0)
            answer = self._target.ask(request)
            assert isinstance(answer, m.InitProducerIdResponse)
            assert not answer.error_code, answer
            producer_id, epoch = answer.producer_id, answer.producer_epoch
        identity = Identity(self.name(name), producer_id, epoch)
        self.transcript.note(f"{name} is {self.transcript.producer(producer_id, epoch)}")
        return identity

    def init_idempotent(self) -> Identity:
        """Ask for a producer id without a transactional id."""
        answer = self.ask(m.InitProducerIdRequest(None, 60_000))
        assert isinstance(answer, m.InitProducerIdResponse)
        return Identity(None, answer.producer_id, answer.producer_epoch)

    def add(self, identity: Identity, *places: TopicPartition) -> None:
        """Add partitions to the transaction."""
        assert identity.transactional_id is not None
        self.ask(
            m.AddPartitionsToTxnRequest(
                identity.transactional_id, identity.producer_id, identity.producer_epoch, places
            )
        )

    def begin(self, identity: Identity, *places: TopicPartition) -> None:
        """Add partitions where that is the client's task. With v2 the first Produce does it."""
        if not self.is_v2:
            self.add(identity, *places)

    def add_offsets(self, identity: Identity, group: str = "g") -> None:
        """Add a group's offsets to the transaction."""
        assert identity.transactional_id is not None
        self.ask(
            m.AddOffsetsToTxnRequest(
                identity.transactional_id,
                identity.producer_id,
                identity.producer_epoch,
                self.name(group),
            )
        )

    def begin_offsets(self, identity: Identity, group: str = "g") -> None:
        """Add a group's offsets where that is the client's task."""
        if not self.is_v2:
            self.add_offsets(identity, group)

    def commit_offset(
        self,
        identity: Identity,
        place: TopicPartition,
        offset: int,
        group: str = "g",
        *,
        member: Member = NO_MEMBER,
    ) -> None:
        """Write a group's offset in the transaction."""
        offsets = (place, OffsetAndMetadata(offset))
        self.ask(self.offsets_request(identity, offsets, group=group, member=member))

    def commit_offsets(
        self, identity: Identity, *offsets: tuple[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Write several of a group's offsets with one request."""
        self.ask(self.offsets_request(identity, *offsets))

    def offsets_request(
        self,
        identity: Identity,
        *offsets: tuple[TopicPartition, OffsetAndMetadata],
        group: str = "g",
        member: Member = NO_MEMBER,
    ) -> m.TxnOffsetCommitRequest:
        """Return the request that writes a group's offsets."""
        assert identity.transactional_id is not None
        return m.TxnOffsetCommitRequest(
            identity.transactional_id,
            self.name(group) if group else "",
            identity.producer_id,
            identity.producer_epoch,
            offsets,
            member.generation_id,
            member.member_id,
            member.instance_id,
            self.is_v2,
        )

    def open_offsets(
        self, place: TopicPartition, offset: int, *, timeout_ms: int = 60_000
    ) -> Identity:
        """Begin a transaction as a new producer, with a group's offset in it."""
        identity = self.init(timeout_ms=timeout_ms)
        self.begin_offsets(identity)
        self.commit_offset(identity, place, offset)
        return identity

    def end(self, identity: Identity, *, commit: bool) -> Identity:
        """End the transaction, and return the identity that follows."""
        assert identity.transactional_id is not None
        answer = self.ask(
            m.EndTxnRequest(
                identity.transactional_id,
                identity.producer_id,
                identity.producer_epoch,
                commit,
                self.is_v2,
            )
        )
        assert isinstance(answer, m.EndTxnResponse)
        if answer.error_code or not self.is_v2:
            return identity
        return replace(
            identity, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
        )

    def commit(self, identity: Identity) -> Identity:
        """Commit, and wait until all markers are written."""
        return self._end_and_settle(identity, commit=True)

    def abort(self, identity: Identity) -> Identity:
        """Abort, and wait until all markers are written."""
        return self._end_and_settle(identity, commit=False)

    def _end_and_settle(self, identity: Identity, *, commit: bool) -> Identity:
        following = self.end(identity, commit=commit)
        self.settle(identity)
        return following

    def settle(self, identity: Identity) -> None:
        """Wait until the transaction has ended, by any party."""
        assert identity.transactional_id is not None
        self._target.settle(identity.transactional_id)

    def wait_ms(self, time_ms: int) -> None:
        """Let time go by."""
        self._target.wait_ms(time_ms)

    def open(
        self, place: TopicPartition, *values: str, name: str = "a", timeout_ms: int = 60_000
    ) -> Identity:
        """Begin a transaction as a new producer, with a batch in it."""
        identity = self.init(name, timeout_ms=timeout_ms)
        self.begin(identity, place)
        self.produce(identity, place, 0, *(values or ("open",)))
        return identity

    # --- producing ------------------------------------------------------------------------------

    def batch(
        self,
        identity: Identity,
        sequence: int,
        *values: str,
        is_transactional: bool | None = None,
        is_control: bool = False,
        compression: str = "none",
    ) -> bytes:
        """Build a batch of values, where "k=v" is one with a key."""
        builder = RecordBatchBuilder(_BATCH_BYTES, compression, is_control=is_control)
        for value in values:
            # A real broker soon deletes what is old.
            key, _, rest = value.encode().rpartition(b"=")
            builder.append(int(time.time() * 1000), key or None, rest)
        if is_transactional is None:
            is_transactional = identity.transactional_id is not None
        builder.set_producer_state(
            identity.producer_id,
            identity.producer_epoch,
            sequence,
            is_transactional=is_transactional,
        )
        return bytes(builder.build())

    def produce(
        self,
        identity: Identity,
        place: TopicPartition,
        sequence: int,
        *values: str,
        acks: int = -1,
    ) -> None:
        """Produce one batch."""
        batch = self.batch(identity, sequence, *values)
        self.produce_batches(identity.transactional_id, [(place, batch)], acks=acks)

    def produce_batches(
        self,
        transactional_id: str | None,
        batches: Iterable[tuple[TopicPartition, bytes]],
        *,
        acks: int = -1,
    ) -> None:
        """Produce batches, one for each partition."""
        self.ask(self.produce_request(transactional_id, batches, acks=acks))

    def produce_request(
        self,
        transactional_id: str | None,
        batches: Iterable[tuple[TopicPartition, bytes]],
        *,
        acks: int = -1,
        topic_id: bytes | None = None,
    ) -> m.ProduceRequest:
        """Return the request of `produce_batches`. With an id, all topics get this one."""
        parts = tuple(
            m.ProducePartition(place, batch, topic_id or self._target.topic_id(place.topic))
            for place, batch in batches
        )
        is_v2 = self.is_v2 and transactional_id is not None
        return m.ProduceRequest(transactional_id, acks, 30_000, parts, is_v2)

    # --- looking --------------------------------------------------------------------------------

    def describe(self, identity: Identity | str) -> None:
        """Look at the coordinator's view of an id."""
        name = self.name(identity) if isinstance(identity, str) else identity.transactional_id
        assert name is not None
        self.ask(m.DescribeTransactionsRequest((name,)))

    def look(self, *places: TopicPartition) -> None:
        """Look at partitions: both isolation levels, both ends, the producers."""
        target, told = self._target, self.transcript
        for place in places:
            committed = records(target.read(place, read_committed=True))
            everything = records(target.read(place, read_committed=False))
            ends = f"stable {target.last_stable_offset(place)} end {target.log_end_offset(place)}"
            told.note(f"{told.place(place)}: committed {committed} of {everything}, {ends}")
            told.note(f"{told.place(place)}: producers {told.producers(target.producers(place))}")

    def look_at_offset(self, place: TopicPartition, group: str = "g") -> None:
        """Look at a group's offset, with and without waiting for stable ones (KIP-447)."""
        seen = []
        for require_stable in (True, False):
            found = self._target.committed_offset(
                self.name(group), place, require_stable=require_stable
            )
            seen.append(error(found) if isinstance(found, ErrorCode) else str(found))
        told = self.transcript
        told.note(f"{group} {told.place(place)}: stable {seen[0]}, any {seen[1]}")

    def join_group(self, group: str = "g", instance_id: str | None = None) -> Member:
        """Become a group's member."""
        member = self._target.join_group(self.name(group), instance_id)
        told = self.transcript
        told.note(f"{group}: joined as {told.member(member.member_id)} of {member.generation_id}")
        return member._replace(instance_id=instance_id)


End: TypeAlias = Callable[[Stage, Identity], Identity]
"""`Stage.commit` or `Stage.abort`, in a table of cases."""

Change: TypeAlias = Callable[[Identity], Identity]
"""`Identity.newer` or `Identity.stranger`, in a table of cases."""
