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
from typing import Any, Final, NamedTuple

from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import LedgerError

# Goes up with a change that an older version must not ignore: that version refuses the entry.
FORMAT: Final = 1
# Of a plan whose parts are prepared: an older version would take their ids before it reads the
# decision.
PREPARED_FORMAT: Final = 2
MOST_METADATA_BYTES: Final = 4096  # the broker's offset.metadata.max.bytes
# All that reading a text of another program, or a damaged one, may raise. A number may be
# Infinity, and brackets be nested deeper than Python's stack.
UNREADABLE: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
WAYS_OUT: Final = (
    "Only the sink writes its ledger: no consumer may use a group named __txn.*, and no other "
    "program the topic of a ledger. Another attempt finds the same. Ways out: delete that group, "
    "or that topic, if another program has written there by mistake, and start once with "
    'on_missing_ledger="write", which writes the coming batch in any case; or another sink id'
)


class Found(NamedTuple):
    """A stored entry as it was found.

    Attributes:
        place: for errors: the group or the topic, with partition and offset.
        stored: the entry.
    """

    place: str
    stored: OffsetAndMetadata


@dataclass(frozen=True)
class LedgerBatch:
    """A batch of a sink, as the ledger names it.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: of the query that the batch belongs to.
        writers: how many partitions write it.
        run_id: the name of the run, if the batch has a name in place of a number (which is 0).
    """

    batch_id: int
    query_id: str
    writers: int
    run_id: str | None = None

    @property
    def name(self) -> str:
        """The batch's name or number, for people."""
        return str(self.batch_id) if self.run_id is None else self.run_id


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
        decision: with atomicity "prepared": the number of the decision that commits the
            partition, 0 if its own commit decides; None in the other modes.
        run_id: see `LedgerBatch`.
    """

    batch_id: int
    query_id: str
    writers: int
    rows: int
    digest: str
    # Not compared: a replay is the same rows, at whatever time they were written.
    at_ms: int | None = field(default=None, compare=False)
    decision: int | None = field(default=None, compare=False)
    run_id: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The batch's name or number, for people."""
        return str(self.batch_id) if self.run_id is None else self.run_id

    def stored(self) -> OffsetAndMetadata:
        """Return the offset that stores this entry.

        Raises:
            LedgerError: the query id is too long.
        """
        # Entries of earlier versions have no time, and are written again without one.
        more: dict[str, Any] = {"at": self.at_ms, "decision": self.decision, "run": self.run_id}
        return _stored(
            self.batch_id,
            query=self.query_id,
            writers=self.writers,
            rows=self.rows,
            digest=self.digest,
            **{name: value for name, value in more.items() if value is not None},
        )

    @classmethod
    def parse(cls, place: str, stored: OffsetAndMetadata) -> LedgerEntry:
        """Read a stored entry.

        Args:
            place: of the entry, for errors.
            stored: the entry.

        Raises:
            LedgerError: it is something else, or a newer version of this package wrote it.
        """
        kinds = {"query": str, "writers": int, "rows": int, "digest": str}
        more = {"at": int, "decision": int, "run": str}
        found = _fields(place, stored, kinds, more)
        return cls(
            stored.offset,
            found["query"],
            found["writers"],
            found["rows"],
            found["digest"],
            found.get("at"),
            found.get("decision"),
            found.get("run"),
        )


@dataclass(frozen=True)
class PlanEntry:
    """The plan of a sink. It says which run is the current one, and how many ids it may use.

    Attributes:
        run: the number of the run. Each driver begins one, and a driver begins another one after
            a batch that failed.
        query_id: of the query that the sink belongs to.
        most_writers: the largest number of partitions that ever wrote, or were about to.
        is_prepared: whether the sink's parts are prepared and decided, see `decisions.py`.
    """

    run: int
    query_id: str
    most_writers: int
    is_prepared: bool = False

    def stored(self) -> OffsetAndMetadata:
        """Return the offset that stores this entry.

        Raises:
            LedgerError: the query id is too long.
        """
        version = PREPARED_FORMAT if self.is_prepared else FORMAT
        return _stored(self.run, version, query=self.query_id, most_writers=self.most_writers)

    @classmethod
    def parse(cls, place: str, stored: OffsetAndMetadata) -> PlanEntry:
        """Read a stored plan. See `LedgerEntry.parse`."""
        versions = (FORMAT, PREPARED_FORMAT)
        found = _fields(place, stored, {"query": str, "most_writers": int}, {}, versions)
        is_prepared = found["v"] == PREPARED_FORMAT
        return cls(stored.offset, found["query"], found["most_writers"], is_prepared)


def _stored(number: int, version: int = FORMAT, **fields: Any) -> OffsetAndMetadata:
    # Compact, since the broker's limit counts each byte.
    text = json.dumps({"v": version, **fields}, separators=(",", ":"))
    # Here, and not by the broker: it would refuse the offset only in the midst of the transaction.
    if len(text.encode()) > MOST_METADATA_BYTES:
        raise LedgerError(
            f"query_id is too long: a ledger entry takes at most {MOST_METADATA_BYTES} bytes."
            " Way out: a shorter query_id"
        )
    return OffsetAndMetadata(number, text)


def _fields(
    place: str,
    stored: OffsetAndMetadata,
    kinds: dict[str, type],
    more: dict[str, type],
    versions: tuple[int, ...] = (FORMAT,),
) -> dict[str, Any]:
    """Return the fields of an entry: all of some kinds, and `more` of which any may be missing."""
    try:
        fields = json.loads(stored.metadata)
        version = fields["v"]
        if version in versions:
            # Fields that a later version adds to this format are ignored; `at`, `decision` and
            # `run` were such. Converted, so that a text in the place of a number raises, and it
            # is no ledger.
            needed = {name: kind(fields[name]) for name, kind in kinds.items()}
            given = {name: kind(fields[name]) for name, kind in more.items() if name in fields}
            return {**fields, **needed, **given}
    except UNREADABLE as error:
        raise no_entry(place, "entry", error, stored.metadata) from error
    raise other_format(place, "entry", version, versions)


def no_entry(place: str, kind: str, error: Exception, text: str | bytes) -> LedgerError:
    """Return the error of something that is no entry of a ledger.

    Args:
        place: of it.
        kind: of the entry that was looked for: "entry" or "decision".
        error: met in reading it.
        text: of it; errors show its beginning.
    """
    return LedgerError(
        f"{place} does not hold a ledger's {kind} ({type(error).__name__}: {error}). The text is "
        f"{text!r:.300}. {WAYS_OUT}"
    )


def other_format(place: str, kind: str, version: Any, versions: tuple[int, ...]) -> LedgerError:
    """Return the error of an entry in a format that this version does not read."""
    return LedgerError(
        f"{place} has a ledger's {kind} of format {version!r:.50}; this version reads format "
        f"{' and '.join(map(str, versions))}: use the version that wrote it, or a newer one"
    )
