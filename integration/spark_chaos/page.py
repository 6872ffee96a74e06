"""`python -m integration.spark_chaos.page`: write the campaign's table into docs/evidence.md.

Between two marks in the page stands what the results file says of one commit, by default the last
one in it. Nothing else of the page is touched.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from integration.benchmarks.markdown import table
from integration.spark_chaos import kafka_input
from integration.spark_chaos.cluster import ROOT
from integration.spark_chaos.faults import FAULTS, Fault, writers_of
from integration.spark_chaos.kafka_input import SPARK_VERSION
from integration.spark_chaos.results import RESULTS, Result, load

PAGE = ROOT / "docs" / "evidence.md"
BEGIN = "<!-- made by: python -m integration.spark_chaos.page -->"
END = "<!-- end of what is made -->"
_HEADS = {
    "partition": '"partition"',
    "batch": '"batch"',
    "prepared": '"prepared"',
    "source": "data source",
    "plain": "no sink",
}


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Sum up the results of the runs of one commit."""
    ours = [result for result in results if result.writer != "plain"]
    if not ours:
        raise ValueError("no runs of the sink: run the campaign first (make chaos-spark)")
    rows = sum(result.rows for result in ours)
    passes = sum(result.passes for result in ours)
    told = Counter(result.outcome for result in ours)
    yield (
        f"At commit {ours[0].commit}: {len(ours)} runs of the sink, {told['exact']} exact,"
        f" {told['refused']} refused as they had to be, {told['wrong']} wrong,"
        f" {told['failed']} failed; {rows:,} rows. Readers read the topics of"
        f' "batch" {passes:,} times meanwhile.'
    )
    for source in dict.fromkeys(result.input for result in results):
        found = [result for result in results if result.input == source]
        yield ""
        if kafka_input.is_input(source):
            limit = "without" if source == kafka_input.UNLIMITED else "with"
            yield (
                f"With Spark's own Kafka source as the input, on Spark {SPARK_VERSION},"
                f" {limit} `maxOffsetsPerTrigger`:"
            )
            yield ""
        heads = {name: _HEADS[name] for name in writers_of(source)}
        faults = [fault for fault in FAULTS if source in fault.inputs]
        cells = [[each.text, *(_cell(each, name, found) for name in heads)] for each in faults]
        yield from table(("fault", *heads.values()), cells)


def _cell(fault: Fault, writer: str, every: Sequence[Result]) -> str:
    if writer not in fault.writers:
        return ""
    results = [each for each in every if (each.fault, each.writer) == (fault.name, writer)]
    if not results:
        return "not run"
    if results[0].writer == "plain":
        return _plain(results)
    told = Counter(result.outcome for result in results)
    refusals = sorted({result.text for result in results if result.outcome == "refused"})
    cell = ", ".join(f"{told[name]} {name}" for name in sorted(told))
    return f"{cell} (`{'`, `'.join(refusals)}`)" if refusals else cell


def _plain(results: Sequence[Result]) -> str:
    runs = [result for result in results if result.outcome != "failed"]
    if not runs:
        return "failed"
    lost, doubled = (sum(getattr(each, name) for each in runs) for name in ("lost", "doubled"))
    if not lost and not doubled:
        return f"{len(runs)} exact"
    rows = sum(result.rows for result in runs)
    return f"{len(runs)} runs: of {rows:,} rows {lost:,} lost, {doubled:,} doubled"


def newest(results: Sequence[Result]) -> list[Result]:
    """Return the last result of each run: one that failed may have been played again."""
    return list({result.name: result for result in results}.values())


def put(page: str, made: Sequence[str]) -> str:
    """Return the page with the generated part between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no marks {BEGIN!r} and {END!r}")
    return "\n".join((before + BEGIN, "", *made, "", END + after))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.spark_chaos.page", description=__doc__
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="default: that of the last run")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    results = load(arguments.results)
    if not results:
        print(f"{arguments.results} has no runs", file=sys.stderr)
        return 1
    commit = arguments.commit or results[-1].commit
    chosen = newest([result for result in results if result.commit == commit])
    made = put(arguments.page.read_text("utf-8"), list(lines(chosen)))
    arguments.page.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
