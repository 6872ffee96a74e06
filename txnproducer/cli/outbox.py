"""`txnproducer outbox`: makes the tables of an outbox, relays its rows, counts them.

Owns: the options, the signals that end a relay. Must not know: how rows are sent.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txnproducer.cli._common import cluster_options, read_settings
from txnproducer.config import ProducerConfig

if TYPE_CHECKING:
    from txnproducer.outbox import Outbox, OutboxRelay
    from txnproducer.outbox._sqlalchemy import sa

ALL_SHARDS = "0-63"
_DATABASE_VARIABLE = "TXNPRODUCER_DATABASE"
_STDERR = 2
_STOPS = (
    b"Stops after the batch under way. A second SIGTERM or Ctrl-C does not wait for the batch.\n"
)
_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def command() -> None:
    """Send the rows of a database table to Kafka, each exactly once."""


def _database_options(function: _F) -> _F:
    for option in (
        click.option("--schema", help="Of the tables; default: that of the connection."),
        click.option("--name", default="txn_outbox", show_default=True, help="The table of rows."),
        click.option(
            "--database",
            required=True,
            envvar=_DATABASE_VARIABLE,
            metavar="URL",
            help="SQLAlchemy's URL, such as postgresql+psycopg://user@host/db; default"
            f" ${_DATABASE_VARIABLE}, which keeps a password out of the list of processes.",
        ),
    ):
        function = option(function)
    return function


def _outbox(database: str, name: str, schema: str | None, *, creates: bool = False) -> Outbox:
    # Imported late, here and below: they need an optional package, which --help does not.
    from txnproducer.outbox import Outbox
    from txnproducer.outbox._sqlalchemy import sa

    engine = _engine(database)
    path = engine.url.database
    # SQLite would make the file.
    if engine.name == "sqlite" and path and not (creates or _is_there(path)):
        raise click.UsageError(
            f"--database: there is no file {path!r}. `txnproducer outbox create-tables` makes it,"
            " with the tables"
        )
    try:
        return Outbox(engine, name=name, metadata=sa.MetaData(schema=schema))
    except ValueError as error:
        raise click.UsageError(f"--name: {error}") from error


def _engine(database: str) -> sa.Engine:
    from txnproducer.outbox._sqlalchemy import sa

    try:
        engine = sa.create_engine(database)
        if "@" in (engine.url.host or ""):
            # Otherwise the rest of a password would be a host, which errors show.
            raise ValueError("write an @ in the password as %40")
        return engine
    except ImportError as error:
        scheme, package = database.partition(":")[0], error.name or error
        raise click.UsageError(
            f"--database: SQLAlchemy's driver for {scheme}:// is {package}, which is not"
            " installed. Ways out: install it, or name another driver in the URL, such as"
            " mysql+pymysql://"
        ) from error
    except (ValueError, sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        # SQLAlchemy's text about a URL does not show it.
        raise click.UsageError(f"--database: {error}") from error


def _is_there(path: str) -> bool:
    return path == ":memory:" or path.startswith("file:") or Path(path).exists()


@command.command("create-tables")
@_database_options
def create_tables(database: str, name: str, schema: str | None) -> None:
    """Create the tables that are missing."""
    with _told(database):
        _outbox(database, name, schema, creates=True).create_tables()


@command.command()
@_database_options
def status(database: str, name: str, schema: str | None) -> None:
    """Count the rows that wait or are dead."""
    with _told(database):
        outbox = _outbox(database, name, schema)
        outbox.check_tables()
        found = outbox.backlog()
    click.echo(f"waiting: {found['waiting']}, dead: {found['dead']}")


@command.command()
@_database_options
@cluster_options
@click.option(
    "--relay-id",
    required=True,
    help="The name of this relay: unique in the cluster, and the same after a restart.",
)
@click.option(
    "--shards",
    default=ALL_SHARDS,
    show_default=True,
    metavar="FIRST-LAST",
    help="The part of the keys that this process sends.",
)
@click.option(
    "--batch-rows",
    default=500,
    show_default=True,
    type=click.IntRange(1),
    help="The most rows of a transaction.",
)
@click.option(
    "--ledger-topic",
    default="outbox.ledger",
    show_default=True,
    help="The compacted topic of the relays' ledgers.",
)
@click.option(
    "--on-set-back",
    type=click.Choice(["stop", "send"]),
    default="stop",
    show_default=True,
    help="If the database or the ledger was restored: stop, or send all rows that are there.",
)
@click.option("--once", is_flag=True, help="End when no row is left, or after a signal.")
def run(
    database: str,
    name: str,
    schema: str | None,
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    secrets: tuple[str, ...],
    relay_id: str,
    shards: str,
    batch_rows: int,
    ledger_topic: str,
    on_set_back: Any,
    once: bool,
) -> None:
    """Send rows until SIGTERM or Ctrl-C, or with --once until no row is left.

    The batch under way is finished first. A second signal does not wait for it.
    """
    from txnproducer.outbox import OutboxRelay

    settings = read_settings(bootstrap_servers, config_file, pairs, secrets)
    try:
        relay = OutboxRelay(
            _outbox(database, name, schema),
            ProducerConfig.from_properties(settings),
            relay_id=relay_id,
            shards=_shards(shards),
            batch_rows=batch_rows,
            ledger_topic=ledger_topic,
            on_set_back=on_set_back,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with relay, _told(database):
        with _ended_by_a_signal(relay) as stop:
            if once:
                while not stop.is_set() and any(relay.run_once()):
                    pass
            else:
                relay.run(stop)
        click.echo(f"sent: {relay.rows_sent}")


class _StoppedError(KeyboardInterrupt):
    """A signal has ended a relay that was not sending."""


@contextmanager
def _ended_by_a_signal(relay: OutboxRelay) -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or Ctrl-C sets. A second one ends the process.

    If the relay is still in its start, which may wait for brokers, the first one leaves the block.
    """
    from txnproducer.outbox.relay import passes

    stop = threading.Event()

    def restore() -> None:
        for number, usual in handlers.items():
            signal.signal(number, usual)

    def end(*_: object) -> None:
        stop.set()
        restore()
        if not relay.has_started:
            raise _StoppedError
        # Not through sys.stderr: the signal may have come while this thread writes to it.
        with suppress(OSError):  # nobody reads it, which must not break the batch off
            os.write(_STDERR, _STOPS)

    handlers = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    except _StoppedError as stopped:
        # A start may be broken off anywhere, as if the process were killed. But the signal may
        # have come on the way out of a failure, which would be lost.
        failure = stopped.__context__
        if isinstance(failure, Exception) and not passes(failure):
            raise failure from None
    finally:
        restore()


def _shards(text: str) -> range:
    if not re.fullmatch(r"[0-9]+(-[0-9]+)?", text):
        raise click.UsageError(f"--shards {text!r}: give FIRST-LAST, such as {ALL_SHARDS}")
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@contextmanager
def _told(database: str) -> Iterator[None]:
    """Turn an error of the database into one line."""
    from txnproducer.outbox._sqlalchemy import sa

    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        where = sa.make_url(database).render_as_string(hide_password=True)
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        raise click.ClickException(f"the database {where}: {cause}") from error
