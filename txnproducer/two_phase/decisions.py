"""Two-phase commit with a database: a transaction of Kafka that the database's own commit decides.

    decisions = SqlAlchemyDecisions(engine, "shop-payments-0")
    decisions.create_table()
    with TransactionalProducer(servers, "shop-payments-0", **settings) as producer:
        producer.init_transactions(recover=decisions.recover)
        with decisions.transaction(producer) as connection:
            connection.execute(...)  # the database's part
            producer.send("payments", b"...")  # both, or neither

Owns: the order of the two commits, and of the steps of a recovery. Must not know: how a
transaction is prepared, completed or judged; how a token is stored (`decision_row`).
Rules:
* The row is locked while a producer is initialized, since that aborts an open transaction of the
  id. A process that sleeps just before would otherwise abort that of its successor, which may be
  decided.
* The token is stored in the database's transaction that decides. It is dropped once Kafka has
  committed, since the evidence in Kafka lasts for days, and a token for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from txnproducer._shell.completing import refuse_other_end
from txnproducer.errors import IllegalStateError, ProducerFencedError
from txnproducer.prepared import Completion, PreparedTransaction, StoredDecision
from txnproducer.producer import TransactionalProducer
from txnproducer.two_phase.decision_row import DecisionRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.orm import Session

__all__ = ["SqlAlchemyDecisions"]

_LOG = logging.getLogger(__name__)


class SqlAlchemyDecisions:
    """The decisions about the prepared transactions of one id, in a table of the user's database.

    It is for one producer of the id at a time, and for one thread.

    Args:
        engine: of the database. Its transactions must be at least "read committed".
        transactional_id: of the producer.
        table: the result of `decisions_table`; None for one of the usual name.
        on_lost: called by `recover` with a connection, the token and its outcome, if the database
            has committed and Kafka's transaction is "lost" or "unknown". It notes in the database
            that the records must be written again. Its notes and the end of the token are one
            transaction. None: the initialization raises instead.

    Raises:
        InvalidConfigurationError: SQLAlchemy is not installed.
        TypeError: the engine is none, such as an address.
    """

    def __init__(
        self,
        engine: Engine,
        transactional_id: str,
        table: Table | None = None,
        *,
        on_lost: Callable[[Connection, PreparedTransaction, Completion], object] | None = None,
    ) -> None:
        self._engine = engine
        self._id = transactional_id
        self._row = DecisionRow(engine, transactional_id, table)
        self._on_lost = on_lost
        self._completed: str | None = None  # a token that could not be dropped

    def create_table(self) -> None:
        """Create the table, unless it exists."""
        self._row.create_table()

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
        self._row.take_over()
        with self._engine.begin() as connection:
            text = self._row.lock(connection)
            if text is None:
                yield None
            else:
                yield StoredDecision(text, True, partial(self._deal_with, connection, text))

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
        self._row.store(connection, prepared, self._completed)

    def forget(self, prepared: PreparedTransaction | str) -> None:
        """Drop a token that is done with. A later token stays."""
        with self._engine.begin() as connection:
            self._row.drop(connection, str(prepared))

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
                next one commits by its recovery. Any other exception after the database's commit
                has this note as well.
            Exception: of the database. If its commit has certainly failed, Kafka's transaction is
                aborted. If that is not known, a note says so; then close the producer.
        """
        decided = None
        try:
            with self._engine.connect() as connection:
                prepared = yield from self._prepare(connection, producer)
                self._commit(connection, producer, prepared)
                decided = prepared
            self._complete(producer, prepared)
        except BaseException as error:
            if decided is not None:
                error.add_note(f"The database has committed, with the token {decided}")
            raise

    def _prepare(
        self, connection: Connection, producer: TransactionalProducer
    ) -> Generator[Connection, None, PreparedTransaction]:
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
        return prepared

    def _commit(
        self,
        connection: Connection,
        producer: TransactionalProducer,
        prepared: PreparedTransaction,
    ) -> None:
        try:
            connection.commit()
        except Exception as error:
            if not self._has_committed(connection, producer, prepared, error):
                raise
            _LOG.warning("the database has committed in spite of %r", error)
        except BaseException as error:
            _leave_prepared(prepared, error)
            raise

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
        # None: the one who took over has ended the transaction, as it was decided.
        return self._row.holds(connection, prepared)

    def _complete(self, producer: TransactionalProducer, prepared: PreparedTransaction) -> None:
        outcome = producer.complete(prepared, commit=True)
        if outcome != "committed" and not self._is_kept(prepared):
            raise ProducerFencedError(
                f"another process has taken over the decisions of {self._id!r}, and with them the"
                f" completion of {prepared}, which the database has committed: stop"
            )
        refuse_other_end(prepared, outcome, commit=True)
        try:
            self.forget(prepared)
        except Exception as error:  # noqa: BLE001 - both have committed, whatever it is
            self._completed = str(prepared)
            _LOG.warning(
                "the token %s is completed, and could not be dropped: %r", prepared, error
            )

    def _is_kept(self, prepared: PreparedTransaction) -> bool:
        with self._engine.connect() as connection:
            return bool(self._row.holds(connection, prepared))

    def _deal_with(self, connection: Connection, text: str, outcome: Completion) -> bool:
        """Drop a recovered token, unless a person has to look for its records. Return whether."""
        if outcome != "committed":
            if self._on_lost is None:
                return False
            self._on_lost(connection, PreparedTransaction.parse(text), outcome)
        self._row.drop(connection, text)
        return True


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
