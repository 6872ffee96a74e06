"""The ledger: which batch each partition has committed last, kept inside the same transactions.

Why it exists: a stable transactional id fences a zombie, but does not recognise a replay. So each
transaction also commits, as a consumer group's offset, the batch id it carries; an aborted one
leaves no trace, a committed one can't be without it.

Owns: names of ids and groups, reading, writing. Must not know: Spark's frames, how rows are
written, what is made of an entry.

Rules:
* An entry is read at "require stable", so that an undecided commit is waited for; but not before
  ids are taken: what an earlier run left open stays undecided until then.
* Absent is absent only if the cluster says so without an error.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from txnproducer.admin import committed_offsets, group_ids
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.kept_clients import KeptClients

_TIMEOUT_S: Final = 60.0
# Of this process, the driver's or a worker's: each batch asks again.
_CLIENTS: Final = KeptClients()
atexit.register(_CLIENTS.close)


@dataclass(frozen=True)
class LedgerView:
    """What a look at the ledgers of a sink has found, those of both atomicities.

    Attributes:
        plan: of the runs, or None.
        entries: of the partitions that were asked for; one that has none is left out.
        whole: of the last whole batch, or None.
    """

    plan: PlanEntry | None
    entries: dict[int, LedgerEntry]
    whole: LedgerEntry | None


@dataclass(frozen=True)
class Ledger:
    """The ledgers of one sink.

    Attributes:
        bootstrap_servers: where.
        sink_id: whose.
        topic: the topic on whose partition 0 the entries are stored.
        security: kafka-python's settings.
    """

    bootstrap_servers: str
    sink_id: str
    topic: str
    security: Mapping[str, Any] = field(repr=False)

    def transactional_id(self, partition: int) -> str:
        """Return the id that writes a Spark partition, the same for ever."""
        return f"{self.sink_id}.p{partition}"

    def group(self, partition: int) -> str:
        """Return the group that holds a Spark partition's entry."""
        return _group_of(self.transactional_id(partition))

    @property
    def id_prefix(self) -> str:
        """What all transactional ids of the sink begin with."""
        return f"{self.sink_id}."

    @property
    def group_prefix(self) -> str:
        """What all groups of the sink begin with."""
        return _group_of(self.id_prefix)

    @property
    def plan_id(self) -> str:
        """The id under which the plan is written."""
        return f"{self.sink_id}.plan"

    @property
    def plan_group(self) -> str:
        """The group that holds the plan."""
        return _group_of(self.plan_id)

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
        """Where in the group the entry is."""
        return TopicPartition(self.topic, 0)

    def known_partitions(self) -> list[int]:
        """Return the partitions that have ever written, in order; some may have expired since."""
        prefix = self.group(0)[:-1]
        names = group_ids(self.bootstrap_servers, prefix, _TIMEOUT_S, **dict(self.security))
        ends = (name.removeprefix(prefix) for name in names)
        return sorted(int(end) for end in ends if end.isdecimal())

    def read(
        self,
        partitions: Iterable[int] = (),
        *,
        waits_for_undecided: bool = True,
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[PlanEntry | None, dict[int, LedgerEntry]]:
        """Return the plan, and the entries of partitions; one that has none is left out.

        Args:
            partitions: which.
            waits_for_undecided: False returns what was committed before, whatever an open
                transaction may still commit.
            timeout_s: for how long the cluster is asked.

        Raises:
            UnstableOffsetCommitError: an entry stayed undecided all that time.
            KafkaError: the cluster refused, or did not answer.
        """
        groups = {self.group(partition): partition for partition in partitions}
        found = self._committed(
            [self.plan_group, *groups],
            waits_for_undecided=waits_for_undecided,
            timeout_s=timeout_s,
        )
        plan = found.pop(self.plan_group, None)
        entries = {groups[group]: LedgerEntry.parse(group, one) for group, one in found.items()}
        return None if plan is None else PlanEntry.parse(self.plan_group, plan), entries

    def look(
        self,
        partitions: Iterable[int] = (),
        *,
        asks_for_plan: bool = True,
        waits_for_undecided: bool = True,
    ) -> LedgerView:
        """Return what a driver has to know before it writes, all of it by one question.

        Args:
            partitions: whose entries; that of whole batches is always asked for.
            asks_for_plan: False where another driver's plan, that may be undecided, is not to be
                waited for.
            waits_for_undecided: as of `read`.

        Raises:
            UnstableOffsetCommitError, KafkaError: as of `read`.
        """
        groups = {self.group(partition): partition for partition in partitions}
        plans = [self.plan_group] if asks_for_plan else []
        found = self._committed(
            [*plans, self.whole_group, *groups], waits_for_undecided=waits_for_undecided
        )
        plan = found.pop(self.plan_group, None)
        whole = found.pop(self.whole_group, None)
        return LedgerView(
            None if plan is None else PlanEntry.parse(self.plan_group, plan),
            {groups[group]: LedgerEntry.parse(group, one) for group, one in found.items()},
            None if whole is None else LedgerEntry.parse(self.whole_group, whole),
        )

    def read_entries(self, partitions: Iterable[int]) -> dict[int, LedgerEntry]:
        """Return the entries of partitions, without waiting for a plan that may be undecided."""
        groups = {self.group(partition): partition for partition in partitions}
        found = self._committed(groups, waits_for_undecided=True)
        return {groups[group]: LedgerEntry.parse(group, one) for group, one in found.items()}

    def read_whole(self, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        """Return the entry of the last whole batch, or None if there is none."""
        group = self.whole_group
        stored = self._committed([group], waits_for_undecided=waits_for_undecided).get(group)
        return None if stored is None else LedgerEntry.parse(group, stored)

    def _committed(
        self,
        groups: Iterable[str],
        *,
        waits_for_undecided: bool,
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[str, OffsetAndMetadata]:
        """Return what groups hold; one that holds nothing is left out."""
        found = committed_offsets(
            self.bootstrap_servers,
            groups,
            timeout_s,
            partitions=[self.place],
            waits_for_undecided=waits_for_undecided,
            asker=_CLIENTS.ask,
            **dict(self.security),
        )
        return {
            group: offsets[self.place] for group, offsets in found.items() if self.place in offsets
        }

    def write_whole(self, producer: TransactionalProducer, entry: LedgerEntry) -> None:
        """Make the entry of a whole batch a part of the producer's open transaction."""
        self._write(producer, self.whole_group, _dated(entry).stored())

    def write(self, producer: TransactionalProducer, partition: int, entry: LedgerEntry) -> None:
        """Make an entry a part of the producer's open transaction."""
        self._write(producer, self.group(partition), _dated(entry).stored())

    def write_plan(self, producer: TransactionalProducer, plan: PlanEntry) -> None:
        """Make the plan a part of the producer's open transaction."""
        self._write(producer, self.plan_group, plan.stored())

    def _write(
        self, producer: TransactionalProducer, group: str, stored: OffsetAndMetadata
    ) -> None:
        producer.send_offsets_to_transaction({self.place: stored}, ConsumerGroupMetadata(group))


def close_connections() -> None:
    """Close the connections that this process keeps to ledgers; who asks next opens another."""
    _CLIENTS.close()


def _dated(entry: LedgerEntry) -> LedgerEntry:
    """Give an entry its time; one that is written again as it is has one."""
    return entry if entry.at_ms is not None else replace(entry, at_ms=int(time.time() * 1000))


def _group_of(transactional_id: str) -> str:
    return f"__txn.{transactional_id}"
