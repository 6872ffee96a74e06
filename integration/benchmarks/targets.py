"""The targets of this producer, beside its results. Prints them, and fails nothing.

Owns: the targets. Must not know: how anything was measured. Where several of our calls or several
peers are named, the quickest counts. A peer that took part and has no run might have been it: then
nothing was measured, and no other takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from integration.benchmarks.results import Result, Results
from integration.benchmarks.settings import LOOPS, PEERS, RAW, TABLES
from integration.benchmarks.works import (
    FEW_PARTITIONS,
    LONG,
    LZ4,
    MANY_PARTITIONS,
    MEMORY,
    MEMORY_LZ4,
    ONE,
    TEN,
    THOUSAND,
    ZSTD,
)

_SEND, _BATCH, _ARROW = "txnproducer.send", "txnproducer.send_batch", "txnproducer.send_arrow"
_OURS = (_SEND, _BATCH, _ARROW)
_COLUMNS = (_BATCH, _ARROW)
_OTHERS = tuple(
    peer for peer, client in PEERS.items() if client != "txnproducer" and peer not in RAW
)
_SENDER = RAW[:1]
_ABOVE_BUFFER_MB = 60.0
_FLAT_MB = 5.0
_CPU_OF_SEND_US = 0.25
_CPU_OF_TRANSACTION_US = 200.0
# Java does not wait for markers. Where they are late, the broker puts its transactions to sleep.
_SLEPT_MS = 5.0
_ABOVE_JAVA_AWAKE, _ABOVE_JAVA_ASLEEP = 1.0, 1.5
_GROWTH = 1.2


@dataclass(frozen=True)
class Target:
    """A ratio to reach.

    Attributes:
        table: of the settings.
        work: by its name.
        ours: our calls.
        theirs: the peers, or the limits.
        limit: of ours divided by theirs.
        of: "rate", at least; "cpu" or "p99", at most.
        brokers: of the run.
    """

    table: str
    work: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    limit: float
    of: str = "rate"
    brokers: int = 1

    def value(self, result: Result) -> float:
        if self.of == "rate":
            return result.rate
        return result.cpu if self.of == "cpu" else result.latency(99)

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.of == "rate" else ratio <= self.limit


TARGETS = (
    *(
        Target(table, LONG, (call,), limits, limit)
        for table, of_loop, of_sender in (("best", 0.85, 0.7), ("equal", 0.7, 0.55))
        for call in _COLUMNS
        for limits, limit in ((LOOPS, of_loop), (_SENDER, of_sender))
    ),
    *(
        Target(table, LONG, calls, _OTHERS, limit, "cpu")
        for table in ("best", "equal")
        for calls, limit in ((_COLUMNS, 0.25), ((_SEND,), 0.5))
    ),
    Target("equal", LONG, ("txnproducer.python",), ("kafka-python",), 2),
    Target("best", THOUSAND, _OURS, _OTHERS, 1.3),
    Target("equal", LZ4, _OURS, _OTHERS, 1.2),
    Target("equal", ZSTD, _OURS, _OTHERS, 1.2),
    *(
        each
        for work in (TEN, ONE)
        for each in (
            Target("short", work, (_SEND,), ("confluent.produce",), 2),
            Target("short", work, (_SEND,), LOOPS[1:], 0.5),
            Target("short", work, (_SEND,), ("java",), 0.5, "p99"),
            Target("short", work, (_SEND,), _OTHERS, 6, brokers=3),
        )
    ),
)
MEMORY_RUNS = (
    ("equal", MEMORY, _SEND),
    ("equal", MEMORY, _BATCH),
    ("best", MEMORY_LZ4, _BATCH),
)
_NAMES = {"rate": "rate", "cpu": "CPU per record", "p99": "p99 of a transaction"}


def target_lines(results: Results) -> Iterator[str]:
    """Judge the targets that have results, and name the others."""
    yield ""
    yield "### Targets"
    yield ""
    if results.about.get("is_shortened"):
        yield "Not judged: the works were shortened."
        return
    yield "| | target | found |"
    yield "|---|---|--:|"
    brokers = 1 if int(str(results.about["broker"]).split(",")[0]) == 1 else 3
    for target in TARGETS:
        if target.brokers == brokers:
            yield from _judged(results, target)
    if brokers == 1:
        for table in ("best", "equal"):
            yield from _send(results, table)
        for work in (TEN, ONE):
            yield from _short(results, work)
        yield from _partitions(results)
        for table, work, peer in MEMORY_RUNS:
            yield from _memory(results, table, work, peer)


def _judged(results: Results, target: Target) -> Iterator[str]:
    found = results.of(target.table, target.work)
    ours = [each for each in found if each.peer in target.ours]
    theirs = [each for each in found if each.peer in target.theirs]
    what = f"{target.work}, {target.table!r}, {_NAMES[target.of]}"
    if not ours or not theirs:
        yield _unknown(f"{what}: {target.ours[0]} / {target.theirs[0]}", "nobody took part")
        return
    best, peer = _best(ours, target), _best(theirs, target)
    missing = " and ".join(each.peer for each in theirs if not each.runs)
    if best is None or peer is None:
        yield _unknown(f"{what}: {target.ours[0]} / {theirs[0].peer}", "a side has no run")
        return
    ratio = target.value(best) / target.value(peer)
    sign = ">=" if target.of == "rate" else "<="
    what = f"{what}: {best.peer} / {peer.peer}"
    if len(theirs) > 1:
        what += f" (of {', '.join(each.peer for each in theirs)})"
    # A digit more where two would hide on which side of the limit it is.
    digits = 3 if abs(ratio - target.limit) < 0.005 else 2
    told = f"{ratio:.{digits}f} ({sign} {target.limit:g})"
    if missing:
        yield _unknown(what, f"{missing} has no run; without it {told}")
    else:
        yield _line(what, told, is_met=target.is_met(ratio))


def _best(found: list[Result], target: Target) -> Result | None:
    """Return the quickest, or the one with the least CPU time if that is compared."""
    with_runs = (each for each in found if each.runs)
    if target.of == "cpu":
        return min(with_runs, key=lambda each: each.cpu, default=None)
    return max(with_runs, key=lambda each: each.rate, default=None)


def _send(results: Results, table: str) -> Iterator[str]:
    """Judge `send` beside `send_batch`: nearly as quick, or with hardly any CPU time."""
    send, batch = results.get(table, LONG, _SEND), results.get(table, LONG, _BATCH)
    what = f"{LONG}, {table!r}, rate: {_SEND} / {_BATCH}, or CPU time of a record"
    if send is None or batch is None or not send.runs or not batch.runs:
        yield _unknown(what, "a side has no run")
        return
    ratio = send.rate / batch.rate
    yield _line(
        what,
        f"{ratio:.2f} (>= 0.8), or {send.cpu:.2f} µs (<= {_CPU_OF_SEND_US:g})",
        is_met=ratio >= 0.8 or send.cpu <= _CPU_OF_SEND_US,
    )


def _short(results: Results, work: str) -> Iterator[str]:
    """Judge short transactions beside Java's, and their CPU time."""
    ours, java = results.get("short", work, _SEND), results.get("short", work, "java")
    if ours is None or not ours.runs:
        yield _unknown(f"{work}, 'short': {_SEND}", "there is no run")
        return
    records = ours.work.records
    cpu_us = ours.cpu * records
    yield _line(
        f"{work}, 'short', CPU time of a transaction: {_SEND}",
        f"{cpu_us:.0f} µs (<= {_CPU_OF_TRANSACTION_US:g})",
        is_met=cpu_us <= _CPU_OF_TRANSACTION_US,
    )
    if java is None or not java.runs:
        yield _unknown(f"{work}, 'short', rate: {_SEND} / java", "a side has no run")
        return
    is_awake = java.latency(99) < _SLEPT_MS
    rate, limit = max(java.rates), _ABOVE_JAVA_AWAKE
    of = "best round, since its p99 is below 5 ms"
    if not is_awake:
        rate, limit = java.rate, _ABOVE_JAVA_ASLEEP
        of = "median, since its p99 is above 5 ms"
    yield _line(
        f"{work}, 'short', rate: {_SEND} / java ({of})",
        f"{ours.rate / rate:.2f} (>= {limit:g})",
        is_met=ours.rate / rate >= limit,
    )


def _partitions(results: Results) -> Iterator[str]:
    found = [each.peer for each in results.of("partitions", MANY_PARTITIONS)]
    growths = {peer: _growth(results, peer) for peer in found}
    known = [growth for peer in _OTHERS if (growth := growths.get(peer)) is not None]
    beside = ", ".join(
        f"{peer} {growth:.2f}"
        for peer, growth in growths.items()
        if growth is not None and peer not in _OURS
    )
    for peer in [peer for peer in _OURS if peer in growths] or [_BATCH]:
        what = f"600 / 6 partitions, time per record: {peer}"
        growth = growths.get(peer)
        if growth is None:
            yield _unknown(what, "a side has no run")
            continue
        limit = max(_GROWTH, min(known, default=0))
        told = f"{growth:.2f} (<= {limit:.2f})" + (f"; beside it {beside}" if beside else "")
        yield _line(what, told, is_met=growth <= limit)


def _growth(results: Results, peer: str) -> float | None:
    few = results.get("partitions", FEW_PARTITIONS, peer)
    many = results.get("partitions", MANY_PARTITIONS, peer)
    if few is None or many is None or not few.runs or not many.runs:
        return None
    return few.rate / many.rate


def _memory(results: Results, table: str, work: str, peer: str) -> Iterator[str]:
    result = results.get(table, work, peer)
    if result is None or not result.runs:
        yield _unknown(f"{work}: {peer}", "there is no run")
        return
    rss, peaks = result.runs[0]["rss"], result.runs[0]["peaks"]
    # Memory that is free again at a commit was held all the same: peaks decide.
    growth, above = max(peaks) - peaks[0], max(peaks) - rss[0]
    limit = TABLES[table][peer].buffer_bytes / 1e6 + _ABOVE_BUFFER_MB
    yield _line(
        f"{work}, growth of the peak after the first million: {peer}",
        f"{growth:.1f} MB (<= {_FLAT_MB:g})",
        is_met=growth <= _FLAT_MB,
    )
    yield _line(
        f"{work}, peak above the start: {peer}",
        f"{above:.1f} MB (<= {limit:.1f})",
        is_met=above <= limit,
    )


def _line(what: str, found: str, *, is_met: bool) -> str:
    return f"| {'met' if is_met else '**not met**'} | {what} | {found} |"


def _unknown(what: str, why: str) -> str:
    return f"| not measured | {what} | {why} |"
