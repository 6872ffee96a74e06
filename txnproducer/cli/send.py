"""`txnproducer send`: write lines or generated records in transactions; say what became of them.

Owns: where the records come from, how they are cut into transactions, the closing JSON line. Must
not know: how a transaction works.

Rules:
* Standard output carries one JSON line, whatever happens; everything for people goes to standard
  error.
* What the JSON line calls committed was committed: a transaction whose commit is in doubt is
  counted as unknown.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txnproducer._core.results import FutureRecordMetadata
from txnproducer.cli._common import cluster_options, read_settings
from txnproducer.config import ProducerConfig
from txnproducer.producer import TransactionalProducer
from txnproducer.transaction import Transaction

Record = tuple[bytes | None, bytes | None]


@dataclass
class Report:
    """What has become of the records so far."""

    topic: str
    transactional_id: str
    records: int = 0
    transactions: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("committed", "aborted", "open", "unknown"), 0)
    )
    partitions: dict[str, list[int]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def note_committed(self, futures: list[FutureRecordMetadata]) -> None:
        """Count a transaction as committed, and note the offsets of its records."""
        self.transactions["committed"] += 1
        for future in futures:
            metadata = future.result(0)
            place = f"{metadata.topic}-{metadata.partition}"
            first_last = self.partitions.setdefault(place, [metadata.offset, metadata.offset])
            first_last[0] = min(first_last[0], metadata.offset)
            first_last[1] = max(first_last[1], metadata.offset)

    def line(self, error: BaseException | None) -> str:
        """Return the closing JSON line."""
        seconds = time.monotonic() - self.began
        return json.dumps(
            {
                "topic": self.topic,
                "transactional_id": self.transactional_id,
                "records": self.records,
                "transactions": self.transactions,
                "partitions": dict(sorted(self.partitions.items())),
                "seconds": round(seconds, 3),
                "records_per_s": round(self.records / seconds) if seconds > 0 else 0,
                "error": None if error is None else (str(error) or type(error).__name__),
            }
        )


def _lines(file: Any, separator: str | None) -> Iterator[Record]:
    for line in file:
        value = line.rstrip(b"\r\n")
        if separator is None:
            yield None, value
            continue
        key, found, rest = value.partition(separator.encode())
        yield (key, rest) if found else (None, value)


def _generated(count: int, size_bytes: int) -> Iterator[Record]:
    for number in range(count):
        key = b"%012d" % number
        yield key, key.ljust(size_bytes, b".")[:size_bytes]


def _chunks(records: Iterator[Record], size: int) -> Iterator[list[Record]]:
    while chunk := list(itertools.islice(records, size)):
        yield chunk


@dataclass(frozen=True)
class Plan:
    """How the records are cut into transactions and how those end."""

    transaction_size: int
    abort_ratio: float
    seed: int
    is_left_open: bool
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]
    rate: float | None


def _send_all(
    producer: TransactionalProducer,
    records: Iterator[Record],
    plan: Plan,
    report: Report,
    progress: Progress | None,
) -> None:
    """Write every record; an exception leaves the report true."""
    dice = random.Random(plan.seed)  # noqa: S311 - which transactions abort is no secret
    task = None if progress is None else progress.add_task("records", total=None)
    chunks = _chunks(records, plan.transaction_size)
    chunk = next(chunks, None)
    while chunk is not None:
        # Only who leaves the last one open must know which is the last before it is written.
        following = next(chunks, None) if plan.is_left_open else None
        is_open_end = plan.is_left_open and following is None
        _send_one(
            producer,
            chunk,
            plan,
            report,
            is_open_end=is_open_end,
            is_aborted=dice.random() < plan.abort_ratio,
        )
        report.records += len(chunk)
        if progress is not None and task is not None:
            progress.update(task, completed=report.records)
        chunk = following if plan.is_left_open else next(chunks, None)


def _send_one(
    producer: TransactionalProducer,
    chunk: list[Record],
    plan: Plan,
    report: Report,
    *,
    is_open_end: bool,
    is_aborted: bool,
) -> None:
    txn = producer.transaction()
    txn.__enter__()  # no block: --leave-open must be able to leave it without an end
    try:
        futures = []
        for key, value in chunk:
            futures.append(producer.send(report.topic, value, key, plan.headers, plan.partition))
            if plan.rate:
                time.sleep(1 / plan.rate)
        if is_open_end:
            producer.flush()
            for future in futures:
                future.result(0)
            report.transactions["open"] += 1
        elif is_aborted:
            producer.flush()  # so that readers at read_uncommitted have something to see
            producer.abort_transaction()
            report.transactions["aborted"] += 1
        else:
            producer.commit_transaction()
            report.note_committed(futures)
    except BaseException as error:
        _give_up(producer, txn, report, error)
        raise


def _give_up(
    producer: TransactionalProducer, txn: Transaction, report: Report, error: BaseException
) -> None:
    """Abort what is open after a failure; the report says how it ended, as far as it is known."""
    if txn.outcome == "open":
        try:
            producer.abort_transaction()
        except Exception as failure:  # noqa: BLE001 - the first error is the one to show
            # It may have found that the commit was carried out after all: the outcome tells.
            if txn.outcome == "open":
                error.add_note(f"The transaction could not be aborted: {failure}")
    report.transactions[txn.outcome] += 1


def _leave(line: str) -> NoReturn:
    """End without closing the producer, as a crash would."""
    click.echo(line)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _parse_headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE", ctx, param)
        headers.append((name, text.encode()))
    return tuple(headers)


@click.command()
@cluster_options
@click.option("-t", "--topic", required=True, help="Where to.")
@click.option(
    "--transactional-id",
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
    type=click.FloatRange(0, 1),
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
@click.option("--key-separator", metavar="TEXT", help="What parts key and value in a line.")
@click.option("--header", "headers", multiple=True, callback=_parse_headers, metavar="NAME=VALUE")
@click.option("--partition", type=click.IntRange(0), help="Write to this partition only.")
@click.option("--rate", type=click.FloatRange(0.001), help="At most so many records a second.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Codec of the batches.",
)
@click.argument("file", type=click.File("rb"), default="-")
def command(
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    topic: str,
    transactional_id: str | None,
    generate: int | None,
    size: int,
    transaction_size: int,
    abort_ratio: float,
    seed: int,
    leave_open: bool,
    key_separator: str | None,
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
    settings: dict[str, str] = read_settings(bootstrap_servers, config_file, pairs)
    name = transactional_id or settings.get("transactional.id") or f"txnproducer-send-{topic}"
    settings["transactional.id"] = name
    if compression is not None:
        settings["compression.type"] = compression
    config = ProducerConfig.from_properties(settings)
    records = _generated(generate, size) if generate else _lines(file, key_separator)
    plan = Plan(transaction_size, abort_ratio, seed, leave_open, partition, headers, rate)
    report = Report(topic, name)
    try:
        _run(config, records, plan, report)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            click.echo(f"Interrupted: {_told(report)}", err=True)
        click.echo(report.line(error))
        raise
    if report.transactions["open"]:
        click.echo(
            "Left the last transaction open; the broker aborts it at its time-out"
            f" ({config.transaction_timeout_ms} ms).",
            err=True,
        )
        _leave(report.line(None))
    click.echo(report.line(None))


def _run(config: ProducerConfig, records: Iterator[Record], plan: Plan, report: Report) -> None:
    console = Console(stderr=True)
    with ExitStack() as stack:
        progress = None
        if console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            progress = stack.enter_context(
                Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            )
        producer = TransactionalProducer.from_config(config)
        try:
            producer.init_transactions()
            _send_all(producer, records, plan, report, progress)
        finally:
            if not report.transactions["open"]:
                producer.close(timeout=10)


def _told(report: Report) -> str:
    ended = report.transactions
    if ended["unknown"]:
        return "whether the open transaction was committed is not known; run `txnproducer verify`."
    if ended["open"]:
        return "the open transaction could not be aborted; the broker does it at its time-out."
    if ended["aborted"]:
        return "the open transaction was aborted; what was committed before stays."
    return "no transaction was open; what was committed before stays."
