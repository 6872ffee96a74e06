"""Two-phase commit with a database: a transaction of Kafka that the database's own commit decides.

    decisions = SqlAlchemyDecisions(engine, "shop-payments-0")
    decisions.create_table()
    with TransactionalProducer(servers, "shop-payments-0", **settings) as producer:
        producer.init_transactions(recover=decisions.recover)
        with decisions.transaction(producer) as connection:
            connection.execute(...)  # the database's part
            producer.send("payments", b"...")  # both, or neither

Owns: the table of decisions, the order of the two commits. Must not know: how a transaction is
prepared, completed or judged; SQL dialects, which are SQLAlchemy's.
Rules:
* The row of an id has a generation, and whoever takes the id over raises it first. A process that
  was overtaken cannot store a decision any more: otherwise it could sleep while its successor
  aborts its transaction, wake, and have the database commit alone.
* The row is locked while a producer is initialized, since that aborts an open transaction of the
  id. A process that sleeps just before would otherwise abort that of its successor, which may be
  decided.
* The token is stored in the database's transaction that decides. It is dropped once Kafka has
  committed, since the evidence in Kafka lasts for days, and a token for ever.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from txnproducer._shell.completing import refuse_other_end
from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.prepared import Completion, PreparedTransaction, Recover, StoredDecision
from txnproducer.producer import TransactionalProducer

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData, RowMapping, Table
    from sqlalchemy.orm import Session

__all__ = [
    "Completion",
    "PreparedTransaction",
    "Recover",
    "SqlAlchemyDecisions",
    "StoredDecision",
    "complete",
    "decisions_table",
]

_LOG = logging.getLogger(__name__)
_TABLE: Final = "kafka_decisions"
# The longest names of an id and a topic, with what the token adds to them.
_LONGEST_TOKEN: Final = 2000


def complete(
    prepared: PreparedTransaction | str,
    *,
    commit: bool,
    bootstrap_servers: str | list[str] | None = None,
    **settings: Any,
) -> Completion:
    """Commit or abort a prepared transaction, from a process that has no producer of its id.

    Arguments, result and errors are those of `TransactionalProducer` and its `complete`. The
    transactional id is the token's.
    """
    token = PreparedTransaction.of(prepared)
    with TransactionalProducer(bootstrap_servers, token.transactional_id, **settings) as producer:
        return producer.complete(token, commit=commit)


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


class SqlAlchemyDecisions:
    """The decisions about the prepared transactions of one id, in a table of the user's database.

    It is for one producer of the id at a time, and for one thread.

    Args:
        engine: of the database. Its transactions must be at least "read committed".
        transactional_id: of the producer.
        table: the result of `decisions_table`; None for one of the usual name.

    Raises:
        InvalidConfigurationError: SQLAlchemy is not installed.
    """

    def __init__(self, engine: Engine, transactional_id: str, table: Table | None = None) -> None:
        self._engine = engine
        self._id = transactional_id
        self._table = decisions_table(_sqlalchemy().MetaData()) if table is None else table
        self._generation: int | None = None

    def create_table(self) -> None:
        """Create the table, unless it exists."""
        self._table.create(self._engine, checkfirst=True)

    # --- the three steps ------------------------------------------------------------------------

    @contextmanager
    def recover(self) -> Iterator[StoredDecision | None]:
        """Take the id over, and yield the decision that is stored, for `init_transactions`.

        From now on every earlier holder of the id is refused by `record`. The row stays locked
        until the producer is initialized. Otherwise this process could sleep before that, wake
        while its successor has a prepared transaction that the database has committed, and abort
        it.

        Raises:
            ProducerFencedError: another process has taken the id over meanwhile.
            InvalidConfigurationError: the engine commits each statement by itself.
        """
        self._refuse_autocommit()
        self._take_over()
        table = self._table
        is_mine = (table.c.transactional_id == self._id) & (table.c.generation == self._generation)
        with self._engine.begin() as connection:
            locked = connection.execute(
                table.update().where(is_mine).values(generation=self._generation)
            )
            if locked.rowcount != 1:
                raise self._overtaken()
            text = connection.execute(table.select().where(is_mine)).mappings().one()["prepared"]
            if text is None:
                yield None
            else:
                yield StoredDecision(text, True, partial(self._drop_committed, connection, text))

    def record(self, connection: Connection | Session, prepared: PreparedTransaction) -> None:
        """Store a prepared transaction. The commit of the database's transaction decides about it.

        Args:
            connection: in the transaction that decides.
            prepared: the producer's open transaction.

        Raises:
            ProducerFencedError: another process has taken the id over. Roll the database's
                transaction back.
            IllegalStateError: `recover` was not called, or the token of another transaction is
                stored, which nobody has completed.
            ValueError: the transaction is another id's.
        """
        if prepared.transactional_id != self._id:
            raise ValueError(f"{prepared} is not of the transactional id {self._id!r}")
        if self._generation is None:
            raise IllegalStateError(
                f"the decisions of {self._id!r} are not taken over: call"
                " producer.init_transactions(recover=decisions.recover) before"
            )
        table = self._table
        stored = connection.execute(
            table.update()
            .where(table.c.transactional_id == self._id)
            .where(table.c.generation == self._generation)
            # Another token is the only trace of a transaction that nobody has completed.
            .where(table.c.prepared.is_(None) | (table.c.prepared == str(prepared)))
            .values(prepared=str(prepared))
        )
        if stored.rowcount != 1:  # type: ignore[attr-defined,unused-ignore]
            found = self._row(connection)
            if found is None or found["generation"] != self._generation:
                raise self._overtaken()
            raise IllegalStateError(
                f"the decisions of {self._id!r} hold {found['prepared']}, which was not completed:"
                " complete() it, and forget() it once its outcome is dealt with"
            )

    def forget(self, prepared: PreparedTransaction | str) -> None:
        """Drop a token whose transaction needs no attention any more. A later one stays."""
        with self._engine.begin() as connection:
            self._forget(connection, str(prepared))

    def _forget(self, connection: Connection, text: str) -> None:
        table = self._table
        is_it = (table.c.transactional_id == self._id) & (table.c.prepared == text)
        connection.execute(table.update().where(is_it).values(prepared=None))

    # --- all of them ----------------------------------------------------------------------------

    @contextmanager
    def transaction(self, producer: TransactionalProducer) -> Iterator[Connection]:
        """Commit a transaction of the database and one of Kafka: both, or neither.

        The block gets the database's connection, and sends by the producer. An exception in it
        rolls the database back and aborts.

        Args:
            producer: of the id, initialized with `recover=decisions.recover`.

        Raises:
            ProducerFencedError: another process has taken the id over. Neither is committed.
            IllegalStateError: the block has ended the database's transaction by itself.
            TransactionAbortedError: the database has committed, and Kafka's brokers had aborted.
            CommitOutcomeUnknownError: the database has committed; Kafka's outcome is not known.
            KafkaError: with a note if the database has committed. Then close the producer: the
                next one commits by its recovery.
            Exception: of the database. If its commit has certainly failed, Kafka's transaction is
                aborted. If that is not known, a note says so; then close the producer.
        """
        with self._engine.connect() as connection:
            producer.begin_transaction()
            try:
                ours = connection.begin()
                yield connection
                if not ours.is_active:
                    raise IllegalStateError(
                        "the block has ended the database's transaction, so that no later commit"
                        " can decide about Kafka's: leave commit() and rollback() out"
                    )
                prepared = producer.prepare_transaction()
                self.record(connection, prepared)
            except BaseException as error:
                # The end of the connection rolls back as well, and the next producer aborts.
                _undo([connection.rollback, producer.abort_transaction], error)
                raise
            try:
                connection.commit()
            except Exception as error:
                if not self._has_committed(connection, producer, prepared, error):
                    raise
                _LOG.warning("the database has committed in spite of %r", error)
            except BaseException as error:
                _leave_prepared(prepared, error)
                raise
        self._complete(producer, prepared)

    def _has_committed(
        self,
        connection: Connection,
        producer: TransactionalProducer,
        prepared: PreparedTransaction,
        error: Exception,
    ) -> bool:
        """Return whether a commit that raised was done after all. Abort if it was not."""
        try:
            is_stored = self._is_stored(connection, prepared)
        except Exception as failure:  # noqa: BLE001 - it must not hide the error of the commit
            error.add_note(
                f"The look for the decision failed: {type(failure).__name__}: {failure}"
            )
            is_stored = None
        if is_stored is None:
            _leave_prepared(prepared, error)
        elif not is_stored:
            _undo([producer.abort_transaction], error)
        return bool(is_stored)

    def _is_stored(self, connection: Connection, prepared: PreparedTransaction) -> bool | None:
        """Return whether the decision is stored, or None if that cannot be known.

        Only the session that was asked to commit can know: for another one the commit may be yet
        to come.
        """
        connection.rollback()
        if connection.invalidated:
            return None
        # For SQLAlchemy the transaction is over since its commit was asked for. For the database
        # it may be open still, and would show the decision.
        connection.connection.rollback()
        row = self._row(connection)
        if row is None or row["generation"] != self._generation:
            return None  # the one who took over has ended the transaction, as it was decided
        return bool(row["prepared"] == str(prepared))

    def _complete(self, producer: TransactionalProducer, prepared: PreparedTransaction) -> None:
        try:
            outcome = producer.complete(prepared, commit=True)
            refuse_other_end(prepared, outcome, commit=True)
        except KafkaError as error:
            error.add_note(f"The database has committed, and its token {prepared} is kept")
            raise
        self.forget(prepared)

    # --- the table ------------------------------------------------------------------------------

    def _row(self, connection: Connection | Session) -> RowMapping | None:
        row = self._table.select().where(self._table.c.transactional_id == self._id)
        return connection.execute(row).mappings().one_or_none()

    def _overtaken(self) -> ProducerFencedError:
        return ProducerFencedError(
            f"another process has taken over the decisions of {self._id!r}, and its producer has"
            " aborted, or will abort, this transaction: roll back, and stop"
        )

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

    def _take_over(self) -> None:
        """Raise the generation, and so fence every earlier holder in the database."""
        from sqlalchemy.exc import IntegrityError

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

    def _drop_committed(self, connection: Connection, text: str, outcome: Completion) -> None:
        # One that is lost or unknown stays until a person or the program has dealt with it.
        if outcome == "committed":
            self._forget(connection, text)


def _undo(steps: Iterable[Callable[[], None]], error: BaseException) -> None:
    """Take each step back after an error. No failure of a step hides it."""
    for undo in steps:
        try:
            undo()
        except Exception as failure:  # noqa: BLE001 - it must not hide the error
            error.add_note(f"{undo.__name__}() failed too: {type(failure).__name__}: {failure}")


def _leave_prepared(prepared: PreparedTransaction, error: BaseException) -> None:
    error.add_note(
        f"Whether the database has committed is not known here, so {prepared} is left prepared."
        " Close the producer: the next one's recovery completes it"
    )


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise InvalidConfigurationError(
            "decisions in a database need SQLAlchemy: pip install 'txnproducer[sqlalchemy]'"
        ) from error
    return sqlalchemy
