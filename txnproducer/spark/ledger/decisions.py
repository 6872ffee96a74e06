"""The decision about the prepared parts of a batch: a durable format that outlives this program.

Why it exists: with atomicity "prepared" each part is a transaction that its task leaves open. The
decision is one record that names all of them. When it is committed, the batch is: whoever finds it
ends the parts that are still open, by their leases, without the frame.

Owns: the record, its text, its cut into offsets. Must not know: where offsets and records are
stored, how parts are ended.

The record is the decision's number, its batch (with the name of a named run) and, for each part,
slot, producer id and epoch, as compact JSON. An offset's metadata holds 4,096 bytes, so the text
is cut into pieces, one for each of as many groups. Each piece has the count of pieces and the
digest of the whole text, and the record counts only if all of them are there and agree. In a topic
it is one record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TransactionLease
from txnproducer.spark.errors import LedgerError
from txnproducer.spark.ledger.entries import (
    MOST_METADATA_BYTES,
    UNREADABLE,
    Found,
    LedgerBatch,
    LedgerEntry,
    no_entry,
    other_format,
)

FORMAT: Final = 1
# Of the text in one offset. It is quoted once more, and its own quotes are few.
_MOST_OF_TEXT: Final = MOST_METADATA_BYTES - 400


@dataclass(frozen=True)
class Decision:
    """The decision to commit the prepared parts of a batch.

    Attributes:
        number: counts a sink's decisions, from 1.
        batch: which one; its `writers` include parts that an earlier decision has committed.
        is_transaction_v2: the version of the parts' transactions (KIP-890).
        parts: the parts' producers, by slot.
    """

    number: int
    batch: LedgerBatch
    is_transaction_v2: bool
    parts: Mapping[int, ProducerIdAndEpoch]

    def leases(self, id_of: Callable[[int], str]) -> dict[int, TransactionLease]:
        """Return the leases by which the parts are ended, by slot.

        Args:
            id_of: returns the transactional id of a slot.
        """
        return {
            slot: TransactionLease(id_of(slot), producer, self.is_transaction_v2, is_started=True)
            for slot, producer in self.parts.items()
        }

    def has_committed(self, entry: LedgerEntry | None) -> bool:
        """Return whether a slot's entry shows that this decision's part of it is committed."""
        if entry is None or entry.query_id != self.batch.query_id:
            return False
        if self.batch.run_id is not None:
            return (entry.run_id, entry.decision) == (self.batch.run_id, self.number)
        return (entry.batch_id, entry.decision) == (self.batch.batch_id, self.number)

    def stored(self) -> list[OffsetAndMetadata]:
        """Return the offsets that store this record, one for each group.

        Raises:
            LedgerError: the query id is too long.
        """
        # ASCII, so that characters are bytes.
        text = _compact(self._fields())
        pieces = [text[at : at + _MOST_OF_TEXT] for at in range(0, len(text), _MOST_OF_TEXT)]
        head = {"v": FORMAT, "of": len(pieces), "digest": _digest(text)}
        texts = [_compact({**head, "text": piece}) for piece in pieces]
        if any(len(one) > MOST_METADATA_BYTES for one in texts):
            raise LedgerError(
                f"query_id is too long: a ledger entry takes at most {MOST_METADATA_BYTES} bytes."
                " Way out: a shorter query_id"
            )
        return [OffsetAndMetadata(self.number, one) for one in texts]

    def as_one(self) -> OffsetAndMetadata:
        """Return the number and the text that store this in one record."""
        return OffsetAndMetadata(self.number, _compact({"v": FORMAT, **self._fields()}))

    def _fields(self) -> dict[str, object]:
        parts = [
            [slot, one.producer_id, one.producer_epoch] for slot, one in sorted(self.parts.items())
        ]
        batch: list[object] = [self.batch.batch_id, self.batch.query_id, self.batch.writers]
        if self.batch.run_id is not None:
            batch.append(self.batch.run_id)
        return {"batch": batch, "v2": self.is_transaction_v2, "parts": parts}


def pieces_of(first: Found) -> int:
    """Return into how many offsets a decision is cut, by the first one.

    Raises:
        LedgerError: it is none, or a newer version of this package wrote it.
    """
    return _piece(first)[0]


def parse_decision(offsets: Sequence[Found]) -> Decision | None:
    """Read a stored decision.

    Args:
        offsets: those of all groups that have one, in their order.

    Returns:
        The decision, or None if it is not whole: then nothing was decided.

    Raises:
        LedgerError: an offset holds something else, or a newer version of this package wrote it.
    """
    found = [_piece(one) for one in offsets]
    numbers = {one.stored.offset for one in offsets}
    if len(numbers) != 1 or len({head[:2] for head in found}) != 1:
        return None
    total, digest, _ = found[0]
    text = "".join(piece for _, _, piece in found)
    if len(found) != total or _digest(text) != digest:
        return None
    # Only now: a text with the right digest is one that `stored` has made.
    return _decision(numbers.pop(), json.loads(text))


def parse_one(found: Found) -> Decision:
    """Read a decision that is one record.

    Args:
        found: its number and text, of a format that is known.

    Raises:
        LedgerError: it holds something else.
    """
    stored = found.stored
    try:
        return _decision(stored.offset, json.loads(stored.metadata))
    except UNREADABLE as error:
        raise no_entry(found.place, "decision", error, stored.metadata) from error


def _decision(number: int, fields: Mapping[str, Any]) -> Decision:
    # Converted, so that a text in the place of a number raises here and not in a request.
    parts = {
        int(slot): ProducerIdAndEpoch(int(producer), int(epoch))
        for slot, producer, epoch in fields["parts"]
    }
    return Decision(number, LedgerBatch(*fields["batch"]), bool(fields["v2"]), parts)


def _piece(found: Found) -> tuple[int, str, str]:
    place, stored = found
    try:
        fields = json.loads(stored.metadata)
        version = fields["v"]
        if version == FORMAT:
            return int(fields["of"]), str(fields["digest"]), str(fields["text"])
    except UNREADABLE as error:
        raise no_entry(place, "decision", error, stored.metadata) from error
    raise other_format(place, "decision", version, (FORMAT,))


def _compact(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())
