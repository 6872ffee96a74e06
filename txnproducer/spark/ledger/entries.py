"""Entries of a sink's ledger: durable formats that outlive this program.

Owns: the entries of partitions and the plan, and their texts. Must not know: where entries are
stored.

An entry is an offset of a consumer group. The offset's number is the batch id (in an entry of a
partition) or the run (in the plan). The rest is compact JSON in the offset's metadata; `v` is its
format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import LedgerError

# Goes up with a change that an older version must not ignore: that version refuses the entry.
FORMAT: Final = 1
MOST_METADATA_BYTES: Final = 4096  # the broker's offset.metadata.max.bytes


@dataclass(frozen=True)
class LedgerBatch:
    """A batch of a sink, as the ledger names it.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: of the query that the batch belongs to.
        writers: how many partitions write it.
    """

    batch_id: int
    query_id: str
    writers: int


@dataclass(frozen=True)
class LedgerEntry:
    """The last batch that one partition has committed.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: of the query that the batch belongs to.
        writers: how many partitions wrote the batch.
        rows: how many of its rows this partition wrote.
        digest: of those rows.
        at_ms: when the entry was written, by the writer's clock; shown to people, and None if
            unknown.
    """

    batch_id: int
    query_id: str
    writers: int
    rows: int
    digest: str
    # Not compared: a replay is the same rows, at whatever time they were written.
    at_ms: int | None = field(default=None, compare=False)

    def stored(self) -> OffsetAndMetadata:
        """Return the offset that stores this entry.

        Raises:
            LedgerError: the query id is too long.
        """
        return _stored(
            self.batch_id,
            query=self.query_id,
            writers=self.writers,
            rows=self.rows,
            digest=self.digest,
            # Entries of earlier versions have no time, and are written again without one.
            **({} if self.at_ms is None else {"at": self.at_ms}),
        )

    @classmethod
    def parse(cls, group: str, stored: OffsetAndMetadata) -> LedgerEntry:
        """Read a stored entry.

        Raises:
            LedgerError: the group holds something else, or a newer version of this package wrote
                it.
        """
        found = _fields(group, stored, {"query": str, "writers": int, "rows": int, "digest": str})
        return cls(
            stored.offset,
            found["query"],
            found["writers"],
            found["rows"],
            found["digest"],
            found.get("at"),
        )


@dataclass(frozen=True)
class PlanEntry:
    """The plan of a sink. It says which run is the current one, and how many ids it may use.

    Attributes:
        run: the number of the run. Each driver begins one, and a driver begins another one after
            a batch that failed.
        query_id: of the query that the sink belongs to.
        most_writers: the largest number of partitions that ever wrote, or were about to.
    """

    run: int
    query_id: str
    most_writers: int

    def stored(self) -> OffsetAndMetadata:
        """Return the offset that stores this entry.

        Raises:
            LedgerError: the query id is too long.
        """
        return _stored(self.run, query=self.query_id, most_writers=self.most_writers)

    @classmethod
    def parse(cls, group: str, stored: OffsetAndMetadata) -> PlanEntry:
        """Read a stored plan.

        Raises:
            LedgerError: the group holds something else, or a newer version of this package wrote
                it.
        """
        found = _fields(group, stored, {"query": str, "most_writers": int})
        return cls(stored.offset, found["query"], found["most_writers"])


def _stored(number: int, **fields: Any) -> OffsetAndMetadata:
    # Compact, since the broker's limit counts each byte.
    text = json.dumps({"v": FORMAT, **fields}, separators=(",", ":"))
    # Here, and not by the broker: it would refuse the offset only in the midst of the transaction.
    if len(text.encode()) > MOST_METADATA_BYTES:
        raise LedgerError(
            f"query_id is too long: a ledger entry takes at most {MOST_METADATA_BYTES} bytes"
        )
    return OffsetAndMetadata(number, text)


def _fields(group: str, stored: OffsetAndMetadata, kinds: dict[str, type]) -> dict[str, Any]:
    try:
        fields = json.loads(stored.metadata)
        version = fields["v"]
        if version == FORMAT:
            # Fields that a later version adds to this format are ignored; `at` was one of them.
            # Converted, so that a text in the place of a number raises, and the group is no
            # ledger.
            needed = {name: kind(fields[name]) for name, kind in kinds.items()}
            return {**needed, "at": fields["at"]} if "at" in fields else needed
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"the group {group} does not hold a ledger: its metadata is {stored.metadata!r}. "
            "Groups named __txn.* are the sink's own; no consumer may use them. Delete the group "
            "if it was made by mistake, or use another sink id."
        ) from error
    raise LedgerError(
        f"the ledger group {group} has an entry of format {version!r}; this version reads format "
        f"{FORMAT}: use the version that wrote it, or a newer one"
    )
