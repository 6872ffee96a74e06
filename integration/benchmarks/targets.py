"""The targets of this producer, beside its results. Prints them, and fails nothing.

Owns: the targets. Must not know: how anything was measured. Where several of our calls or several
peers are named, the quickest counts. A peer that took part and has no run might have been it: then
nothing was measured, and no other takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from integration.benchmarks.results import Result, Results
from integration.benchmarks.settings import PEERS, RAW, TABLES
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
)

_SEND, _BATCH, _ARROW = "txnproducer.send", "txnproducer.send_batch", "txnproducer.send_arrow"
_OURS = (_SEND, _BATCH, _ARROW)
_OTHERS = tuple(
    peer for peer, client in PEERS.items() if client != "txnproducer" and peer not in RAW
)
_PRODUCE, _PRODUCE_BATCH = "confluent.produce", "confluent.produce_batch"
_ABOVE_BUFFER_MB = 60.0
_FLAT_MB = 5.0


@dataclass(frozen=True)
class Target:
    """A ratio to reach.

    Attributes:
        work: by its name.
        ours: our calls.
        theirs: the peers.
        limit: of ours divided by theirs.
        of: "rate", at least; "cpu" or "p99", at most.
        is_at_will: the size of our batches is free: ours with the best settings is judged against
            theirs with equal ones, too.
    """

    work: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    limit: float
    of: str = "rate"
    is_at_will: bool = False

    def value(self, result: Result) -> float:
        if self.of == "rate":
            return result.rate
        return result.cpu if self.of == "cpu" else result.latency(99)

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.of == "rate" else ratio <= self.limit


TARGETS = (
    Target(LONG, (_SEND,), (_PRODUCE,), 1.2),
    Target(LONG, (_BATCH,), (_PRODUCE_BATCH,), 4, is_at_will=True),
    Target(LONG, (_BATCH,), ("java",), 4, is_at_will=True),
    Target(LONG, (_ARROW,), (_PRODUCE_BATCH,), 4, is_at_will=True),
    Target(LONG, (_ARROW,), ("java",), 4, is_at_will=True),
    Target(LONG, ("txnproducer.python",), ("kafka-python",), 2),
    Target(LONG, (_SEND,), (_PRODUCE,), 1.5, "cpu"),
    Target(LONG, (_BATCH,), (_PRODUCE_BATCH,), 1, "cpu"),
    Target(LONG, (_ARROW,), (_PRODUCE_BATCH,), 1, "cpu"),
    Target(LZ4, _OURS, _OTHERS, 1.2),
    Target(THOUSAND, _OURS, _OTHERS, 1.3),
    Target(TEN, (_SEND,), _OTHERS, 1.5),
    Target(TEN, (_SEND,), ("java",), 0.5, "p99"),
    Target(ONE, (_SEND,), _OTHERS, 1.5),
    Target(ONE, (_SEND,), ("java",), 0.5, "p99"),
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
    for target in TARGETS:
        tables = [(table, table) for table in TABLES]
        if target.is_at_will:
            tables.append(("best", "equal"))
        judged = [line for pair in tables for line in _judged(results, *pair, target)]
        yield from judged or [_unknown(_in_words(target), "nobody took part")]
    peers = [each.peer for each in results.of("partitions", MANY_PARTITIONS)]
    for peer in [peer for peer in _OURS if peer in peers] or [_BATCH]:
        yield from _partitions(results, peer)
    for table, work, peer in MEMORY_RUNS:
        yield from _memory(results, table, work, peer)


def _in_words(target: Target) -> str:
    ours, theirs = (" or ".join(peers) for peers in (target.ours, target.theirs))
    return f"{target.work}, {_NAMES[target.of]}: {ours} / {theirs}"


def _judged(results: Results, table: str, other: str, target: Target) -> Iterator[str]:
    """Judge a target with the settings of a table, the others' maybe of another one."""
    ours = [each for each in results.of(table, target.work) if each.peer in target.ours]
    theirs = [each for each in results.of(other, target.work) if each.peer in target.theirs]
    if not ours or not theirs:  # who took no part cannot be judged
        return
    best, peer = _quickest(ours), _quickest(theirs)
    missing = " and ".join(each.peer for each in theirs if not each.runs)
    tables = repr(table) if table == other else f"ours {table!r}, theirs {other!r}"
    what = f"{target.work}, {tables}, {_NAMES[target.of]}"
    if best is None or peer is None:
        yield _unknown(f"{what}: {target.ours[0]} / {theirs[0].peer}", "a side has no run")
        return
    ratio = target.value(best) / target.value(peer)
    sign = ">=" if target.of == "rate" else "<="
    what = f"{what}: {best.peer} / {peer.peer}"
    if len(theirs) > 1:
        what += f" (of {', '.join(each.peer for each in theirs)})"
    told = f"{ratio:.2f} ({sign} {target.limit:g})"
    if missing:
        yield _unknown(what, f"{missing} has no run; without it {told}")
    else:
        yield _line(what, told, is_met=target.is_met(ratio))


def _quickest(found: list[Result]) -> Result | None:
    return max((each for each in found if each.runs), key=lambda each: each.rate, default=None)


def _partitions(results: Results, peer: str) -> Iterator[str]:
    few = results.get("partitions", FEW_PARTITIONS, peer)
    many = results.get("partitions", MANY_PARTITIONS, peer)
    if few is None or many is None or not few.runs or not many.runs:
        yield _unknown(f"600 / 6 partitions, per record: {peer}", "a side has no run")
        return
    for name, ratio in (("time", few.rate / many.rate), ("CPU", many.cpu / few.cpu)):
        told = f"600 / 6 partitions, {name} per record: {peer}"
        yield _line(told, f"{ratio:.2f} (<= 1.2)", is_met=ratio <= 1.2)


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
