"""The ledger: which batch each partition has committed last, kept inside the same transactions.

Why it exists: a stable transactional id fences a zombie, but does not recognise a replay. So each
transaction also commits, as a consumer group's offset, the batch id it carries; an aborted one
leaves no trace, a committed one can't be without it.

Owns: names of ids and groups, the entry's format, reading, the rules of what fits. Must not know:
Spark's frames, how rows are written.

Rules:
* An entry is read at "require stable", so that an undecided commit is waited for.
* Absent is absent only if the cluster says so without an error.
* A ledger that does not fit stops the batch before a row is written: a deleted checkpoint, whose
  batch ids begin again at 0, would otherwise drop data in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from txnproducer.admin import committed_offsets, group_ids
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.spark.errors import LedgerError, PartialReplayError

FORMAT: Final = 1
MOST_METADATA_BYTES: Final = 4096  # the broker's offset.metadata.max.bytes
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class LedgerEntry:
    """What one partition has committed last.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: whose batches.
        writers: how many partitions wrote the batch.
        rows: how many of its rows this one wrote.
        digest: of those rows.
    """

    batch_id: int
    query_id: str
    writers: int
    rows: int
    digest: str

    def metadata(self) -> str:
        """Return all but the batch id as the text that is stored.

        Raises:
            LedgerError: the query id is too long for it.
        """
        text = json.dumps(
            {
                "v": FORMAT,
                "query": self.query_id,
                "writers": self.writers,
                "rows": self.rows,
                "digest": self.digest,
            },
            separators=(",", ":"),
        )
        if len(text.encode()) > MOST_METADATA_BYTES:
            raise LedgerError(
                f"query_id is too long: a ledger entry takes at most {MOST_METADATA_BYTES} bytes"
            )
        return text

    @classmethod
    def parse(cls, group: str, stored: OffsetAndMetadata) -> LedgerEntry:
        """Read a stored entry.

        Raises:
            LedgerError: it is not one, or of a newer version of this package.
        """
        try:
            fields = json.loads(stored.metadata)
            if fields["v"] != FORMAT:
                raise LedgerError(
                    f"the ledger group {group} has an entry of format {fields['v']!r}; this "
                    f"version reads format {FORMAT}: use the version that wrote it, or a newer one"
                )
            return cls(
                stored.offset,
                str(fields["query"]),
                int(fields["writers"]),
                int(fields["rows"]),
                str(fields["digest"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"the group {group} is no ledger: its metadata is {stored.metadata!r}. Groups "
                "named __txn.* are the sink's own; no consumer may use them. Delete the group if "
                "it was made by mistake, or use another sink id."
            ) from error


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
    security: Mapping[str, Any]

    def transactional_id(self, partition: int) -> str:
        """Return the id that writes a Spark partition, the same for ever."""
        return f"{self.sink_id}.p{partition}"

    def group(self, partition: int) -> str:
        """Return the group that holds a Spark partition's entry."""
        return f"__txn.{self.transactional_id(partition)}"

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

    def read(self, partitions: Sequence[int]) -> dict[int, LedgerEntry]:
        """Return the entries of partitions; one that has none is left out."""
        groups = {self.group(partition): partition for partition in partitions}
        found = committed_offsets(
            self.bootstrap_servers,
            list(groups),
            _TIMEOUT_S,
            partitions=[self.place],
            **dict(self.security),
        )
        entries = {}
        for group, partition in groups.items():
            stored = found.get(group, {}).get(self.place)
            if stored is not None:
                entries[partition] = LedgerEntry.parse(group, stored)
        return entries

    def write(self, producer: TransactionalProducer, partition: int, entry: LedgerEntry) -> None:
        """Make an entry a part of the producer's open transaction."""
        producer.send_offsets_to_transaction(
            {self.place: OffsetAndMetadata(entry.batch_id, entry.metadata())},
            ConsumerGroupMetadata(self.group(partition)),
        )


@dataclass(frozen=True)
class LedgerRules:
    """What to do about a ledger that does not fit: the sink's options of these names."""

    on_missing_ledger: str = "stop"
    on_foreign_ledger: str = "stop"

    def fitting(
        self, entries: Mapping[int, LedgerEntry], batch_id: int, query_id: str
    ) -> dict[int, LedgerEntry]:
        """Return the entries that count for a batch.

        Raises:
            LedgerError: one is another query's, or ahead of the batch.
        """
        if self.on_foreign_ledger == "take_over":
            return {
                partition: entry
                for partition, entry in entries.items()
                if entry.query_id == query_id and entry.batch_id <= batch_id
            }
        for partition, entry in sorted(entries.items()):
            if entry.query_id != query_id:
                raise LedgerError(
                    f"partition {partition} of this sink belongs to another query: its ledger "
                    f"holds batch {entry.batch_id} of query {entry.query_id}, this is batch "
                    f"{batch_id} of query {query_id}. Either two queries use one sink id, or the "
                    "checkpoint was deleted or replaced. Ways out: another sink id; the old "
                    'checkpoint; or on_foreign_ledger="take_over", if the old query is gone and '
                    "its rows may be written once more."
                )
            if entry.batch_id > batch_id:
                raise LedgerError(
                    f"partition {partition} has committed batch {entry.batch_id} already, this is "
                    f"batch {batch_id}: the checkpoint was rewound. Ways out: the newer "
                    'checkpoint; another sink id; or on_foreign_ledger="take_over", if the rows '
                    "since then may be written once more."
                )
        return dict(entries)

    def check(
        self, entries: Mapping[int, LedgerEntry], batch_id: int, query_id: str, writers: int
    ) -> bool:
        """Check, on the driver, the ledgers against a batch before any row is written.

        Returns:
            Whether the whole batch is committed already, so that this is a replay.

        Raises:
            LedgerError: the ledger is missing, another query's, or ahead.
            PartialReplayError: only some partitions have committed the batch.
        """
        fitting = self.fitting(entries, batch_id, query_id)
        self._check_missing(fitting, entries, batch_id)
        done = {p: entry for p, entry in fitting.items() if entry.batch_id == batch_id}
        if not done:
            return False
        others = {entry.writers for entry in done.values()}
        if len(done) == writers and others == {writers}:
            return True
        rows = sum(entry.rows for entry in done.values())
        raise PartialReplayError(
            f"batch {batch_id} is committed in part: {len(done)} partition(s) "
            f"({', '.join(map(str, sorted(done)))}) hold {rows} rows of it, written by "
            f"{sorted(others)} writers; now there are {writers}. Nothing was written: "
            "the rest could lose or double rows, if they are cut into partitions in another way. "
            "Ways out: another sink id with a new topic; or another sink id on the same topic, "
            "when the rows of the partitions named above may be written once more."
        )

    def _check_missing(
        self,
        fitting: Mapping[int, LedgerEntry],
        entries: Mapping[int, LedgerEntry],
        batch_id: int,
    ) -> None:
        if self.on_missing_ledger == "write" or batch_id == 0:
            return
        if not entries:
            raise LedgerError(
                f"this sink has no ledger, but this is batch {batch_id}: either the query wrote "
                "elsewhere before, or the ledger has expired (offsets.retention.minutes after the "
                "last batch) or was deleted with its topic. Whether the batch was written before "
                'can\'t be known. Way out: on_missing_ledger="write", if it was not, or may be '
                "written once more."
            )
        before = [e.writers for e in fitting.values() if e.batch_id == batch_id - 1]
        lost = [p for p in range(max(before, default=0)) if p not in entries]
        if lost:
            raise LedgerError(
                f"batch {batch_id - 1} was written by {max(before)} partitions, but the ledgers "
                f"of {lost} are missing: they have expired or were deleted. Way out: "
                'on_missing_ledger="write", if the batch was not written there, or may be '
                "written once more."
            )
