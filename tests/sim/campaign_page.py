"""The campaigns in the pages of the simulators: `python -m tests.sim.campaign_page RESULTS`.

Why it exists: a campaign takes hours, perhaps on several machines, and its results file has
thousands of lines. Their sums are kept in docs/simulator/, one line for each stretch of seeds
without a gap; that file can be copied to where `--results` looks, and gone on from.
Owns: these files, of the core and of the whole stack, and the parts of the pages that are made of
them.
Must not know: how seeds are run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sim.simulator_page import PAGE, replaced
from txnproducer.sim.campaign import Noted, ResultsFile, Totals

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Kept:
    """The results that are kept of a campaign, and its page."""

    page: Path
    file: Path

    def results(self) -> tuple[str, Noted]:
        """Return the kept results, after the version that they are of."""
        first: dict[str, Any] = json.loads(self.file.read_text("utf-8").splitlines()[0])
        return first["version"], ResultsFile(self.file, first["version"]).read()


CORE = Kept(PAGE, PAGE.parent / "simulator" / "campaign.jsonl")
STACK = Kept(PAGE.with_name("simulator-stack.md"), CORE.file.with_name("stack.jsonl"))


def joined(lines: Iterable[str]) -> list[str]:
    """Return the lines of one version's results, with neighbours joined and no seed twice."""
    chunks = sorted(map(json.loads, lines), key=lambda each: int(each["first_seed"]))
    stretches: list[tuple[int, int, Totals]] = []
    versions = {each["version"] for each in chunks}
    if len(versions) > 1:
        raise ValueError(f"results of several versions: {sorted(versions)}")
    for each in chunks:
        first, end = each["first_seed"], each["first_seed"] + each["seed_count"]
        if not stretches or first > stretches[-1][1]:
            stretches.append((first, end, Totals.from_json(each)))
        elif first == stretches[-1][1]:
            begin, _, totals = stretches.pop()
            totals.add(Totals.from_json(each))
            stretches.append((begin, end, totals))
        # Seeds that begin within a stretch were run twice, by two commands at the same time.
    return [
        json.dumps(
            {"version": version, "first_seed": begin, "seed_count": end - begin} | totals.to_json()
        )
        for version in versions
        for begin, end, totals in stretches
    ]


def campaign_table(version: str, noted: Noted) -> str:
    """Return the results of a campaign, as tables."""
    totals = noted.totals
    of_each = ", ".join(f"{count:,} {what}" for what, count in sorted(totals.transactions.items()))
    rows = [
        ("violations", f"**{len(totals.failures)}**"),
        ("version", f"`{version}`"),
        ("seeds", f"{totals.seeds:,}, from {min(noted.seeds):,} to {max(noted.seeds):,}"),
        ("requests", f"{totals.requests:,}"),
        ("virtual time", f"{totals.virtual_ms / _HOUR_MS:,.1f} hours"),
        ("transactions", of_each),
        ("time of the workers", f"{totals.seconds / 3600:,.1f} hours"),
        ("speed of a worker, beside whatever else ran", _speed(totals)),
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    lines += ["", "How often each fault took effect:", "", "| fault | times |", "|---|---|"]
    lines += [f"| {name} | {count:,} |" for name, count in totals.faults.most_common()]
    return "\n".join(lines)


def _speed(totals: Totals) -> str:
    seconds = max(totals.seconds, 1)
    return f"{totals.requests / seconds:,.0f} requests/s, {totals.seeds / seconds:.1f} seeds/s"


def main() -> None:
    """Keep the results of the files named, and write the pages again."""
    lines = [line for name in sys.argv[1:] for line in Path(name).read_text("utf-8").splitlines()]
    if lines:
        newest: str = json.loads(lines[-1])["version"]
        lines = joined(line for line in lines if json.loads(line)["version"] == newest)
        kept = STACK if newest.startswith("stack-") else CORE
        kept.file.write_text("\n".join(lines) + "\n", "utf-8")
    for each in (CORE, STACK):
        page = each.page.read_text("utf-8")
        table = campaign_table(*each.results())
        each.page.write_text(replaced(page, "campaign", table), "utf-8")


if __name__ == "__main__":
    main()
