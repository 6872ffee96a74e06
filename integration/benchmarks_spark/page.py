"""The benchmark's figures in its page: `python -m integration.benchmarks_spark.page FILE`.

Owns: the kept figures and pictures in docs/spark/, and the part of docs/benchmarks-spark.md made
of them. Without a file it only makes these again. Must not know: how it was measured.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from integration.benchmarks.markdown import replaced, table
from integration.benchmarks_spark.figures import Part, read_parts
from integration.benchmarks_spark.picture import draw
from integration.benchmarks_spark.works import OURS, SPARK, TARGETS, WRONG_GUESS, Frame, Target

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "benchmarks-spark.md"
DATA = DOCS / "spark" / "benchmark.jsonl"
PICTURES = {name: DATA.with_name(f"{name}.svg") for name in ("curve", "growth")}
_WIDTH = 108
_FLAT_MB = 5.0
# Spark's own sink takes part there.
_COMPARED = "4.0.0"
_RIGHT_GUESS = dict(zip(WRONG_GUESS, OURS, strict=True))
_TITLES = {
    "long": "Many rows",
    "curve": "From no rows to a million",
    "growth": "From 2 partitions to 1,000",
    "memory": "Memory of a worker",
}
_SAYS = {
    "long": "Rows/s; in brackets, times Spark's own.",
    "curve": (
        "Milliseconds of a batch; in brackets, times Spark's own, and of a wrong guess times the"
        " right one."
    ),
    "growth": (
        "Milliseconds of a batch with a row in each partition; in brackets, for each partition."
    ),
    "memory": "",
}

Parts: TypeAlias = Mapping[tuple[str, str], Part]


def section(parts: Parts) -> str:
    """Return the part of the page that is made of figures."""
    return "\n".join(_lines(parts))


def lines_of(part: Part) -> Iterator[str]:
    """Yield a part in Markdown: when it was measured, and its figures."""
    yield ""
    yield from _paragraph(_about(part))
    yield ""
    if part.name == "memory":
        for mode, (before, after) in part.held.items():
            yield _memory(mode, before, after, part.about["rows"])
        return
    is_growth = part.name == "growth"
    heads = ["partitions" if is_growth else "a batch of", *part.writers]
    rows = []
    for frame in dict.fromkeys(each.frame for each in part.found):
        name = f"{frame.partitions:,}" if is_growth else frame.name
        rows.append((name, *(_cell(part, frame, writer) for writer in part.writers)))
    yield from table(heads, rows)
    for each in part.found:
        yield from (f"- {each.writer}, {each.frame.name}: {note}" for note in each.notes)


def _lines(parts: Parts) -> Iterator[str]:
    versions = sorted(
        {version for version, _ in parts}, key=lambda each: (each != _COMPARED, each)
    )
    yield "### Targets"
    yield ""
    yield from table(("PySpark " + _COMPARED, "found", ""), list(_targets(parts)))
    for name, title in _TITLES.items():
        if all(each != name for _, each in parts):
            continue
        yield ""
        yield f"### {title}"
        if _SAYS[name]:
            yield ""
            yield from _paragraph(_SAYS[name])
        if name in PICTURES and (_COMPARED, name) in parts:
            yield ""
            yield f"![{title}](spark/{PICTURES[name].name})"
        for version in versions:
            if (version, name) in parts:
                yield from lines_of(parts[version, name])


def _targets(parts: Parts) -> Iterator[tuple[str, str, str]]:
    for target in TARGETS:
        part = parts.get((_COMPARED, target.part))
        ratio = part.ratio(target) if part else None
        if ratio is None:
            yield _name(target), "not measured", ""
        else:
            yield _name(target), f"{ratio:.2f}", "met" if target.is_met(ratio) else "**missed**"


def _name(target: Target) -> str:
    what = "time at most" if target.is_of_time else "rows/s at least"
    return f"{target.frame.name}, {target.writer}: {what} {target.limit} times {target.beside}"


def _cell(part: Part, frame: Frame, writer: str) -> str:
    ms = part.ms(frame, writer)
    if ms is None:
        return ""
    if part.name == "growth":
        return f"{ms:,.0f} ({ms / frame.partitions:.1f})"
    other = _RIGHT_GUESS.get(writer, SPARK)
    beside = None if other == writer else part.ms(frame, other)
    if part.name == "long":
        ratio = "" if beside is None else f" ({beside / ms:.2f})"
        return f"{1000 * frame.rows / ms:,.0f}{ratio}"
    return f"{ms:,.0f}" + ("" if beside is None else f" ({ms / beside:.2f})")


def _memory(mode: str, before: float, after: float, rows: int) -> str:
    verdict = "met" if after - before <= _FLAT_MB else "missed"
    return (
        f"- {mode}: {before:.0f} MB after {rows // 10:,} rows, {after:.0f} MB after {rows:,} more;"
        f" at most {_FLAT_MB:.0f} MB more: {verdict}"
    )


def _about(part: Part) -> str:
    about = part.about
    changes = " and changes" if about["changed"] else ""
    return (
        f"PySpark {part.spark}, {about['began']} (UTC), commit {about['commit']}{changes},"
        f" {about['rounds']} rounds, Python {about['python']}, Kafka {about['kafka']},"
        f" {about['processors']} processors, a load of {about['load_before']} before and"
        f" {about['load_after']} after:"
    )


def _paragraph(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Keep the newest figures of each part, and write the pictures and the page again."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks_spark.page")
    parser.add_argument("file", nargs="?", type=Path, help="results/bench-spark.jsonl, to be kept")
    file = parser.parse_args().file
    kept = DATA.read_text("utf-8").splitlines() if DATA.exists() else []
    new = file.read_text("utf-8").splitlines() if file else []
    parts = read_parts([*kept, *new])
    DATA.write_text("".join(f"{part.to_line()}\n" for part in parts.values()), "utf-8")
    for name, path in PICTURES.items():
        if (_COMPARED, name) in parts:
            path.write_text(draw(parts[_COMPARED, name]), "utf-8")
    PAGE.write_text(replaced(PAGE.read_text("utf-8"), "figures", section(parts)), "utf-8")


if __name__ == "__main__":
    main()
