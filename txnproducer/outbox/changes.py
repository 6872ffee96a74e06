"""The changes that a relay makes in the database, each in one database transaction.

Owns: the statements, the generations. Must not know: Kafka, the order of the changes (`relay`).

Rules:
* Each change of a relay begins by an UPDATE of its own row, under its generation. The row's lock
  keeps a take-over out until the change is committed, on any database; and a relay that was
  replaced changes nothing.
* Each change may be repeated: the answer to a COMMIT can be lost.
* A batch is a set of rows, not a range. So a gap in the ids, or a row that is committed after one
  with a higher id, is sent later and never left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.errors import SupersededError
from txnproducer.outbox.tables import Outbox, now_ms


class OutboxRow(NamedTuple):
    """A row that is sent as a record.

    Attributes:
        id: of the row.
        topic: of the record.
        key: of the record.
        value: of the record.
        headers: of the record.
        created_ms: when it was enqueued, in milliseconds since the epoch; the record's time.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    created_ms: int


@dataclass(frozen=True)
class Claim:
    """A relay in the database, after its generation was raised.

    Attributes:
        generation: of the relay, from now on.
        batch: the number of the batch that was assigned last; 0 for none.
    """

    generation: int
    batch: int


class Changes:
    """The changes of relays in an outbox.

    Args:
        outbox: with an engine.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._engine = outbox.engine

    def take_over(
        self, relay: str, shards: Sequence[int], *, after: int | None
    ) -> tuple[Claim, dict[str, Claim]]:
        """Begin a generation of a relay. The one before changes nothing any more.

        Args:
            relay: which begins.
            shards: that it wants.
            after: the generation that this very process had before; None at its first start.

        Returns:
            The relay, and the other relays that have some of the shards. These get a new
            generation too, so that they stop. Their shards stay theirs until `adopt`.

        Raises:
            SupersededError: the relay's generation is another one than `after`.
        """
        shard = self._outbox.shards.c
        with self._engine.begin() as connection:
            if after is not None:
                self._lock(connection, relay, after)
            claim = self._raise_generation(connection, relay)
            owners = sa.select(shard.relay).where(shard.shard.in_(shards)).distinct()
            others = {one.relay for one in connection.execute(owners)} - {relay}
            # Sorted, or two relays could wait for each other.
            claims = {other: self._raise_generation(connection, other) for other in sorted(others)}
        return claim, claims

    def _raise_generation(self, connection: sa.Connection, relay: str) -> Claim:
        relays, table = self._outbox.relays.c, self._outbox.relays
        is_this = relays.relay == relay
        raised = sa.update(table).where(is_this).values(generation=relays.generation + 1)
        if not connection.execute(raised).rowcount:
            connection.execute(sa.insert(table).values(relay=relay, generation=1, batch=0))
        found = connection.execute(sa.select(relays.generation, relays.batch).where(is_this))
        return Claim(*found.one())

    def settle(self, relay: str, generation: int, committed: int, *, forgets: bool) -> None:
        """Bring the rows of a relay in line with its ledger.

        Args:
            relay: which has the rows.
            generation: of it.
            committed: the number of the last batch that Kafka has.
            forgets: whether rows of later batches are unassigned. Otherwise they are sent again in
                the same batches.

        Raises:
            SupersededError: another generation has begun.
        """
        rows, table = self._outbox.rows.c, self._outbox.rows
        is_its = rows.relay == relay
        with self._changing(relay, generation) as connection:
            connection.execute(sa.delete(table).where(is_its, rows.batch <= committed))
            if forgets:
                connection.execute(sa.update(table).where(is_its).values(relay=None, batch=None))
                self._set_batch(connection, relay, committed)

    def _set_batch(self, connection: sa.Connection, relay: str, batch: int) -> None:
        table = self._outbox.relays
        connection.execute(sa.update(table).where(table.c.relay == relay).values(batch=batch))

    def adopt(
        self, relay: str, generation: int, shards: Sequence[int], others: Mapping[str, Claim]
    ) -> None:
        """Make shards the relay's own.

        Args:
            relay: the new owner.
            generation: of it.
            shards: their numbers.
            others: the relays that had some of them, from `take_over`.

        Raises:
            SupersededError: the relay, or one of the others, has begun another generation.
        """
        table = self._outbox.shards
        with self._changing(relay, generation) as connection:
            for other, claim in sorted(others.items()):
                self._lock(connection, other, claim.generation)
            there = set(connection.scalars(sa.select(table.c.shard)))
            missing = [{"shard": one, "relay": relay} for one in shards if one not in there]
            if missing:
                connection.execute(sa.insert(table), missing)
            is_wanted = table.c.shard.in_(shards)
            connection.execute(sa.update(table).where(is_wanted).values(relay=relay))

    def next_batch(
        self, relay: str, generation: int, batch: int, *, most_rows: int, most_bytes: int
    ) -> list[OutboxRow]:
        """Return the rows of a batch. If none has its number, assign rows to it.

        Args:
            relay: which asks.
            generation: of it.
            batch: the number of the batch.
            most_rows: of a new batch.
            most_bytes: of keys and values of a new batch; it has one row at least.

        Raises:
            SupersededError: another generation has begun.
        """
        rows = self._outbox.rows.c
        is_ours = sa.and_(rows.relay == relay, rows.batch == batch)
        with self._changing(relay, generation) as connection:
            found = self._read(connection, is_ours)
            if found:
                return found
            chosen = self._unassigned(connection, relay, most_rows, most_bytes)
            if not chosen:
                return []
            connection.execute(
                sa.update(self._outbox.rows)
                .where(rows.id.in_(chosen))
                .values(relay=relay, batch=batch)
            )
            self._set_batch(connection, relay, batch)
            return self._read(connection, is_ours)

    def _unassigned(
        self, connection: sa.Connection, relay: str, most_rows: int, most_bytes: int
    ) -> list[int]:
        rows = self._outbox.rows.c
        own = sa.select(self._outbox.shards.c.shard).where(self._outbox.shards.c.relay == relay)
        size = sa.func.coalesce(sa.func.length(rows.value), 0) + sa.func.coalesce(
            sa.func.length(rows.key), 0
        )
        query = (
            sa.select(rows.id, size)
            .where(rows.relay.is_(None), rows.shard.in_(own))
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

    def _read(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[OutboxRow]:
        rows = self._outbox.rows.c
        query = (
            sa.select(rows.id, rows.topic, rows.key, rows.value, rows.headers, rows.created_ms)
            .where(which)
            .order_by(rows.id)
        )
        return [
            OutboxRow(one.id, one.topic, one.key, one.value, _pairs(one.headers), one.created_ms)
            for one in connection.execute(query)
        ]

    def bury(self, relay: str, generation: int, errors: Mapping[int, str]) -> None:
        """Move rows to the table of dead rows.

        Args:
            relay: which asks.
            generation: of it.
            errors: by the row's id, why it cannot be sent.

        Raises:
            SupersededError: another generation has begun.
        """
        rows = self._outbox.rows.c
        names = ["id", "topic", "key", "value", "headers", "created_ms"]
        with self._changing(relay, generation) as connection:
            for number, error in errors.items():
                is_this = rows.id == number
                row = sa.select(
                    *(rows[name] for name in names),
                    sa.literal(error),
                    sa.literal(now_ms(), sa.BigInteger),
                )
                connection.execute(
                    sa.insert(self._outbox.dead).from_select(
                        [*names, "error", "moved_ms"], row.where(is_this)
                    )
                )
                connection.execute(sa.delete(self._outbox.rows).where(is_this))

    # --- the generation --------------------------------------------------------------------------

    @contextmanager
    def _changing(self, relay: str, generation: int) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            self._lock(connection, relay, generation)
            yield connection

    def _lock(self, connection: sa.Connection, relay: str, generation: int) -> None:
        relays = self._outbox.relays.c
        is_this = sa.and_(relays.relay == relay, relays.generation == generation)
        # A change of nothing, which locks the row on any database until the end.
        same = sa.update(self._outbox.relays).where(is_this).values(generation=generation)
        if not connection.execute(same).rowcount:
            raise SupersededError(
                f"the relay {relay!r} has begun another generation than {generation}: another"
                " process has its relay_id, or has taken some of its shards. This one has changed"
                " nothing. If that was not meant, give each process a relay_id, and shards, of its"
                " own"
            )


def _pairs(headers: str | None) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    return [
        (name, None if text is None else base64.b64decode(text))
        for name, text in json.loads(headers)
    ]
