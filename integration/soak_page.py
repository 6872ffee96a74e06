"""The soak in the documentation: `python -m integration.soak_page results/soak.json`.

Why it exists: a soak's figures are kept beside the page about it, and each sentence of the page is
made of them.
Owns: the kept data and the picture in docs/soak/, and the part of docs/evidence.md that is made of
them. Without a file it only makes these again. Must not know: how a soak is run.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from integration.benchmarks.markdown import replaced, table
from integration.soak_picture import draw
from integration.soak_samples import (
    ALLOWED,
    Sample,
    growth,
    quarters,
    summed_up,
    thinned,
    trend_mb_per_hour,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "evidence.md"
DATA = DOCS / "soak" / "soak.json"
PICTURE = DATA.with_suffix(".svg")
_WIDTH = 108
# Of the samples that are kept, each a line of about 50 bytes.
_KEPT = 900
# The verbs of the kinds in `chaos.faults`.
_STRUCK = {"kill": "killed", "pause": "paused"}
_RANKS = ("first", "second", "third", "last")

Told = Mapping[str, Any]


def kept(told: Told) -> dict[str, Any]:
    """Return the kept part of a soak: its figures by all samples, and fewer samples."""
    samples = [Sample(*each) for each in told["samples"]]
    figures = {
        "quarters": [summed_up(part) for part in quarters(samples)],
        "trend_mb_per_hour": round(trend_mb_per_hour(samples), 2),
        "grown": growth(samples),
        "taken": len(samples),
    }
    return {**told, **figures, "samples": list(thinned(samples, _KEPT))}


def written(told: Told) -> str:
    """Return the kept part as JSON, one sample a line."""
    head = json.dumps({**told, "samples": []}, indent=1)
    lines = ",\n".join(f"  {json.dumps(each)}" for each in told["samples"])
    return head.replace('"samples": []', f'"samples": [\n{lines}\n ]') + "\n"


def section(told: Told) -> str:
    """Return the text about a soak, made of its kept part."""
    return "\n".join(_lines(told))


def _lines(told: Told) -> Iterator[str]:
    yield from _paragraph(f"{_run(told)} {_outcomes(told)} {_verdict(told)}")
    picture = "Transactions, memory, threads and descriptors over the minutes of the soak"
    yield from ("", f"![{picture}](soak/{PICTURE.name})", "")
    yield from _quarters(told)
    yield ""
    yield from _paragraph(_growth(told))


def _paragraph(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _run(told: Told) -> str:
    about = told["about"]
    minutes = told["quarters"][-1]["until_s"] / 60
    changes = " and changes" if about["changed"] else ""
    faults = ", ".join(_times(kind, count) for kind, count in sorted(told["faults"].items()))
    return (
        f"The soak of {about['began']} (UTC) ran for {minutes:.0f} minutes with version"
        f" {about['version']}, commit {about['commit']}{changes}, {about['implementation']} parts,"
        f" Python {about['python']}, Kafka {about['kafka']}, on {about['processors']} processors"
        f" (load {about['load_before']} at the begin, {about['load_after']} at the end)."
        f" Four services wrote over TLS to three brokers, with logins by SCRAM that are valid for"
        f" a minute: {told['samples'][-1][-1]:,} times a login was renewed on a living connection."
        f" {_made(told)} Faults that took effect: {faults or 'none'}."
    )


def _made(told: Told) -> str:
    """Return how many producers were made, in words."""
    made = told["producers"]
    most = max(made, key=made.get)
    return f"{sum(made.values()):,} producers were made, {made[most]:,} of them by '{most}'."


def _times(kind: str, count: int) -> str:
    """Return a fault and how often it took effect, in words."""
    often = {1: "once", 2: "twice"}.get(count, f"{count} times")
    verb, whom = kind.split()
    return f"a {whom} was {_STRUCK[verb]} {often}"


def _outcomes(told: Told) -> str:
    total: Counter[str] = Counter()
    for each in told["outcomes"].values():
        total.update(each)
    shares = ", ".join(f"{count:,} {outcome}" for outcome, count in total.most_common())
    of_each = ", ".join(
        f"{sum(each.values()):,} of '{name}'" for name, each in told["outcomes"].items()
    )
    causes = [
        f"{count} times `{cause}`"
        for each in told["new_producers"].values()
        for cause, count in each.items()
    ]
    new = (
        f"Producers were replaced after an error: {'; '.join(causes)}."
        if causes
        else "No producer was replaced after an error."
    )
    return f"Of {total.total():,} transactions ({of_each}) the outcomes are: {shares}. {new}"


def _verdict(told: Told) -> str:
    # What grew is told in the last paragraph.
    wrong = [each for each in told["wrong"] if each not in told["grown"]]
    if not wrong:
        return (
            "All records were read back: nothing was lost, doubled, torn or out of order, and no"
            " call hung."
        )
    return f"**Wrong**: {'; '.join(wrong)}."


def _quarters(told: Told) -> Iterator[str]:
    heads = (
        "quarter",
        "memory, median",
        "memory, most",
        "threads, median",
        "threads, most",
        "descriptors, median",
        "descriptors, most",
        "transactions",
        "median of the medians",
        "longest",
    )
    rows = [
        (
            rank,
            f"{part['memory_mb']:.1f} MB",
            f"{part['memory_mb_most']:.1f} MB",
            f"{part['threads']:g}",
            f"{part['threads_most']}",
            f"{part['descriptors']:g}",
            f"{part['descriptors_most']}",
            f"{part['transactions']:,}",
            "-" if part["median_ms"] is None else f"{part['median_ms']:.0f} ms",
            f"{part['longest_ms'] / 1000:.1f} s",
        )
        for rank, part in zip(_RANKS, told["quarters"], strict=True)
    ]
    yield from table(heads, rows)


def _growth(told: Told) -> str:
    _, early, third, late = told["quarters"]
    change = late["memory_mb"] - early["memory_mb"]
    share = 100 * change / early["memory_mb"]
    # From the middle of one quarter to the middle of the other.
    between = early["transactions"] / 2 + third["transactions"] + late["transactions"] / 2
    of_each = 1e6 * change / between if between else 0.0
    limits = ", ".join(
        f"{name.removesuffix('_mb')} by {round((allowed - 1) * 100)} %"
        for name, allowed in ALLOWED.items()
    )
    verdict = (
        f"**Grown**: {'; '.join(told['grown'])}."
        if told["grown"]
        else "By this nothing has grown."
    )
    return (
        f"Memory is that of the whole process, with the soak's own {told['taken']:,} samples in a"
        " file and one byte for each transaction. From the second quarter to the last its median"
        f" changed by {change:+.1f} MB ({share:+.1f} %), which is {of_each:+.0f} bytes for each"
        " transaction between. A line through the last three quarters has a slope of"
        f" {told['trend_mb_per_hour']:+.1f} MB an hour. Threads changed by"
        f" {late['threads'] - early['threads']:+g}, descriptors by"
        f" {late['descriptors'] - early['descriptors']:+g}. The soak fails if the median of the"
        f" last quarter exceeds that of the second one by more than these shares: {limits}."
        f" {verdict} Each sample is of two seconds. The table's latency is the median of the"
        " samples' medians, and the longest is of all transactions. Every second"
        " sample is in [soak.json](soak/soak.json)."
    )


def main() -> None:
    """Keep a result, and write the picture and the page again."""
    parser = argparse.ArgumentParser(prog="python -m integration.soak_page", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="results/soak.json, to be kept")
    file = parser.parse_args().file
    if file is not None:
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(written(kept(json.loads(file.read_text("utf-8")))), "utf-8")
    told = json.loads(DATA.read_text("utf-8"))
    PICTURE.write_text(draw([Sample(*each) for each in told["samples"]]), "utf-8")
    PAGE.write_text(replaced(PAGE.read_text("utf-8"), "soak", section(told)), "utf-8")


if __name__ == "__main__":
    main()
