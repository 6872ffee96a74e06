"""The ledger: the last batch of each partition, kept inside the same transactions as the rows.

Why it exists: a stable transactional id fences a zombie, but does not recognise a replay. So each
transaction also commits, as a consumer group's offset, the id of its batch. An aborted transaction
leaves no entry, and a committed one always has its entry.

Owns: names of ids and groups, reading, writing. Must not know: Spark's frames, how rows are
written, what follows from an entry.

Rules:
* A read waits for a commit that is undecided ("require stable"). A read before ids are taken does
  not: a transaction that an earlier run left open stays undecided until its id is taken.
* An entry is absent only if the cluster says so without an error.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, cast

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.admin import Asker, committed_offsets, group_ids
from txnproducer.errors import IllegalStateError
from txnproducer.lease import TransactionParticipant
from txnproducer.ledger.topic_log import Snapshot
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.spark.ledger.decisions import Decision, parse_decision, pieces_of
from txnproducer.spark.ledger.entries import Found, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.kept_clients import KeptClients
from txnproducer.spark.ledger.move import refuse_moved

# Of an entry that nothing changes. Much less than brokers keep offsets: seven days by default.
REFRESH_AFTER_S: Final = 6 * 3600.0
TIMEOUT_S: Final = 60.0
# One for each process, a driver or a worker: every batch asks again.
_CLIENTS: Final = KeptClients()
ask_kept: Final[Asker] = _CLIENTS.ask
atexit.register(_CLIENTS.close)


@dataclass(frozen=True)
class LedgerView:
    """The entries of a sink, of both atomicities, as one look finds them.

    Attributes:
        plan: the plan, or None.
        entries: of the partitions that were asked for; partitions without an entry are left out.
        whole: of the last whole batch, or None.
        run: of the named run that was committed last, or None.
    """

    plan: PlanEntry | None
    entries: dict[int, LedgerEntry]
    whole: LedgerEntry | None
    run: LedgerEntry | None = None


@dataclass(frozen=True)
class Ledger:
    """The ledgers of one sink.

    Attributes:
        bootstrap_servers: of the cluster.
        sink_id: of the sink.
        topic: the topic that the entries name; they are offsets of its partition 0.
        security: kafka-python's settings.
    """

    bootstrap_servers: str
    sink_id: str
    topic: str
    # Not in a `repr`, since it holds passwords, and errors and logs may show a sink's settings.
    security: Mapping[str, Any] = field(repr=False)

    def transactional_id(self, partition: int) -> str:
        """Return the transactional id of a Spark partition. It never changes."""
        # Of Spark's number alone: a new attempt, also of another run, has to fence the one before.
        return f"{self.sink_id}.p{partition}"

    def group(self, partition: int) -> str:
        """Return the group that holds a Spark partition's entry."""
        return _group_of(self.transactional_id(partition))

    @property
    def id_prefix(self) -> str:
        """The common beginning of all transactional ids of the sink."""
        return f"{self.sink_id}."

    @property
    def group_prefix(self) -> str:
        """The common beginning of all groups of the sink."""
        return _group_of(self.id_prefix)

    @property
    def plan_id(self) -> str:
        """The id under which the plan is written."""
        return f"{self.sink_id}.plan"

    @property
    def plan_group(self) -> str:
        """The group that holds the plan."""
        return _group_of(self.plan_id)

    def decision_group(self, piece: int) -> str:
        """Return the group that holds a piece of the decision."""
        return f"{self.plan_group}.{piece}"

    @property
    def whole_id(self) -> str:
        """The id under which whole batches are written."""
        return f"{self.sink_id}.batch"

    @property
    def whole_group(self) -> str:
        """The group that holds the entry of whole batches."""
        return _group_of(self.whole_id)

    @property
    def place(self) -> TopicPartition:
        """The place of the entry in its group."""
        # Brokers refuse the offset of a partition that does not exist, and each topic has this
        # one.
        return TopicPartition(self.topic, 0)

    def known_partitions(self) -> list[int]:
        """Return the partitions that have an entry, in order. Older ones may have expired."""
        # Without the number: groups of the plan, of whole batches and of sinks like "a.p" stay out
        # below.
        prefix = self.group(0)[:-1]
        names = group_ids(self.bootstrap_servers, prefix, TIMEOUT_S, **dict(self.security))
        ends = (name.removeprefix(prefix) for name in names)
        return sorted(int(end) for end in ends if end.isdecimal())

    def read(
        self,
        partitions: Iterable[int] = (),
        *,
        waits_for_undecided: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[PlanEntry | None, dict[int, LedgerEntry]]:
        """Return the plan, and the entries of partitions. Those without an entry are left out.

        Args:
            partitions: by number.
            waits_for_undecided: False returns the last committed entry, even if an open
                transaction may still commit another one.
            timeout_s: for how long the cluster is asked.

        Raises:
            UnstableOffsetCommitError: an entry stayed undecided for all of that time.
            KafkaError: the cluster refused, or did not answer.
        """
        groups = {self.group(partition): partition for partition in partitions}
        found = self._committed(
            [self.plan_group, *groups],
            waits_for_undecided=waits_for_undecided,
            timeout_s=timeout_s,
        )
        plan = found.pop(self.plan_group, None)
        entries = {groups[group]: LedgerEntry.parse(*one) for group, one in found.items()}
        return None if plan is None else PlanEntry.parse(*plan), entries

    def look(
        self,
        partitions: Iterable[int] = (),
        *,
        asks_for_plan: bool = True,
        waits_for_undecided: bool = True,
    ) -> LedgerView:
        """Return the entries of both atomicities, by one question to the cluster.

        Args:
            partitions: by number; the entry of whole batches is always asked for.
            asks_for_plan: False to not wait for the plan of another driver, which may be
                undecided.
            waits_for_undecided: see `read`.

        Raises:
            UnstableOffsetCommitError, KafkaError: see `read`.
        """
        groups = {self.group(partition): partition for partition in partitions}
        # All groups in one question: two looks are two moments, and an entry could move in
        # between.
        plans = [self.plan_group] if asks_for_plan else []
        found = self._committed(
            [*plans, self.whole_group, *groups], waits_for_undecided=waits_for_undecided
        )
        plan = found.pop(self.plan_group, None)
        whole = found.pop(self.whole_group, None)
        return LedgerView(
            None if plan is None else PlanEntry.parse(*plan),
            {groups[group]: LedgerEntry.parse(*one) for group, one in found.items()},
            None if whole is None else LedgerEntry.parse(*whole),
        )

    def read_entries(
        self,
        partitions: Iterable[int],
        *,
        waits_for_undecided: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[int, LedgerEntry]:
        """Return the entries of partitions, without waiting for a plan that may be undecided.

        Arguments and errors are those of `read`.
        """
        groups = {self.group(partition): partition for partition in partitions}
        found = self._committed(
            groups, waits_for_undecided=waits_for_undecided, timeout_s=timeout_s
        )
        return {groups[group]: LedgerEntry.parse(*one) for group, one in found.items()}

    def read_whole(self, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        """Return the entry of the last whole batch, or None if there is none."""
        group = self.whole_group
        found = self._committed([group], waits_for_undecided=waits_for_undecided).get(group)
        return None if found is None else LedgerEntry.parse(*found)

    def read_decision(self) -> Decision | None:
        """Return the last decision about prepared parts, or None if there is no whole one.

        Only the holder of the plan's id can rely on it: nobody else can decide meanwhile.
        """
        first = self.decision_group(0)
        found = self._committed([first], waits_for_undecided=True)
        if not found:
            return None
        groups = [self.decision_group(piece) for piece in range(pieces_of(found[first]))]
        # The first one again: all pieces are of one answer.
        found = self._committed(groups, waits_for_undecided=True)
        return parse_decision([found[group] for group in groups if group in found])

    def _committed(
        self,
        groups: Iterable[str],
        *,
        waits_for_undecided: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Found]:
        """Return the entries of groups, as stored. Groups without one are left out."""
        found = self._offsets(groups, waits_for_undecided=waits_for_undecided, timeout_s=timeout_s)
        refuse_moved(self.sink_id, found)
        return {group: self._found(group, one) for group, one in found.items()}

    def _found(self, group: str, stored: OffsetAndMetadata) -> Found:
        topic, partition = self.place
        # The offset is the entry's own number.
        place = f"the group {group}, partition {partition} of the topic {topic}"
        return Found(f"{place}, offset {stored.offset},", stored)

    def _offsets(
        self,
        groups: Iterable[str],
        *,
        waits_for_undecided: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, OffsetAndMetadata]:
        """Return the offsets of groups, also of those that have moved to a topic."""
        found = committed_offsets(
            self.bootstrap_servers,
            groups,
            timeout_s,
            # Named, because a broker that is asked for all partitions leaves out those that have
            # had undecided offsets only, and such an entry would count as absent.
            partitions=[self.place],
            waits_for_undecided=waits_for_undecided,
            # A question takes 2 ms, and a connection of its own for it 20.
            asker=ask_kept,
            **dict(self.security),
        )
        return {
            group: offsets[self.place] for group, offsets in found.items() if self.place in offsets
        }

    def write_whole(self, writer: RecordWriter, entry: LedgerEntry) -> None:
        """Add the entry of a whole batch to the writer's open transaction."""
        self._write(writer, self.whole_group, dated(entry).stored())

    def write(self, writer: RecordWriter, partition: int, entry: LedgerEntry) -> None:
        """Add the entry of a partition to the writer's open transaction."""
        self._write(writer, *self.offset_of(partition, entry))

    def offset_of(self, partition: int, entry: LedgerEntry) -> tuple[str, OffsetAndMetadata]:
        """Return the group and the offset that store the entry of a partition."""
        return self.group(partition), dated(entry).stored()

    def write_plan(self, producer: TransactionalProducer, plan: PlanEntry) -> None:
        """Add the plan to the producer's open transaction."""
        self._write(producer, self.plan_group, plan.stored())

    def write_decision(self, producer: TransactionalProducer, decision: Decision) -> None:
        """Add a decision to the producer's open transaction."""
        for piece, stored in enumerate(decision.stored()):
            self._write(producer, self.decision_group(piece), stored)

    def _write(self, writer: RecordWriter, group: str, stored: OffsetAndMetadata) -> None:
        if isinstance(writer, TransactionParticipant):
            raise IllegalStateError("a participant cannot commit offsets, and so no entry")
        # Without a generation and a member, which the coordinator then does not check: no consumer
        # is in the group.
        cast(TransactionalProducer, writer).send_offsets_to_transaction(
            {self.place: stored}, ConsumerGroupMetadata(group)
        )

    # --- a ledger in a topic (`topic_ledger.py`) does more ---------------------------------------

    @property
    def records_topic(self) -> str | None:
        """The topic that holds the entries as records, or None."""
        return None

    def needed_topics(self) -> dict[str, list[str]]:
        """Return the topics that the ledger uses, with the rights that it needs there."""
        return {self.topic: ["READ"]}

    @property
    def expires(self) -> bool:
        """Whether entries that nothing commits again vanish after a while."""
        return True

    @property
    def is_moving(self) -> bool:
        """Whether entries may still be in another place than this one."""
        return False

    def newest_runs(self, most: int) -> tuple[list[LedgerEntry], int]:
        """Return the named runs that were committed last, the newest first, and count the others.

        They are as the last question found them; nothing is asked.
        """
        del most  # there are none in offsets
        return [], 0

    @property
    def own_claims(self) -> int:
        """How many claims the driver needs in a leased transaction to write the entry itself."""
        return 0

    def move(self, producer: TransactionalProducer, group: str, *, is_last: bool = False) -> None:
        """Move an id's entry to this place, after the id was taken."""

    def mark_whole(self, producer: TransactionalProducer) -> None:
        """Add the mark of another place to a whole batch's transaction, before it can expire."""

    def read_so_far(self) -> Snapshot | None:
        """Return the records that the driver has read, for its tasks; None if they ask anyway."""
        return None

    def knowing(self, known: Snapshot | None) -> Self:
        """Return the ledger for a task that goes on from the records that the driver has read."""
        del known
        return self


def close_connections() -> None:
    """Close the connections that this process keeps to ledgers. The next question opens one."""
    _CLIENTS.close()


def dated(entry: LedgerEntry) -> LedgerEntry:
    """Return an entry with its time. An entry that is written again keeps the time it has."""
    # The wall clock, since another process, perhaps weeks later, shows the entry's age.
    return entry if entry.at_ms is not None else replace(entry, at_ms=int(time.time() * 1000))


def _group_of(transactional_id: str) -> str:
    return f"__txn.{transactional_id}"
