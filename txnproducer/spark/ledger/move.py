"""The mark that a ledger's entry leaves in its group when it moves to a topic.

Why it exists: a version that knows only offsets, or a program that was not told of the topic, must
not take a ledger that has moved for one that is empty.

Owns: the mark, a durable format, and the refusal of a ledger that has moved. Must not know: how
entries are read and written (`topic_ledger.py` has the move itself).

Rules:
* For each id, one transaction writes the record into the topic and the mark into the group.
* The mark's format is above that of entries, so that earlier versions refuse it.
* Its offset is larger than that of any record, so that no monitoring sees a consumer that lags,
  and than any batch's number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import LedgerError

MARK_FORMAT: Final = 2
MARK_OFFSET: Final = 1 << 62


def mark_of(topic: str) -> OffsetAndMetadata:
    """Return the mark of an entry that has moved to a topic."""
    text = json.dumps({"v": MARK_FORMAT, "moved_to": topic}, separators=(",", ":"))
    return OffsetAndMetadata(MARK_OFFSET, text)


def topic_of(stored: OffsetAndMetadata | None) -> str | None:
    """Return the topic to which an entry has moved, or None if this is no mark."""
    if stored is None or stored.offset != MARK_OFFSET:
        return None
    try:
        return str(json.loads(stored.metadata)["moved_to"])
    # Something else: its reader says so, with its own text.
    except (ValueError, KeyError, TypeError):
        return None


def refuse_moved(
    sink_id: str, found: Mapping[str, OffsetAndMetadata], here: str | None = None
) -> None:
    """Refuse entries that have moved to another place than this one.

    Args:
        sink_id: of the sink.
        found: the stored entries, by group.
        here: the topic that this sink uses; None if it keeps its ledger in offsets.

    Raises:
        LedgerError: one has moved.
    """
    for stored in found.values():
        topic = topic_of(stored)
        if topic is not None and topic != here:
            raise moved(sink_id, topic)


def moved(sink_id: str, topic: str) -> LedgerError:
    """Return the error of a sink that does not name the topic of its ledger."""
    option = "topic" if topic == default_topic(sink_id) else f"topic:{topic}"
    return LedgerError(
        f"the ledger of the sink {sink_id!r} is in the topic {topic!r}, and this start looks for "
        f'it elsewhere. Nothing was written. Way out: ledger="{option}", for good'
    )


def default_topic(sink_id: str) -> str:
    """Return the name that the topic of a sink's ledger has, unless another one is given."""
    return f"{sink_id}.ledger"
