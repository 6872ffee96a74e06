"""The row of a transactional id: its present holder, and the prepared transaction.

Owns: the table, its statements, and the fencing of earlier holders. Must not know: a producer,
when the database commits. SQL dialects are SQLAlchemy's.
Rules:
* The row has a generation, and whoever takes the id over raises it first. A process that was
  overtaken cannot store a token any more: otherwise it could sleep while its successor aborts its
  transaction, wake, and have the database commit alone.
* A token is never replaced by another one, unless this process knows that it was completed.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    ProducerFencedError,
)
from txnproducer.prepared import PreparedTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData, RowMapping, Table
    from sqlalchemy.orm import Session

__all__ = ["DecisionRow", "decisions_table"]

_TABLE: Final = "kafka_decisions"
# The longest names of an id and a topic, with all that the token adds to them.
_LONGEST_TOKEN: Final = 2000


def decisions_table(metadata: MetaData, name: str = _TABLE) -> Table:
    """Return the table of decisions, for an application that creates its tables by itself.

    Args:
        metadata: to which the table is added.
        name: of the table.

    Raises:
        InvalidConfigurationError: SQLAlchemy is not installed.
    """
    sa = _sqlalchemy()
    table: Table = sa.Table(
        name,
        metadata,
        sa.Column("transactional_id", sa.String(255), primary_key=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("prepared", sa.String(_LONGEST_TOKEN)),
    )
    return table


class DecisionRow:
    """The row of an id, and the generation in which this process holds it.

    Args:
        engine: of the database.
        transactional_id: of the producer.
        table: the result of `decisions_table`; None for one of the usual name.

    Raises:
        InvalidConfigurationError: SQLAlchemy is not installed.
        TypeError: the engine is none.
    """

    def __init__(self, engine: Engine, transactional_id: str, table: Table | None) -> None:
        sqlalchemy = _sqlalchemy()
        if not isinstance(engine, sqlalchemy.Engine):
            # Its text may have a password.
            kind = type(engine).__name__
            raise TypeError(f"engine must be an Engine of create_engine(), not {kind}")
        self._engine = engine
        self._id = transactional_id
        self._table = decisions_table(sqlalchemy.MetaData()) if table is None else table
        self._generation: int | None = None

    def create_table(self) -> None:
        """Create the table, unless it exists."""
        self._table.create(self._engine, checkfirst=True)

    # --- the holder -----------------------------------------------------------------------------

    def take_over(self) -> None:
        """Raise the generation, and so fence every earlier holder in the database.

        Raises:
            InvalidConfigurationError: the engine commits each statement by itself.
        """
        from sqlalchemy.exc import IntegrityError

        self._refuse_autocommit()
        try:
            self._raise_generation()
        except IntegrityError:
            # Two processes have added the row of a new id. It is there now.
            self._raise_generation()

    def _raise_generation(self) -> None:
        table = self._table
        is_ours = table.c.transactional_id == self._id
        with self._engine.begin() as connection:
            # First: it waits for an earlier holder that is about to store a decision, or that is
            # being initialized.
            raised = connection.execute(
                table.update().where(is_ours).values(generation=table.c.generation + 1)
            )
            if raised.rowcount == 0:
                row = {"transactional_id": self._id, "generation": 1}
                connection.execute(table.insert().values(row))
            found = connection.execute(table.select().where(is_ours)).mappings().one()
        self._generation = found["generation"]

    def _refuse_autocommit(self) -> None:
        """Take back a row, and refuse an engine with which that is not possible."""
        table, name = self._table, f"probe {uuid.uuid4().hex}"
        with self._engine.connect() as connection:
            row = {"transactional_id": name, "generation": 0}
            connection.execute(table.insert().values(row))
            connection.rollback()
            is_it = table.c.transactional_id == name
            if connection.execute(table.delete().where(is_it)).rowcount:
                raise InvalidConfigurationError(
                    "the engine commits each statement by itself (isolation_level='AUTOCOMMIT'):"
                    " a decision and its data are one transaction. Make another engine"
                )

    def lock(self, connection: Connection) -> str | None:
        """Lock the row for this transaction of the database. Return the token that it holds.

        Raises:
            ProducerFencedError: another process has taken the id over.
        """
        table = self._table
        is_mine = (table.c.transactional_id == self._id) & (table.c.generation == self._generation)
        locked = connection.execute(
            table.update().where(is_mine).values(generation=self._generation)
        )
        if locked.rowcount != 1:
            raise self._overtaken()
        row = self._read(connection)
        return None if row is None else row["prepared"]

    # --- the token ------------------------------------------------------------------------------

    def store(
        self,
        connection: Connection | Session,
        prepared: PreparedTransaction,
        completed: str | None,
    ) -> None:
        """Store a token.

        Args:
            connection: in the transaction that decides.
            prepared: the token.
            completed: one that may be replaced, or None.

        Raises:
            ProducerFencedError: another process has taken the id over.
            IllegalStateError: the id was not taken over, or another token is stored.
            ValueError: the token is another id's.
        """
        if prepared.transactional_id != self._id:
            raise ValueError(f"{prepared} is not of the transactional id {self._id!r}")
        if self._generation is None:
            raise IllegalStateError(
                f"the decisions of {self._id!r} are not taken over: call"
                " producer.init_transactions(recover=decisions.recover) before"
            )
        table, replaceable = self._table, [str(prepared), completed or ""]
        stored = connection.execute(
            table.update()
            .where(table.c.transactional_id == self._id)
            .where(table.c.generation == self._generation)
            # Another token is the only trace of a transaction that nobody has completed.
            .where(table.c.prepared.is_(None) | table.c.prepared.in_(replaceable))
            .values(prepared=str(prepared))
        )
        if stored.rowcount == 1:  # type: ignore[attr-defined,unused-ignore]
            return
        found = self._read(connection)
        # A row without a token is of an old snapshot, since the update has not found it so.
        is_ours = found is not None and found["generation"] == self._generation
        if found is None or not is_ours or found["prepared"] is None:
            raise self._overtaken()
        raise IllegalStateError(
            f"the decisions of {self._id!r} hold {found['prepared']}, which was not completed:"
            " complete() it, and forget() it once its outcome is dealt with"
        )

    def holds(self, connection: Connection, prepared: PreparedTransaction) -> bool | None:
        """Return whether the row holds a token, or None if another process has the id."""
        row = self._read(connection)
        if row is None or row["generation"] != self._generation:
            return None
        return bool(row["prepared"] == str(prepared))

    def drop(self, connection: Connection, text: str) -> None:
        """Drop a token. A later one stays."""
        table = self._table
        is_it = (table.c.transactional_id == self._id) & (table.c.prepared == text)
        connection.execute(table.update().where(is_it).values(prepared=None))

    def _read(self, connection: Connection | Session) -> RowMapping | None:
        row = self._table.select().where(self._table.c.transactional_id == self._id)
        return connection.execute(row).mappings().one_or_none()

    def _overtaken(self) -> ProducerFencedError:
        return ProducerFencedError(
            f"another process has taken over the decisions of {self._id!r}, and its producer has"
            " aborted, or will abort, this transaction: roll back, and stop"
        )


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise InvalidConfigurationError(
            "decisions in a database need SQLAlchemy: pip install 'txnproducer[sqlalchemy]'"
        ) from error
    return sqlalchemy
