"""Tables for people: what each peer did, and ours as a multiple of it.

Must not know: how anything was measured, and what it should have been.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from integration.benchmarks.results import Result, Results
from integration.benchmarks.settings import ABOUT, in_words_of

_OURS = ("txnproducer.send", "txnproducer.send_batch")


def head(about: dict[str, Any]) -> Iterator[str]:
    """Say where, when and of what."""
    for name in ("commit", "platform", "processor", "processors", "python", "kafka", "broker"):
        yield f"{name}: {about[name]}"
    yield (
        f"rounds: {about['rounds']}; {about['seconds']} s or more per peer, after a warm-up (not"
        f" measured) of half of that, and of {about['java_warm_s']} s for Java"
    )
    yield f"load before: {about['load_before']}"


def settings_lines(table: str, peers: list[str]) -> Iterator[str]:
    """Say with which settings a table's peers write."""
    yield ""
    yield f"=== settings {table!r}: {ABOUT[table]}"
    for peer in peers:
        told = " ".join(f"{name}={value}" for name, value in in_words_of(peer, table).items())
        yield f"  {peer:24} {told}"


def work_lines(results: list[Result]) -> Iterator[str]:
    """Show one work."""
    table, work = results[0].table, results[0].work
    failed = [line for each in results for line in _failure_lines(each)]
    results = [each for each in results if each.runs]
    unit = "records/s" if work.is_long else "transactions/s"
    yield ""
    yield f"{work.name} ({unit}, {table!r} settings)"
    if work.is_quiet:
        yield from _memory_lines(results)
        yield from failed
        return
    yield (
        f"  {'':24} {'median':>10} {'least - most':>23} {'send':>6} {'batch':>6}"
        f" {'CPU':>7} {'p50':>7} {'p99':>7}"
    )
    rates = {each.peer: each.rate for each in results}
    for each in sorted(results, key=lambda result: -result.rate):
        ratios = " ".join(_ratio(rates.get(ours), each.rate) for ours in _OURS)
        span = f"{min(each.rates):,.0f} - {max(each.rates):,.0f}"
        yield (
            f"  {each.peer:24} {each.rate:10,.0f} {span:>23} {ratios}"
            f" {each.cpu:7.2f} {each.latency(50):7.1f} {each.latency(99):7.1f}"
        )
    yield from failed


def _failure_lines(result: Result) -> Iterator[str]:
    """Say which runs a peer's figures are without."""
    if result.left_out:
        yield f"  {result.peer} takes no part: {result.left_out}"
    for why in result.failures:
        yield f"  {result.peer} failed in {why}"
    if result.failures:
        yield f"  {result.peer}: {len(result.runs)} runs are counted"


def _ratio(ours: float | None, theirs: float) -> str:
    return f"{'-':>6}" if ours is None else f"{ours / theirs:5.2f}x"


def legend() -> str:
    """Explain the columns."""
    return (
        "send, batch: the rates of our `send` and `send_batch` as multiples of the line's.\n"
        "CPU: seconds of the client's process for a million records. p50, p99: milliseconds from"
        " begin to\nthe commit's end, of all rounds."
    )


def _memory_lines(results: list[Result]) -> Iterator[str]:
    for each in results:
        run = each.runs[0]
        for told, found in (
            ("before the first, after each million", run["rss"]),
            ("at most in each million", run["peaks"]),
        ):
            numbers = ", ".join(f"{mb:,.0f}" for mb in found)
            yield f"  {each.peer:24} MB {told}: {numbers}"
        yield f"  {'':24} {each.rate:,.0f} records/s"


def tail(results: Results) -> Iterator[str]:
    """Say what is not in the tables."""
    yield ""
    yield legend()
    versions = {each.peer: each.runs[0]["version"] for each in results.found if each.runs}
    yield "versions: " + "; ".join(f"{peer} {told}" for peer, told in versions.items())
    yield f"load after: {results.about['load_after']}; measured in {results.about['took_s']} s"
    for each in results.found:
        for line in _failure_lines(each):
            yield f"{each.work.name}, {each.table!r}: {line.strip()}"
