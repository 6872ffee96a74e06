"""What a sink's ledger holds: durable formats, that outlive this program.

Owns: the entries of partitions and the plan, their texts. Must not know: where they are stored.

An entry is a consumer group's offset: the number is the batch id (of a partition) or the run (of
the plan), the rest is compact JSON in the offset's metadata. `v` is its format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import LedgerError

FORMAT: Final = 1
MOST_METADATA_BYTES: Final = 4096  # the broker's offset.metadata.max.bytes


@dataclass(frozen=True)
class Batch:
    """A batch, as far as the ledger is about it.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: whose.
        writers: how many partitions write it.
    """

    batch_id: int
    query_id: str
    writers: int


@dataclass(frozen=True)
class LedgerEntry:
    """What one partition has committed last.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: whose batches.
        writers: how many partitions wrote the batch.
        rows: how many of its rows this one wrote.
        digest: of those rows.
        at_ms: when it was written, by the clock of who wrote it, for people; None if unknown.
    """

    batch_id: int
    query_id: str
    writers: int
    rows: int
    digest: str
    at_ms: int | None = field(default=None, compare=False)

    def stored(self) -> OffsetAndMetadata:
        """Return it as it is stored.

        Raises:
            LedgerError: the query id is too long for it.
        """
        return _stored(
            self.batch_id,
            query=self.query_id,
            writers=self.writers,
            rows=self.rows,
            digest=self.digest,
            **({} if self.at_ms is None else {"at": self.at_ms}),
        )

    @classmethod
    def parse(cls, group: str, stored: OffsetAndMetadata) -> LedgerEntry:
        """Read a stored entry.

        Raises:
            LedgerError: it is not one, or of a newer version of this package.
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
    """What is planned of a sink.

    Attributes:
        run: counts the runs: drivers, and new beginnings of a driver after a failed batch.
        query_id: whose.
        most_writers: how many partitions have ever written, or were about to.
    """

    run: int
    query_id: str
    most_writers: int

    def stored(self) -> OffsetAndMetadata:
        """Return it as it is stored.

        Raises:
            LedgerError: the query id is too long for it.
        """
        return _stored(self.run, query=self.query_id, most_writers=self.most_writers)

    @classmethod
    def parse(cls, group: str, stored: OffsetAndMetadata) -> PlanEntry:
        """Read a stored plan.

        Raises:
            LedgerError: it is not one, or of a newer version of this package.
        """
        found = _fields(group, stored, {"query": str, "most_writers": int})
        return cls(stored.offset, found["query"], found["most_writers"])


def _stored(number: int, **fields: Any) -> OffsetAndMetadata:
    text = json.dumps({"v": FORMAT, **fields}, separators=(",", ":"))
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
            # What a later version of this format adds is no reason to refuse it; `at` was added.
            needed = {name: kind(fields[name]) for name, kind in kinds.items()}
            return {**needed, "at": fields["at"]} if "at" in fields else needed
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"the group {group} is no ledger: its metadata is {stored.metadata!r}. Groups named "
            "__txn.* are the sink's own; no consumer may use them. Delete the group if it was "
            "made by mistake, or use another sink id."
        ) from error
    raise LedgerError(
        f"the ledger group {group} has an entry of format {version!r}; this version reads format "
        f"{FORMAT}: use the version that wrote it, or a newer one"
    )
