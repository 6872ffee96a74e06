"""The transactions of `txnproducer send`: their records, their ends, and the close.

Owns: the division of the records into transactions. Must not know: where the records come from,
options, the report's text.
Rules: after an exception the report is still correct, whatever was under way.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import click
from rich.progress import Progress

from txnproducer.cli._readback import ID_HEADER
from txnproducer.cli._send_report import LastTransaction, Report
from txnproducer.producer import TransactionalProducer

__all__ = ["Plan", "Record", "closing", "send_all", "size_at_rate"]

# A person waits at the terminal, perhaps after Ctrl-C.
_CLOSE_S = 10.0
_FAILED = ("ABORTABLE_ERROR", "FATAL_ERROR")
Record = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Plan:
    """The division of the records into transactions, and the way those end."""

    transaction_size: int
    abort_ratio: float
    seed: int
    is_left_open: bool
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]
    rate: float | None


def size_at_rate(
    size: int, count: int | None, rate: float, limit_s: float, *, is_given: bool
) -> int:
    """Return the records of a transaction that ends before its time is up, at a rate.

    Args:
        size: the wanted number.
        count: the number of all records, if it is known.
        rate: records a second.
        limit_s: the transactions' time-out. Half of it is used.
        is_given: whether the size was asked for, so that only one that takes all of it is refused.

    Raises:
        click.UsageError: a transaction of the size that was asked for takes too long.
    """
    # Between the first record and the last one.
    lasts_s = (min(size, count or size) - 1) / rate
    if lasts_s < limit_s / 2:
        return size
    most = max(1, int(limit_s / 2 * rate))
    if not is_given:
        return most
    if lasts_s < limit_s:
        return size
    raise click.UsageError(
        f"--transaction-size {size} at --rate {rate:g} takes {lasts_s:.0f} s, and the coordinator"
        f" aborts a transaction after {limit_s:g} s. Lower it to {most}, leave it out, or give"
        " more time with -X transaction.timeout.ms=MS"
    )


def send_all(
    producer: TransactionalProducer,
    records: Iterator[Record],
    plan: Plan,
    report: Report,
    progress: Progress | None,
) -> None:
    """Write every record. After an exception the report is still correct."""
    rng = random.Random(plan.seed)  # noqa: S311 - which transactions abort is no secret
    task = None if progress is None else progress.add_task("records", total=None)
    chunks = _chunks(records, plan.transaction_size)
    chunk = next(chunks, None)
    while chunk is not None:
        # Only with --leave-open must the last transaction be known before it is written.
        following = next(chunks, None) if plan.is_left_open else None
        is_open_end = plan.is_left_open and following is None
        _send_one(
            producer,
            chunk,
            plan,
            report,
            is_open_end=is_open_end,
            is_aborted=rng.random() < plan.abort_ratio,
        )
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
    if plan.rate and any(report.transactions.values()):
        # Not within the transaction, whose time runs.
        time.sleep(1 / plan.rate)
    txn = producer.transaction()
    txn.__enter__()  # no block: --leave-open must be able to leave it without an end
    # Counted at its end, or when the run fails, so that no interrupt counts it twice.
    last = report.last = LastTransaction(txn, len(chunk))
    try:
        _send_records(producer, chunk, plan, report, last)
        if is_open_end:
            producer.flush()
            # The records must be in the log before the process leaves: nothing would send them
            # later.
            for future in last.futures:
                future.result(0)
            return
        if is_aborted:
            producer.flush()  # so that readers at read_uncommitted see the records
            producer.abort_transaction()
        else:
            # Before the call: an interrupt in it leaves the outcome unknown, and the report has to
            # say so.
            last.is_commit_tried = True
            producer.commit_transaction()
        report.count_last()
    except Exception:
        # An open transaction holds up the topic's readers until its time-out. After a signal only
        # the close aborts it, since this call may wait for `max_block_ms`.
        if txn.outcome == "open":
            try:
                producer.abort_transaction()
            except Exception as failure:  # noqa: BLE001 - the first error is the one to show
                last.abort_failure = failure
        raise


def _send_records(
    producer: TransactionalProducer,
    chunk: list[Record],
    plan: Plan,
    report: Report,
    last: LastTransaction,
) -> None:
    for number, (key, value) in enumerate(chunk, report.skipped + report.records):
        if plan.rate and last.futures:
            time.sleep(1 / plan.rate)
            # After a fence `send` only returns failed futures. The transaction's end says why.
            if producer.transaction_state in _FAILED:
                return
        # Counted over the whole input, so that a run that goes on gives the same ids.
        record_id = (ID_HEADER, f"{report.run_id}-{number}".encode())
        headers = (*plan.headers, record_id)
        last.futures.append(producer.send(report.topic, value, key, headers, plan.partition))


@contextmanager
def closing(producer: TransactionalProducer, report: Report) -> Iterator[None]:
    """Close the producer at the end, unless the last transaction is left open.

    A failure is raised after the close: only then is the outcome of the last transaction certain.

    Raises:
        CommitOutcomeUnknownError: in place of the failure, if a commit's outcome is unknown.
    """
    try:
        yield
    except BaseException as error:
        # First, since a close by force makes an error of the producer.
        has_failed = producer.transaction_state == "FATAL_ERROR"
        _close(producer, is_interrupted=not isinstance(error, Exception))
        if report.last is not None and not has_failed:
            # The outcome is "aborted" before the coordinator answers, the state READY only after.
            report.last.is_end_seen = producer.transaction_state == "READY"
        unknown = report.break_off(error)
        if unknown is not None:
            raise unknown from error
        raise
    if report.last is None:
        producer.close(timeout=_CLOSE_S)
    else:
        report.count_last()


def _close(producer: TransactionalProducer, *, is_interrupted: bool) -> None:
    """Close the producer after a failure. An interrupt ends the wait, and is not raised."""
    try:
        if is_interrupted:
            click.echo(
                "Interrupted: closing the producer, which ends an open transaction and takes"
                f" {_CLOSE_S:g} s at most; a second Ctrl-C does not wait.",
                err=True,
            )
        producer.close(timeout=_CLOSE_S)
    except (KeyboardInterrupt, SystemExit):
        with suppress(KeyboardInterrupt, SystemExit):
            producer.close(timeout=0)  # otherwise the exit of the process waits for it


def _chunks(records: Iterator[Record], size: int) -> Iterator[list[Record]]:
    while chunk := list(itertools.islice(records, size)):
        yield chunk
