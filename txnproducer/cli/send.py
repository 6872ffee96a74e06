"""`txnproducer send`: write lines or generated records in transactions, and report the outcome.

Owns: the options, the source of the records, the run. Must not know: how the records are divided
into transactions (`_send_transactions`), the report's text.

Rules:
* Standard output carries one JSON line in any case; everything for people goes to standard error.
* Each record carries an id of its own in a header, so that `verify` finds a lost or doubled record
  whatever its key and value are. An id is the run's id, which is random unless given, and the
  number of the record in the input.
* An option or an argument that would have no effect is refused.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txnproducer._record.compression import codec_names
from txnproducer.admin import partition_count
from txnproducer.cli._common import (
    cluster_options,
    reach,
    read_settings,
    refuse_twice,
    security_of,
)
from txnproducer.cli._option_checks import NumberRange, check_utf8, not_empty
from txnproducer.cli._readback import ID_HEADER
from txnproducer.cli._send_report import Report
from txnproducer.cli._send_transactions import Plan, Record, closing, send_all, size_at_rate
from txnproducer.cli._streams import OutputError
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer

# A parameter, another parameter, and whether it has an effect with it (or without it).
_EFFECTS = (
    ("file", "generate", False),
    ("key_separator", "generate", False),
    ("size", "generate", True),
    ("seed", "abort_ratio", True),
)
_QUESTION_S = 5.0


def new_run_id() -> str:
    """Return an id that no other run has."""
    return uuid.uuid4().hex[:16]


def _lines(file: Any, separator: str | None) -> Iterator[Record]:
    for number, line in enumerate(file, 1):
        value = line.rstrip(b"\r\n")
        if separator is None:
            yield None, value
            continue
        key, found, rest = value.partition(os.fsencode(separator))
        if not found:
            raise click.UsageError(
                f"line {number} has no {separator!r} between key and value: neither it nor the"
                " other records of its transaction were written. Mend the line, or leave out"
                " --key-separator"
            )
        yield key, rest


def _generated(count: int, size_bytes: int) -> Iterator[Record]:
    for number in range(count):
        key = b"%012d" % number
        yield key, key.ljust(size_bytes, b".")[:size_bytes]


def _skip(records: Iterator[Record], count: int) -> Iterator[Record]:
    for number in range(count):
        if next(records, None) is None:
            raise click.UsageError(
                f"the source ended after {number} of the {count} records that --skip leaves out,"
                " so nothing was written. Check that it is the source of the earlier run, or lower"
                " --skip"
            )
    yield from records


def _print_line(report: Report, error: BaseException | None) -> None:
    """Print the closing line.

    Raises:
        OutputError: it could not be written, and there is no other error.
    """
    line = report.line(error)
    try:
        click.echo(line)
    except OSError as failure:
        lost = OutputError(failure)
        # The records are in the topic all the same, and only the line has their run's id.
        click.echo(f"The report, which could not be written: {line}", err=True)
        if error is None:
            if report.records:
                click.echo(report.going_on(), err=True)
            raise lost from failure


def _print_rest(report: Report, source: Any) -> None:
    """Print how to go on after a failure that left no commit in doubt."""
    if report.records:
        click.echo(report.going_on(), err=True)
    lines = report.taken - report.records
    # A pipe, or a terminal, does not give them again.
    if lines and source is not None and not source.seekable():
        were = "line was" if lines == 1 else "lines were"
        click.echo(f"{lines} {were} read and not committed.", err=True)


def _leave(report: Report) -> NoReturn:
    """End without closing the producer, as a crash would."""
    code = 0
    try:
        _print_line(report, None)
    except OutputError as error:
        error.show()
        code = error.exit_code
    # `os._exit` flushes nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    # `sys.exit` would run the exit hooks, which abort the open transaction.
    os._exit(code)


def _counted(records: Iterator[Record], report: Report) -> Iterator[Record]:
    for record in records:
        report.taken += 1
        yield record


def _refuse_options_without_effect(ctx: click.Context) -> None:
    """Refuse an option or argument that has no effect because of others."""
    given = {
        name: param
        for param in ctx.command.params
        if (name := param.name or "")
        # Defaults have no effect either, but are no mistake of the caller's.
        and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for name, other, has_effect in _EFFECTS:
        if name in given and (other in given) is not has_effect:
            shown = given[name].opts[0].upper() if name == "file" else given[name].opts[0]
            beside = "beside" if other in given else "without"
            option = f"--{other.replace('_', '-')}"
            raise click.UsageError(f"{shown} has no effect {beside} {option}: leave it out")


def _parse_run_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    check_utf8(ctx, param, value or "")
    return not_empty("a new id")(ctx, param, value)


def _parse_headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE", ctx, param)
        if name == ID_HEADER:
            raise click.BadParameter(f"{ID_HEADER} is the id that each record gets", ctx, param)
        check_utf8(ctx, param, name)
        # The value as it was given, in any encoding.
        headers.append((name, os.fsencode(text)))
    return tuple(headers)


class _Source(click.File):
    """A file, or None if it is the standard input and that is closed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Open it."""
        return None if value == "-" and sys.stdin is None else super().convert(value, param, ctx)


@click.command()
@cluster_options
@click.option("-t", "--topic", required=True, callback=not_empty(), help="The topic to write to.")
@click.option(
    "--transactional-id",
    callback=not_empty("txnproducer-send-TOPIC"),
    help="Default: txnproducer-send-TOPIC. Two runs at once with"
    " the same id fence each other, as they should.",
)
@click.option(
    "--generate",
    type=click.IntRange(1),
    metavar="N",
    help="Send N generated records, keyed by their number, instead of lines.",
)
@click.option(
    "--size",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Bytes of a generated value.",
)
@click.option(
    "--transaction-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Records per transaction.",
)
@click.option(
    "--abort-ratio",
    type=NumberRange(0, 1),
    default=0.0,
    show_default=True,
    help="Abort this share of the transactions on purpose.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Decides which transactions --abort-ratio aborts.",
)
@click.option(
    "--leave-open", is_flag=True, help="Leave the last transaction open, as a crash would."
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=not_empty("lines without keys"),
    help="The text between key and value in a line.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    help="Leave out the first N records, which an earlier run has written.",
)
@click.option(
    "--run-id",
    metavar="TEXT",
    callback=_parse_run_id,
    help="Part of each record's id; default: random. Give an earlier run's to go on with it.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_parse_headers,
    metavar="NAME=VALUE",
    help="A header of each record; may be given several times.",
)
@click.option("--partition", type=click.IntRange(0), help="Write to this partition only.")
@click.option("--rate", type=NumberRange(0.001), help="At most so many records a second.")
@click.option(
    "--compression",
    type=click.Choice(codec_names()),
    help="Codec of the batches.",
)
# As bytes: a line may be in any encoding, and is sent as it is.
@click.argument("file", type=_Source("rb"), default="-")
@click.pass_context
def command(
    ctx: click.Context,
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    secrets: tuple[str, ...],
    topic: str,
    transactional_id: str | None,
    generate: int | None,
    size: int,
    transaction_size: int,
    abort_ratio: float,
    seed: int,
    leave_open: bool,
    key_separator: str | None,
    skip: int,
    run_id: str | None,
    headers: tuple[tuple[str, bytes], ...],
    partition: int | None,
    rate: float | None,
    compression: str | None,
    file: Any,
) -> None:
    """Send the lines of FILE (or of standard input) in transactions.

    The last line on standard output is JSON: what was committed, aborted, left open, unknown.
    Ctrl-C aborts the open transaction.
    """
    _refuse_options_without_effect(ctx)
    if file is None and generate is None:
        raise click.UsageError("there is no standard input: name a FILE, or give --generate")
    settings = read_settings(bootstrap_servers, config_file, pairs, secrets)
    given = {"transactional.id": transactional_id, "compression.type": compression}
    options = (name for name, value in given.items() if value is not None)
    refuse_twice([*options, *_named(pairs), *_named(secrets)])
    name = transactional_id
    if name is None:
        name = settings.get("transactional.id", f"txnproducer-send-{topic}")
    settings["transactional.id"] = name
    if compression is not None:
        settings["compression.type"] = compression
    config = ProducerConfig.from_properties(settings)
    records = _generated(generate, size) if generate else _lines(file, key_separator)
    if rate is not None:
        count = None if generate is None else generate - skip
        source = ctx.get_parameter_source("transaction_size")
        is_given = source is ParameterSource.COMMANDLINE
        limit_s = config.transaction_timeout_ms / 1000
        transaction_size = size_at_rate(transaction_size, count, rate, limit_s, is_given=is_given)
    plan = Plan(transaction_size, abort_ratio, seed, leave_open, partition, headers, rate)
    report = Report(topic, name, new_run_id() if run_id is None else run_id, skipped=skip)
    # By default Python ends at SIGTERM at once, and leaves the open transaction to its time-out.
    previous = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        _run(config, _counted(_skip(records, skip), report), plan, report)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            click.echo(f"Interrupted: {report.ending}", err=True)
        if not report.transactions["unknown"]:
            _print_rest(report, file)
        # A script finds the line in any case: it has the counts, and the exit code alone does not.
        _print_line(report, error)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if report.transactions["open"]:
        click.echo(
            "Left the last transaction open; the broker aborts it at its time-out"
            f" ({config.transaction_timeout_ms} ms).",
            err=True,
        )
        _leave(report)
    _print_line(report, None)


def _named(pairs: tuple[str, ...]) -> Iterator[str]:
    for text in pairs:
        yield text.partition("=")[0].strip().replace("_", ".")


def _on_sigterm(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)  # as a shell reports it


def _run(config: ProducerConfig, records: Iterator[Record], plan: Plan, report: Report) -> None:
    console = Console(stderr=True)
    with ExitStack() as stack:
        progress = None
        if console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            progress = stack.enter_context(
                Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            )
        # First, since it says within 15 s that the cluster is not there, and why.
        # `init_transactions` would wait for `max.block.ms`, a minute by default.
        reach(config)
        producer = TransactionalProducer.from_config(config)
        with closing(producer, report):
            producer.init_transactions()
            # Asked before the first record, by which the broker creates the topic.
            is_new = _partition_count(config, report.topic) == 0
            send_all(producer, records, plan, report, progress)
            if is_new and (made := _partition_count(config, report.topic)):
                click.echo(
                    f"There was no topic {report.topic!r}: the cluster made it, with {made}"
                    f" partition{'s' if made > 1 else ''}.",
                    err=True,
                )


def _partition_count(config: ProducerConfig, topic: str) -> int | None:
    """Return the number of a topic's partitions, 0 if there is none, None if it is not known."""
    servers = ",".join(config.bootstrap_servers)
    try:
        return partition_count(servers, topic, _QUESTION_S, **security_of(config)) or 0
    except KafkaError:
        return None  # for example without rights; nothing depends on it
