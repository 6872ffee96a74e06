"""The report in Markdown: the result of each peer, and ours as a multiple of it.

Must not know: how anything was measured, and what it should have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from integration.benchmarks.busy import GROUPS
from integration.benchmarks.markdown import table
from integration.benchmarks.results import Result, Results
from integration.benchmarks.settings import ABOUT, LOOPS, RAW, in_words_of

_OURS = ("txnproducer.send", "txnproducer.send_batch")
_LOGS = {"memory": "in memory", "disk": "on the machine's disk"}
_PERCENTS = (50, 90, 99, 100)


def head(about: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about the machine, the versions and the rounds."""
    for name in ("commit", "platform", "processor", "processors", "python", "kafka", "broker"):
        yield f"- {name}: {about[name]}"
    # Results of before 2026-11-29 do not say.
    yield f"- the brokers' logs: {_LOGS[about.get('log', 'disk')]}"
    yield (
        f"- rounds: {about['rounds']}; {about['seconds']} s per peer, less if a work has enough"
        " transactions before (20 of 50,000 records), more for its least; after a warm-up (not"
        f" measured) of half of that, and of {about['java_warm_s']} s for Java"
    )
    yield f"- values: {about['values']}"
    yield "- each peer in a process of its own; every record counted, or the run has failed"
    if about["is_shortened"]:
        yield "- shortened works, which show that all of it runs, and no more than that"
    yield f"- load before: {about['load_before']}"


def settings_lines(name: str, codec: str, peers: Sequence[str]) -> Iterator[str]:
    """Say with which settings peers write."""
    yield ""
    yield f"Settings {name!r}: {ABOUT[name]}. What is not named is a client's default; `acks=all`."
    yield ""
    for peer in peers:
        told = " ".join(f"{key}={value}" for key, value in in_words_of(peer, name, codec).items())
        yield f"- {peer}: `{told}`"


def work_lines(results: list[Result]) -> Iterator[str]:
    """Show one work."""
    name, work = results[0].table, results[0].work
    failed = [line for each in results for line in _failure_lines(each)]
    results = sorted((each for each in results if each.runs), key=lambda each: -each.rate)
    yield ""
    yield f"### {work.name}, {name!r} settings"
    if results:
        yield ""
        yield from _memory_table(results) if work.is_quiet else _rate_table(results)
    if results and not work.is_quiet:
        yield ""
        yield from _latency_table(results)
        yield from _busy_table(results)
    if failed:
        yield ""
        yield from failed


def _rate_table(results: list[Result]) -> Iterator[str]:
    """Show medians of the rounds, each with the least and the most."""
    unit = "records/s" if results[0].work.is_long else "transactions/s"
    rates = {each.peer: each.rate for each in results}
    heads = (
        *(unit, "median", "of rounds", "send", "send_batch"),
        *("of the sender", "of the loop", "CPU s per million", "of rounds"),
    )
    rows = [
        (
            each.peer,
            f"{each.rate:,.0f}",
            f"{min(each.rates):,.0f} - {max(each.rates):,.0f}",
            *(_ratio(rates.get(ours), each.rate) for ours in _OURS),
            *(_share(rates, each.rate, limits) for limits in (RAW[:1], LOOPS)),
            f"{each.cpu:,.2f}",
            f"{min(each.cpus):,.2f} - {max(each.cpus):,.2f}",
        )
        for each in results
    ]
    yield from table(heads, rows)


def _ratio(ours: float | None, theirs: float) -> str:
    return "-" if ours is None else f"{ours / theirs:.2f} x"


def _share(rates: dict[str, float], rate: float, limits: tuple[str, ...]) -> str:
    found = [rates[limit] for limit in limits if limit in rates]
    return f"{rate / max(found):.2f}" if found else "-"


def _latency_table(results: list[Result]) -> Iterator[str]:
    """Show how long transactions took, and their commits, over all rounds."""
    names = ["max" if percent == 100 else f"p{percent}" for percent in _PERCENTS]
    heads = ["ms", *(f"txn {name}" for name in names), *(f"commit {name}" for name in names)]
    rows = [
        [
            each.peer,
            *(f"{each.latency(percent):,.1f}" for percent in _PERCENTS),
            *(f"{each.commit(percent):,.1f}" for percent in _PERCENTS),
        ]
        for each in results
    ]
    yield from table(heads, rows)


def _busy_table(results: list[Result]) -> Iterator[str]:
    """Show the use of the processors, for the peers that report it."""
    told = [each for each in results if each.busy(GROUPS[0]) is not None]
    if not told:
        return
    yield ""
    rows = [[each.peer, *(f"{each.busy(group):.2f}" for group in GROUPS)] for each in told]
    yield from table(("CPU s per second", *GROUPS), rows)


def _memory_table(results: list[Result]) -> Iterator[str]:
    for each in results:
        run = each.runs[0]
        first, *after = (f"{mb:,.0f}" for mb in run["rss"])
        counts = [str(number + 1) for number in range(len(run["peaks"]))]
        peaks = [f"{mb:,.0f}" for mb in run["peaks"]]
        heads = (f"{each.peer}: MB", "before", *counts)
        yield from table(heads, (("after transaction", first, *after), ("at most", "", *peaks)))
        yield f"\n{each.rate:,.0f} records/s\n"


def _failure_lines(result: Result) -> Iterator[str]:
    """Say which runs a peer's figures are without."""
    if result.left_out:
        yield f"- {result.peer} takes no part: {result.left_out}"
    for why in result.failures:
        yield f"- {result.peer} failed in {why}"
    if result.failures:
        yield f"- {result.peer}: {len(result.runs)} runs are counted"


def tail(results: Results) -> Iterator[str]:
    """Yield the notes below the tables."""
    yield ""
    yield (
        "The columns `send` and `send_batch` are our rates as multiples of the line's. The columns"
        " `of the sender` and `of the loop` are the line's rate as a part of what hardly more than"
        " a socket reaches with prebuilt requests; the loop is the quicker one of the two. CPU is"
        " that"
        " of the client's process, user and system. Transactions (txn) are timed from begin to the"
        " commit's end, over all rounds. CPU s per second are medians of the rounds; 'waiting' is"
        " how long threads of client or broker were ready and had no processor."
    )
    yield ""
    versions = {each.peer: each.runs[0]["version"] for each in results.found if each.runs}
    yield "- versions: " + "; ".join(f"{peer} {told}" for peer, told in versions.items())
    yield f"- load after: {results.about['load_after']}"
    yield f"- measured in {results.about['took_s']} s"
    for each in results.found:
        for line in _failure_lines(each):
            yield f"{line} ({each.work.name}, {each.table!r})"
