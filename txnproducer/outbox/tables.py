"""The tables of an outbox, and the rows that programs write into it.

Owns: the tables, the shard of a key, the form of a row. Must not know: relays, Kafka.
"""

from __future__ import annotations

import base64
import inspect
import json
import random
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from txnproducer._core.metadata import is_valid_name
from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.errors import OutboxError

__all__ = ["SHARDS", "Outbox"]

# Fixed for ever: the shard of a key is stored with its rows.
SHARDS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
# SQLite counts up only a primary key that is an INTEGER.
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class Outbox:
    """An outbox in a database.

    A row is part of the caller's own database transaction, for example::

        outbox = Outbox(engine)
        outbox.create_tables()
        with Session(engine) as session, session.begin():
            session.add(order)
            outbox.enqueue(session, "orders", order.to_json(), key=order.customer)

    Records of one key keep the order in which their rows were enqueued, if the database
    transactions of these do not overlap.

    Args:
        engine: SQLAlchemy's; None for a program that only enqueues.
        name: of the table of rows, and the prefix of the other tables.
        metadata: takes the tables, for migrations; None for an own one.

    Raises:
        ValueError: the name is none of a table.
        TypeError: the engine is none, such as an AsyncEngine.
    """

    def __init__(
        self,
        engine: sa.Engine | None = None,
        *,
        name: str = "txn_outbox",
        metadata: sa.MetaData | None = None,
    ) -> None:
        if engine is not None and not isinstance(engine, sa.Engine):
            raise TypeError(  # without the text of an address, which may have a password
                f"engine must be an Engine of create_engine(), not {type(engine).__name__}. A"
                " relay runs in a thread of its own, beside an AsyncEngine of the program"
            )
        if not _NAME.fullmatch(name):
            raise ValueError(f"name={name!r}: give up to 41 letters, digits and underscores")
        self._engine = engine
        self.metadata = sa.MetaData() if metadata is None else metadata
        self.rows = self._table(
            name,
            sa.Column("id", _Id, primary_key=True, autoincrement=True),
            sa.Column("shard", sa.SmallInteger, nullable=False),
            *_columns_of_a_record(),
            sa.Column("relay", sa.String(200)),
            sa.Column("batch", sa.BigInteger),
            sa.Index(f"{name}_assigned", "relay", "batch"),
            # Otherwise SQLite gives the id of a row that was sent and deleted to another one.
            sqlite_autoincrement=True,
        )
        self.relays = self._table(
            f"{name}_relays",
            sa.Column("relay", sa.String(200), primary_key=True),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("batch", sa.BigInteger, nullable=False),
            sa.Column("origin", sa.String(32), nullable=False),
            sa.Column("token", sa.String(32), nullable=False),
            sa.Column("ledger_topic", sa.String(249), nullable=False),
        )
        self.shards = self._table(
            f"{name}_shards",
            sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False),
            sa.Column("relay", sa.String(200), nullable=False),
        )
        self.dead = self._table(
            f"{name}_dead",
            sa.Column("id", _Id, primary_key=True, autoincrement=True),
            sa.Column("row_id", sa.BigInteger, nullable=False),
            *_columns_of_a_record(),
            sa.Column("error", sa.Text, nullable=False),
            sa.Column("moved_ms", sa.BigInteger, nullable=False),
        )
        self.tables = (self.rows, self.relays, self.shards, self.dead)

    def _table(self, name: str, *parts: Any, **options: Any) -> sa.Table:
        metadata = self.metadata
        known = name if metadata.schema is None else f"{metadata.schema}.{name}"
        # A second Outbox on the caller's metadata, such as one that only enqueues.
        found: sa.Table | None = metadata.tables.get(known)
        return sa.Table(name, metadata, *parts, **options) if found is None else found

    def __repr__(self) -> str:
        return f"<Outbox {self.rows.name!r}>"

    @property
    def engine(self) -> sa.Engine:
        """SQLAlchemy's engine.

        Raises:
            OutboxError: this outbox only enqueues.
        """
        if self._engine is None:
            raise OutboxError("this Outbox was made without an engine: pass one to Outbox(engine)")
        return self._engine

    def create_tables(self) -> None:
        """Create the tables that are missing."""
        self.metadata.create_all(self.engine, tables=list(self.tables))

    # --- the programs that enqueue ---------------------------------------------------------------

    def enqueue(
        self,
        session: Any,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
    ) -> None:
        """Write a row in the caller's database transaction. It is sent once that is committed.

        Args:
            session: SQLAlchemy's Session or Connection.
            topic: of the record.
            value: a str is encoded as UTF-8; None is a tombstone.
            key: records of one key keep their order; None for no order.
            headers: of the record.

        Raises:
            TypeError, ValueError: an argument does not fit; no row was written.
        """
        done = session.execute(self.insert(topic, value, key, headers))
        if inspect.isawaitable(done):
            # Not left behind as a coroutine that nobody awaits: the row would be missing.
            getattr(done, "close", lambda: None)()
            raise TypeError(
                "enqueue() takes a Session or a Connection. With an AsyncSession:"
                " await session.execute(outbox.insert(topic, value, ...))"
            )

    def insert(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
    ) -> sa.Insert:
        """Return the statement of `enqueue`, for an AsyncSession.

        Raises:
            TypeError, ValueError: an argument does not fit.
        """
        if not isinstance(topic, str) or not is_valid_name(topic):
            raise ValueError(f"topic={topic!r} is not the name of a topic")
        of_key = _bytes("key", key)
        given: object = headers
        if given is not None and not isinstance(given, Mapping):
            kind = type(given).__name__
            raise TypeError(f"headers must be a mapping of names to bytes, or None, not {kind}")
        pairs = [
            [_header_name(name), _as_text(_bytes(f"headers[{name!r}]", one))]
            for name, one in (headers or {}).items()
        ]
        return sa.insert(self.rows).values(
            shard=_shard_of(of_key),
            topic=topic,
            key=of_key,
            value=_bytes("value", value),
            headers=json.dumps(pairs) if pairs else None,
            created_ms=now_ms(),
        )

    # --- a look ----------------------------------------------------------------------------------

    def backlog(self) -> dict[str, int]:
        """Return how many rows wait to be sent, and how many are dead, as "waiting" and "dead"."""
        tables = {"waiting": self.rows, "dead": self.dead}
        with self.engine.begin() as connection:
            return {
                name: int(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
                for name, table in tables.items()
            }

    def check_tables(self) -> None:
        """Check that the tables are there.

        Raises:
            OutboxError: one is missing.
        """
        there = sa.inspect(self.engine)
        missing = [
            one.name for one in self.tables if not there.has_table(one.name, schema=one.schema)
        ]
        if missing:
            raise OutboxError(
                f"the tables {', '.join(missing)} are missing in the database. Ways out:"
                " `txnproducer outbox create-tables`, outbox.create_tables(), or your migrations"
                " with outbox.metadata"
            )


def _columns_of_a_record() -> Iterable[sa.Column[Any]]:
    yield sa.Column("topic", sa.String(249), nullable=False)
    yield sa.Column("key", sa.LargeBinary)
    yield sa.Column("value", sa.LargeBinary)
    yield sa.Column("headers", sa.Text)
    yield sa.Column("created_ms", sa.BigInteger, nullable=False)


def _shard_of(key: bytes | None) -> int:
    # Rows without a key have no order, so they are spread.
    return random.randrange(SHARDS) if key is None else zlib.crc32(key) % SHARDS  # noqa: S311


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{name}={value!r:.60}: give bytes, str or None")


def _header_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"headers: the name {name!r:.60} must be a str")
    name.encode()  # a lone surrogate would be refused only by the relay
    return name


def _as_text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def new_name() -> str:
    """Return a random name that no other one equals."""
    return uuid.uuid4().hex


def now_ms() -> int:
    # The wall clock, since it is the record's time.
    return int(time.time() * 1000)
