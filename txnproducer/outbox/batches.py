"""The changes of a batch: rows are assigned to it, taken out of it, buried.

Owns: the statements, the form of a row. Must not know: Kafka, the order of the changes (`relay`).

A batch is a set of rows, not a range. So a gap in the ids, or a row that is committed after one
with a higher id, is sent later and never left out.
"""

from __future__ import annotations

import base64
import json
from typing import Final, NamedTuple

from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.relay_row import Committed, RelayRow, new_mark
from txnproducer.outbox.tables import now_ms

__all__ = ["Batch", "Batches", "OutboxRow"]

# Below every database's limit of parameters in one statement.
_IN_ONE_STATEMENT: Final = 500


class OutboxRow(NamedTuple):
    """A row that is sent as a record.

    Attributes:
        id: of the row.
        topic: of the record.
        key: of the record.
        value: of the record.
        headers: of the record.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Batch(NamedTuple):
    """Rows that are sent in one transaction.

    Attributes:
        mark: that they carry in the database.
        rows: in the order of their ids; none if there is nothing to send.
    """

    mark: int
    rows: list[OutboxRow]


class Batches(RelayRow):
    """The changes of one relay's batches."""

    def next_batch(
        self, generation: int, committed: Committed, *, most_rows: int, most_bytes: int
    ) -> Batch:
        """Return the batch after the committed one. If it has no rows, assign some.

        Args:
            generation: of this relay.
            committed: the batch before.
            most_rows: of a new batch.
            most_bytes: of keys and values of a new batch; it has one row at least.

        Raises:
            SupersededError: another generation has begun.
            OutboxError: database and ledger do not fit.
        """
        if self._is_idle(generation):
            return Batch(0, [])
        rows = self._outbox.rows.c
        with self._changing(generation) as connection:
            self._settle(connection, self._relay, committed)
            found = self._read(connection)
            if found.rows:
                return found
            chosen = self._unassigned(connection, most_rows, most_bytes)
            if not chosen:
                return found
            assigned = sa.update(self._outbox.rows).values(relay=self._relay, batch=new_mark())
            for start in range(0, len(chosen), _IN_ONE_STATEMENT):
                some = chosen[start : start + _IN_ONE_STATEMENT]
                connection.execute(assigned.where(rows.id.in_(some)))
            self._set_batch(connection, self._relay, committed.number + 1)
            return self._read(connection)

    def _is_idle(self, generation: int) -> bool:
        """Return whether there is nothing to do, without a lock: an idle relay writes nothing."""
        rows = self._outbox.rows.c
        is_next = sa.or_(self._is_ours, sa.and_(rows.relay.is_(None), rows.shard.in_(self._own())))
        present = sa.select(self._outbox.relays.c.generation).where(self._is_this)
        with self._begin() as connection:
            if connection.scalar(present) != generation:
                raise self._superseded()
            return connection.scalar(sa.select(rows.id).where(is_next).limit(1)) is None

    def _own(self) -> sa.Select[tuple[int]]:
        shard = self._outbox.shards.c
        return sa.select(shard.shard).where(shard.relay == self._relay)

    def _unassigned(self, connection: sa.Connection, most_rows: int, most_bytes: int) -> list[int]:
        rows = self._outbox.rows.c
        sizes = (sa.func.coalesce(sa.func.length(each), 0) for each in (rows.value, rows.key))
        query = (
            sa.select(rows.id, sum(sizes, sa.literal(0)))
            .where(rows.relay.is_(None), rows.shard.in_(self._own()))
            .order_by(rows.id)
            .limit(most_rows)
        )
        chosen: list[int] = []
        total = 0
        for number, length in connection.execute(query):
            total += length
            if chosen and total > most_bytes:
                break
            chosen.append(number)
        return chosen

    def _read(self, connection: sa.Connection) -> Batch:
        rows = self._outbox.rows.c
        query = (
            sa.select(rows.id, rows.topic, rows.key, rows.value, rows.headers, rows.batch)
            .where(self._is_ours)
            .order_by(rows.id)
        )
        found = connection.execute(query).all()
        return Batch(
            found[0].batch if found else 0,
            [
                OutboxRow(one.id, one.topic, one.key, one.value, _pairs(one.headers))
                for one in found
            ],
        )

    def delete_sent(self, generation: int, committed: Committed) -> None:
        """Delete the rows of a batch that is committed.

        Raises:
            SupersededError: another generation has begun.
            OutboxError: database and ledger do not fit.
        """
        with self._changing(generation) as connection:
            self._settle(connection, self._relay, committed)

    def cut(self, generation: int, last: int) -> None:
        """Take the rows after one out of the batch that is not committed.

        Args:
            generation: of this relay.
            last: the id of the last row that stays.

        Raises:
            SupersededError: another generation has begun.
        """
        with self._changing(generation) as connection:
            self._take_out(connection, self._outbox.rows.c.id > last)

    def bury(self, generation: int, row: int, error: str) -> None:
        """Move a row to the table of dead rows.

        Args:
            generation: of this relay.
            row: its id.
            error: the reason why it cannot be sent.

        Raises:
            SupersededError: another generation has begun.
        """
        rows, dead = self._outbox.rows, self._outbox.dead
        names = ["topic", "key", "value", "headers", "created_ms"]
        found = sa.select(
            rows.c.id,
            *(rows.c[name] for name in names),
            sa.literal(error),
            sa.literal(now_ms(), sa.BigInteger),
        ).where(rows.c.id == row)
        with self._changing(generation) as connection:
            into = ["row_id", *names, "error", "moved_ms"]
            connection.execute(sa.insert(dead).from_select(into, found))
            connection.execute(sa.delete(rows).where(rows.c.id == row))


def _pairs(headers: str | None) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    return [
        (name, None if text is None else base64.b64decode(text))
        for name, text in json.loads(headers)
    ]
