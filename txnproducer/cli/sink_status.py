"""`txnproducer sink-status`: the last commits of a Spark sink, from its ledger.

Owns: the table and the JSON. Must not know: where the ledger is, or the meaning of an entry.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txnproducer.admin import topic_access
from txnproducer.cli._common import (
    cluster_options,
    output_option,
    reach,
    read_settings,
    security_of,
)
from txnproducer.cli._option_checks import not_empty
from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from txnproducer.spark.ledger.store import Ledger
    from txnproducer.spark.status import EntryStatus, SinkStatus

EXIT_NOTHING = 1


def _table(status: SinkStatus) -> Table:
    table = Table(
        title=f"sink {status.sink_id}: atomicity {status.atomicity}, query {status.query_id}, "
        f"run {status.run}, at most {status.most_writers} writers"
    )
    for name in ("id", "batch", "rows", "writers", "age", "transaction", "digest"):
        table.add_column(name)
    rows = [*status.partitions.values(), *([] if status.batch is None else [status.batch])]
    for one in rows:
        table.add_row(*_cells(one))
    return table


def _runs_table(status: SinkStatus) -> Table:
    more = f", the newest {len(status.runs)} of {len(status.runs) + status.more_runs}"
    table = Table(title=f"named runs{more if status.more_runs else ''}")
    for name in ("run", "rows", "writers", "committed", "age", "digest"):
        table.add_column(name)
    for one in status.runs:
        # A name may have brackets, which are markup elsewhere.
        cells = (str(one.rows), str(one.writers), _time(one.committed_ms), _age(one.age_s))
        table.add_row(Text(one.run_id), *cells, one.digest)
    return table


def _time(at_ms: int | None) -> str:
    return "?" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%F %T} UTC"


def _age(age_s: float | None) -> str:
    # An entry that an earlier version has written has no time.
    return "?" if age_s is None else f"{age_s:.0f} s"


def _cells(one: EntryStatus) -> tuple[str, ...]:
    state = {True: "open", False: "none", None: "?"}[one.is_open]
    numbers = (str(one.batch_id), str(one.rows), str(one.writers))
    return (one.transactional_id, *numbers, _age(one.age_s), state, one.digest)


def _place(option: click.Parameter, value: str) -> str:
    # Imported late, here and below: it needs an optional package, which --help does not.
    from txnproducer.spark.ledger.places import read_place

    try:
        return read_place("--ledger", value)
    except InvalidConfigurationError as error:
        raise click.BadParameter(str(error), param=option) from error


def _ledger_topic(context: click.Context, option: click.Parameter, value: str | None) -> str:
    if value is None:
        raise click.MissingParameter(
            "It is the topic that the sink writes to, unless the sink has another ledgerTopic",
            context,
            option,
        )
    return not_empty()(context, option, value)


@click.command()
@cluster_options
@click.argument("sink_id", callback=not_empty())
@click.option(
    "--ledger-topic",
    callback=lambda *given: _ledger_topic(*given),
    help="The sink's topic, unless it has another ledgerTopic. Needed.",
)
@click.option(
    "--ledger",
    "place",
    default="offsets",
    show_default=True,
    callback=lambda _, option, value: _place(option, value),
    help="The sink's option ledger: offsets, topic or topic:NAME.",
)
@output_option("json: nothing but the JSON.")
def command(
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    secrets: tuple[str, ...],
    sink_id: str,
    ledger_topic: str,
    place: str,
    output: str,
) -> None:
    """Show the last commits of the Spark sink SINK_ID, and its open transactions.

    Exits with 1 if its ledger is empty: nothing was written yet, or it has expired. Exits with 4
    if the topic does not exist.
    """
    from txnproducer.spark.ledger.places import ledger_at
    from txnproducer.spark.status import read_status

    settings = read_settings(bootstrap_servers, config_file, pairs, secrets)
    config = ProducerConfig.from_properties(settings)
    # Our own client first: kafka-python tries again after a refused login, until the time is over.
    reach(config)
    ledger = ledger_at(place, ledger_topic)(
        settings["bootstrap.servers"], sink_id, security=security_of(config)
    )
    status = read_status(ledger)
    is_known = status.atomicity is not None
    is_there = is_known or _is_there(ledger, ledger_topic)
    if output == "table" and is_there:
        _show(status, ledger)
    # Also if the ledger is empty: a script always finds one line of JSON.
    click.echo(json.dumps(status.as_dict()))
    if not is_there:
        raise UnknownTopicOrPartitionError(
            f"there is no topic {ledger_topic!r}: name the one that sink {sink_id!r} writes to"
        )
    if not is_known:
        click.get_current_context().exit(EXIT_NOTHING)


def _is_there(ledger: Ledger, topic: str) -> bool:
    return topic_access(ledger.bootstrap_servers, [topic], **ledger.security)[topic].exists


def _show(status: SinkStatus, ledger: Ledger) -> None:
    # Standard output carries the JSON alone, for scripts.
    if status.atomicity is None:
        click.echo(_empty(ledger), err=True)
        return
    console = Console(stderr=True)
    console.print(_table(status))
    if status.runs:
        console.print(_runs_table(status))


def _empty(ledger: Ledger) -> str:
    sink = f"sink {ledger.sink_id!r}"
    if ledger.records_topic is not None:
        return (
            f"The ledger of {sink} in the topic {ledger.records_topic!r} is empty: nothing was"
            " committed yet, or the sink has another id or another ledger."
        )
    return (
        f"The ledger of {sink} at topic {ledger.topic!r} is empty: nothing was committed yet, it"
        " has expired (offsets.retention.minutes), or the sink has another id or ledger topic. If"
        " the ledger is in a topic, add --ledger topic."
    )
