"""Draw the results: one SVG file for each question that has results.

The only user of matplotlib, which nothing else here needs. Must not know: how it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import matplotlib as mpl

from integration.benchmarks.results import Result, Results, percentile
from integration.benchmarks.settings import ABOUT, PEERS
from integration.benchmarks.works import HEADLINES, HUNDRED, LONG, LZ4, MEMORY, WORKS, Work

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "txnproducer"  # the same figures give the same file
mpl.rcParams["font.size"] = 9

from matplotlib import pyplot as plt  # noqa: E402 - after the choice of how it draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any

Draw: TypeAlias = Callable[[Axes, Results], bool]
# Clients have colors; the limits are grey.
_COLORS = dict(zip(PEERS, (*plt.get_cmap("tab10").colors[:9], "0.3", "0.5", "0.7"), strict=True))
_MB = 1e6


def draw(results: Results, folder: Path) -> Iterator[Path]:
    """Draw all plots that have results, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in _PLOTS.items():
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        if plot(axes, results):
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            yield path
        plt.close(figure)


def _bars(table: str, *, are_long: bool) -> Draw:
    """Return a function that draws a group of bars for each of the works that all peers do."""

    def plot(axes: Axes, results: Results) -> bool:
        works = [work for work in WORKS if work.name in HEADLINES and work.is_long == are_long]
        groups = {work.name: results.of(table, work.name) for work in works}
        groups = {name: found for name, found in groups.items() if found}
        _grouped(axes, groups)
        axes.set_ylabel("records/s" if are_long else "transactions/s")
        axes.set_title(ABOUT[table])
        return bool(groups)

    return plot


def _grouped(axes: Axes, groups: dict[str, list[Result]]) -> None:
    peers = [peer for peer in PEERS if any(r.peer == peer for g in groups.values() for r in g)]
    width = 0.8 / max(1, len(peers))
    for at, peer in enumerate(peers):
        for group, found in enumerate(groups.values()):
            for each in (result for result in found if result.peer == peer and result.runs):
                error = [[each.rate - min(each.rates)], [max(each.rates) - each.rate]]
                place = group + (at - (len(peers) - 1) / 2) * width
                axes.bar(place, each.rate, width, yerr=error, color=_COLORS[peer])
        axes.bar(0, 0, color=_COLORS[peer], label=peer)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    if groups:
        axes.legend(fontsize=7)


def _codecs(axes: Axes, results: Results) -> bool:
    works = [work for work in WORKS if work.name.startswith("codec ") or work.name == LZ4]
    groups = {work.codec: results.of("best", work.name) for work in works}
    groups = {codec: found for codec, found in groups.items() if found}
    _grouped(axes, groups)
    axes.set_ylabel("records/s of 1 KB")
    return len(groups) > 1


def _lines(
    is_asked: Callable[[Work], bool],
    x: Callable[[Result], float],
    y: Callable[[Result], float],
    labels: tuple[str, str],
    *,
    is_y_log: bool = True,
) -> Draw:
    """Return a function that draws a line for each peer over some works."""

    def plot(axes: Axes, results: Results) -> bool:
        found = [each for each in results.found if each.runs and is_asked(each.work)]
        if any(each.table != "equal" for each in found):
            found = [each for each in found if each.table != "equal"]
        if len({x(each) for each in found}) < 2:
            return False
        for peer in PEERS:
            points = sorted((x(each), y(each)) for each in found if each.peer == peer)
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, marker="o", label=peer, color=_COLORS[peer])
        axes.set_xscale("log")
        if is_y_log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
        return True

    return plot


def _records_per_s(result: Result) -> float:
    return result.rate if result.work.is_long else result.rate * result.work.records


def _mb_per_s(result: Result) -> float:
    # Of large records few make a transaction, so that its transactions are counted.
    return _records_per_s(result) * result.work.value_bytes / _MB


def _commits(axes: Axes, results: Results) -> bool:
    found = [each for each in results.of("short", HUNDRED) if each.runs]
    for each in found:
        commits = sorted(ms for run in each.runs for ms in run["commits"])
        shares = [percent / 10 for percent in range(1, 1_001)]
        times = [percentile(commits, share) for share in shares]
        axes.plot(times, shares, label=each.peer, color=_COLORS[each.peer])
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds of a commit, 100 records per transaction")
    axes.set_ylabel("% of commits done")
    axes.grid(visible=True, alpha=0.3)
    if found:
        axes.legend(fontsize=7)
    return bool(found)


def _memory(axes: Axes, results: Results) -> bool:
    found = results.of("equal", MEMORY)
    found = [each for each in found if each.runs]
    for each in found:
        axes.plot(each.runs[0]["peaks"], marker="o", label=each.peer, color=_COLORS[each.peer])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("transactions of a million records of 100 B")
    axes.set_ylabel("resident MB of the process at most")
    axes.grid(visible=True, alpha=0.3)
    if found:
        axes.legend(fontsize=7)
    return bool(found)


_PLOTS: dict[str, Draw] = {
    "long-equal": _bars("equal", are_long=True),
    "long-best": _bars("best", are_long=True),
    "short": _bars("short", are_long=False),
    "sizes": _lines(
        lambda work: work.name.startswith("size ") or work.name == LONG,
        lambda each: each.work.value_bytes,
        _mb_per_s,
        ("bytes of a record", "MB/s"),
    ),
    "codecs": _codecs,
    "transactions": _lines(
        lambda work: work.name.endswith("per txn") and work.codec == "none",
        lambda each: each.work.records,
        _records_per_s,
        ("records of a transaction", "records/s"),
    ),
    "partitions": _lines(
        lambda work: work.name.endswith(" partitions"),
        lambda each: each.work.partitions,
        lambda each: 1e6 / each.rate,
        ("partitions", "µs for a record"),
        is_y_log=False,
    ),
    "threads": _lines(
        lambda work: work.name.endswith(" sending threads"),
        lambda each: each.work.threads,
        _records_per_s,
        ("threads", "records/s"),
        is_y_log=False,
    ),
    "commits": _commits,
    "memory": _memory,
}
