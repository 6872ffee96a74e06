"""The ledger's entries and decisions, as the judge reads them: by itself, without the sink's code.

Owns: the reading of offsets, and of the records of a topic. Must not know: what follows from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.spark.parts.options import LEDGER, SINK
from txnproducer._broker.cluster import BrokerCluster
from txnproducer.records import OffsetAndMetadata, TopicPartition

PLAN = f"{SINK}.plan"
RUN = f"__txn.{SINK}.run:run-"
_PIECE = f"__txn.{PLAN}."
_RECORD = f"__txn.{SINK}.decision"
_PLACE = TopicPartition(LEDGER, 0)


def pending_records(
    cluster: BrokerCluster, producer_id: int
) -> dict[tuple[str, TopicPartition], OffsetAndMetadata]:
    """Return the records of a producer's open transaction, as if they were offsets of groups."""
    found: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
    if _PLACE not in cluster.logs:
        return found
    for entry in reversed(cluster.logs[_PLACE].entries):
        if entry.producer_id != producer_id:
            continue
        if entry.batch is None:  # the marker of the transaction before
            break
        for record in entry.batch:
            fields = json.loads(record.value or b'{"number":0}')
            offset = OffsetAndMetadata(fields.pop("number"), json.dumps(fields))
            # Of two records the later one counts.
            found.setdefault((f"__txn.{SINK}.{(record.key or b'').decode()}", _PLACE), offset)
    return found


def read_decision(
    written: Mapping[str, OffsetAndMetadata],
) -> tuple[int, int, str, dict[str, Any]] | None:
    """Return the decision among entries: its number, its batch, its query, all fields; or None.

    A plan alone has none. A decision that is not whole decides nothing.
    """
    pieces = {
        int(group.removeprefix(_PIECE)): offset
        for group, offset in written.items()
        if group.startswith(_PIECE)
    }
    if _RECORD in written:
        number, text = written[_RECORD].offset, written[_RECORD].metadata
    else:
        heads = [json.loads(piece.metadata) for _, piece in sorted(pieces.items())]
        numbers = {piece.offset for piece in pieces.values()}
        if not heads or heads[0]["of"] != len(heads) or len(numbers) != 1:
            return None
        [number] = numbers
        text = "".join(head["text"] for head in heads)
    fields = json.loads(text)
    batch_id, query, _, *names = fields["batch"]
    return number, _number_of(names[0]) if names else batch_id, query, fields


def batch_of(entry: OffsetAndMetadata) -> int:
    """Return the batch of an entry, by the number that a run has in its name."""
    name = json.loads(entry.metadata).get("run")
    return entry.offset if name is None else _number_of(name)


def _number_of(name: str) -> int:
    return int(name.removeprefix("run-"))
