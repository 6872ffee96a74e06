"""The row of a relay in the database: its generation, and the last batch that was assigned.

Owns: the lock, the claim, the rule by which database and ledger fit. Must not know: Kafka, shards,
which change follows.

Rules:
* Each change of a relay begins by an UPDATE of its own row, under its generation. The row's lock
  keeps a take-over out until the change is committed, on any database; and a relay that was
  replaced changes nothing.
* Each change may be repeated: the answer to a COMMIT can be lost.
* The ledger is at the batch that was assigned last, or at the one before. Otherwise one of the two
  was set back, and rows would be sent twice or left out. Each change checks that under the lock.
* A number does not say which rows a batch has: a cut may be lost in a failover, and a copy of the
  database gives the same number to other rows. So the rows carry a random mark, drawn again with
  each change of the batch. The ledger has it too, and only rows with its mark are deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from txnproducer.errors import KafkaError
from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.errors import OutboxError, SupersededError
from txnproducer.outbox.tables import Outbox

__all__ = ["Claim", "Committed", "RelayRow", "again", "new_mark"]

_POSTGRESQL: Final = (
    # A process that is frozen in the midst of a change holds its row's lock. PostgreSQL ends its
    # session after this time, and another relay does not wait without a word meanwhile.
    "SET LOCAL lock_timeout = '5s'",
    "SET LOCAL idle_in_transaction_session_timeout = '30s'",
)


@dataclass(frozen=True)
class Claim:
    """A relay in the database, after its generation was raised.

    Attributes:
        generation: of the relay, from now on.
        batch: the number of the batch that was assigned last; 0 for none.
        origin: a random name of this relay in this database, which its ledger has too.
        ledger_topic: the topic of its ledger.
    """

    generation: int
    batch: int
    origin: str
    ledger_topic: str


class Committed(NamedTuple):
    """The last batch that Kafka has, as the ledger says.

    Attributes:
        number: of the batch; 0 for none.
        mark: of its rows, in their column `batch`.
    """

    number: int
    mark: int

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self:
        """Read the ledger's entry. The number was the mark as well, before entries had one."""
        number = int(entry["batch"])
        return cls(number, int(entry.get("mark", number)))


class RelayRow:
    """The row of one relay, and the parts of its changes.

    Args:
        outbox: with an engine.
        relay: its id.
    """

    def __init__(self, outbox: Outbox, relay: str) -> None:
        self._outbox = outbox
        self._engine = outbox.engine
        if self._engine.dialect.name == "postgresql":
            # The row's lock is enough. At a level that the engine may have for the program,
            # PostgreSQL would cancel changes because of rows that are enqueued at the same time.
            # Not by a statement: it would have to come before any of the engine's listeners.
            self._engine = self._engine.execution_options(isolation_level="READ COMMITTED")
        self._relay = relay
        self._is_this = outbox.relays.c.relay == relay
        self._is_ours = outbox.rows.c.relay == relay

    def _claim(self, connection: sa.Connection, relay: str) -> Claim:
        relays = self._outbox.relays.c
        query = sa.select(relays.generation, relays.batch, relays.origin, relays.ledger_topic)
        return Claim(*connection.execute(query.where(relays.relay == relay)).one())

    def _settle(
        self,
        connection: sa.Connection,
        relay: str,
        committed: Committed,
        *,
        accepts_set_back: bool = False,
    ) -> bool:
        """Delete the rows that Kafka has. Return whether the database fits the ledger otherwise.

        Raises:
            OutboxError: it does not, and that is not accepted.
        """
        rows = self._outbox.rows
        is_its = rows.c.relay == relay
        connection.execute(sa.delete(rows).where(is_its, rows.c.batch == committed.mark))
        assigned, number = self._claim(connection, relay).batch, committed.number
        if number == assigned - 1:
            return True
        left = connection.scalar(sa.select(rows.c.id).where(is_its).limit(1))
        if number == assigned and left is None:
            return True
        if not accepts_set_back:
            raise _set_back(relay, number, assigned)
        return False

    def _free(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
        freed = sa.update(self._outbox.rows).where(which).values(relay=None, batch=None)
        connection.execute(freed)

    def _take_out(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
        """Free some rows of the batch that is not committed. The others get another mark."""
        self._free(connection, sa.and_(self._is_ours, which))
        connection.execute(
            sa.update(self._outbox.rows).where(self._is_ours).values(batch=new_mark())
        )

    def _set_batch(self, connection: sa.Connection, relay: str, batch: int) -> None:
        table = self._outbox.relays
        connection.execute(sa.update(table).where(table.c.relay == relay).values(batch=batch))

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                for statement in _POSTGRESQL:
                    connection.execute(sa.text(statement))
            yield connection

    @contextmanager
    def _changing(self, generation: int) -> Iterator[sa.Connection]:
        with self._begin() as connection:
            self._lock(connection, generation)
            yield connection

    def _lock(self, connection: sa.Connection, generation: int) -> None:
        if not self._touch(connection, self._relay, generation):
            raise self._superseded()

    def _lock_other(self, connection: sa.Connection, relay: str, generation: int) -> None:
        if not self._touch(connection, relay, generation):
            raise again(f"the relay {relay!r} has begun again while its shards were taken")

    def _touch(self, connection: sa.Connection, relay: str, generation: int) -> bool:
        table = self._outbox.relays
        is_this = sa.and_(table.c.relay == relay, table.c.generation == generation)
        # A change of nothing, which locks the row on any database until the end.
        same = sa.update(table).where(is_this).values(generation=generation)
        return bool(connection.execute(same).rowcount)

    def _superseded(self) -> SupersededError:
        return SupersededError(
            f"another process has begun as the relay {self._relay!r}, or has taken some of its"
            " shards. This one has changed nothing since. If that was not meant, give each process"
            " a relay_id, and shards, of its own"
        )


def _set_back(relay: str, committed: int, assigned: int) -> OutboxError:
    if committed > assigned:
        cause = "the database was restored, so that rows that were sent may be there again"
    elif committed == assigned:
        cause = (
            "Kafka has other rows in that batch, so the database was restored, or is one of two"
            " copies that both send"
        )
    else:
        cause = "the ledger's topic was restored, or has lost entries"
    return OutboxError(
        f"the ledger of the relay {relay!r} is at batch {committed}, and the database has"
        f" assigned batch {assigned}: {cause}. Nothing was sent. Way out: begin that relay once"
        ' with on_set_back="send", which sends all rows that are there. Delete those that were'
        " sent already before that, or they are sent once more"
    )


def new_mark() -> int:
    """Return a random mark, far above the numbers that were the marks before."""
    return 2**62 + secrets.randbits(62)


def again(text: str) -> KafkaError:
    """Return an error after which the relay begins again."""
    return KafkaError(f"{text}: begin again", recovery="resume")
