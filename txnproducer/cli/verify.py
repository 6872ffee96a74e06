"""`txnproducer verify`: read a topic back, and count committed, aborted, open and doubled records.

Owns: the table, the closing JSON line, the exit code. Must not know: how the topic is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click
from rich.console import Console
from rich.table import Table

from txnproducer.admin import our_errors
from txnproducer.cli._common import (
    cluster_options,
    output_option,
    reach,
    read_settings,
    security_of,
)
from txnproducer.cli._option_checks import NumberRange, not_empty
from txnproducer.cli._readback import ID_HEADER, By, TopicCount, count_topic
from txnproducer.config import ProducerConfig

EXIT_FAULT = 1
_NAMES: dict[By, str] = {
    "id": f"the id of `txnproducer send` (header {ID_HEADER})",
    "key": "key",
    "value": "value",
}
_COLUMNS = ("committed", "aborted", "open", "start_offset", "last_stable_offset", "end_offset")


def _table(count: TopicCount) -> Table:
    table = Table(title=f"topic {count.topic}")
    table.add_column("partition", justify="right")
    for name in _COLUMNS:
        table.add_column(name.replace("_", " "), justify="right")
    for number, one in sorted(count.partitions.items()):
        table.add_row(str(number), *(str(getattr(one, name)) for name in _COLUMNS))
    return table


def _line(count: TopicCount, by: By, missing: int | None, surplus: int | None) -> str:
    committed = count.total("committed")
    # A count of zero would suggest that all is well, although nothing was compared.
    has_compared = count.compared > 0 or not committed
    return json.dumps(
        {
            "topic": count.topic,
            "committed": committed,
            "aborted": count.total("aborted"),
            "open": count.total("open"),
            "by": by,
            "compared": count.compared,
            "not_compared": committed - count.compared,
            "distinct": count.distinct,
            "duplicates": count.duplicates if has_compared else None,
            "duplicated": count.duplicated,
            "missing": missing,
            "surplus": surplus,
        }
    )


def _comparison(count: TopicCount, by: By) -> str:
    """Return a text for people that says how many records were compared."""
    committed = count.total("committed")
    left = committed - count.compared
    if by == "none":
        return f"None of the {committed} committed records was compared (--by none)."
    if not left:
        return f"All {committed} committed records were compared by {_NAMES[by]}."
    others = " or ".join(f"--by {other}" for other in ("key", "value") if other != by)
    return (
        f"{count.compared} of {committed} committed records were compared by {_NAMES[by]};"
        f" {left} have none, and may occur twice unnoticed. {others} compares by something else."
    )


def _faults(
    count: TopicCount, by: By, expect: int | None, missing: int | None, surplus: int | None
) -> Iterator[str]:
    """Yield the faults that make the command fail, in words."""
    if count.duplicates:
        yield (
            f"{count.duplicates} committed records repeat the {by} of an earlier one, for"
            f" instance {', '.join(count.duplicated)}"
        )
    if missing:
        yield f"{missing} of {expect} expected records are missing"
    if surplus:
        yield f"{surplus} records more than the expected {expect}"


@click.command()
@cluster_options
@click.option("-t", "--topic", required=True, callback=not_empty(), help="Which topic.")
@click.option(
    "--by",
    type=click.Choice(["id", "key", "value", "none"]),
    # Keys may repeat on purpose, and lines have none: compared by key, such topics would seem
    # doubled, or free of duplicates because nothing was compared.
    default="id",
    show_default=True,
    help="What makes two committed records duplicates: the id that `send` gives each record,"
    " or a key or value that occurs once in your data.",
)
@click.option(
    "--expect",
    type=click.IntRange(0),
    metavar="N",
    help="Fail unless N different records are committed, by what --by compares.",
)
@click.option(
    "--timeout",
    type=NumberRange(1),
    default=60.0,
    show_default=True,
    help="Seconds for all of it.",
)
@output_option("json: nothing but the closing line.")
def command(
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    secrets: tuple[str, ...],
    topic: str,
    by: By,
    expect: int | None,
    timeout: float,
    output: str,
) -> None:
    """Read a topic at both isolation levels and count its records by their state.

    Exits with 1 if a committed record occurs twice, or more or fewer are there than expected.
    Records that cannot be compared are counted as `not_compared`; if no record can be,
    `duplicates` is null.
    """
    settings = read_settings(bootstrap_servers, config_file, pairs, secrets)
    config = ProducerConfig.from_properties(settings)
    servers = settings["bootstrap.servers"]
    # Our own client first: kafka-python tries again after a refused login, until the time is over.
    deadline_s = time.monotonic() + timeout
    reach(config, timeout)
    # One deadline for both steps: --timeout is for all of it.
    left_s = max(0.0, deadline_s - time.monotonic())
    # An error of kafka-python would end in a stack trace, and would have no exit code.
    with our_errors(servers):
        count = count_topic(servers, topic, by=by, timeout=left_s, security=security_of(config))
    # Different records, not all: a doubled one must not stand in for a lost one.
    found = count.total("committed") if by == "none" else count.distinct
    missing = None if expect is None else max(0, expect - found)
    # More records than expected are a fault as well: a `send` that was run again without its run's
    # id has written records twice under new ids, which no comparison recognises.
    surplus = None if expect is None else max(0, found - expect)
    if output == "table":
        # Standard output carries the JSON line alone, for scripts.
        Console(stderr=True).print(_table(count))
        click.echo(_comparison(count, by), err=True)
        for fault in _faults(count, by, expect, missing, surplus):
            click.echo(f"FAILED: {fault}", err=True)
    click.echo(_line(count, by, missing, surplus))
    if count.duplicates or missing or surplus:
        click.get_current_context().exit(EXIT_FAULT)
