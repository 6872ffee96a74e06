"""`txnproducer simulate`: run the core against modelled brokers, under seeded faults.

Owns: spreading seeds over processors, the report, the exit code. Must not know: what a run does.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from txnproducer.sim import SimOptions, run_seed
from txnproducer.sim.campaign import (
    SEEDS_THAT_SHOW_ALL,
    ResultsFile,
    Totals,
    fingerprint,
    run_seeds,
)

EXIT_VIOLATION = 1
_CHUNK = 50
_MOST_FAILURES_SHOWN = 20


@click.command()
@click.option("--seed", type=click.IntRange(0), help="The first seed; default: a random one.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option(
    "--requests",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Go on with further seeds until N requests were sent.",
)
@click.option("--trace", is_flag=True, help="Print every event of one seed, and its options.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Processes; default: one for each processor.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append what was done to this file, and go on where it stopped.",
)
@click.option(
    "--coverage",
    "coverage_seeds",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also count the core's branches that N of the seeds reach (slow; needs coverage).",
)
def command(
    seed: int | None,
    seeds: int,
    requests: int,
    trace: bool,
    jobs: int,
    results: Path | None,
    coverage_seeds: int,
) -> None:
    """Run the producer's core against modelled brokers in virtual time, under seeded faults.

    A seed draws the cluster, the producers, what they do and all that goes wrong; the same seed is
    the same run. Exits with 1 if anything was not exactly once.
    """
    first = random.SystemRandom().randrange(1 << 40) if seed is None else seed
    if trace:
        if seeds > 1 or requests:
            raise click.UsageError("--trace shows one seed: leave out --seeds and --requests")
        _trace(first)
        return
    click.echo(f"from seed {first}, version {fingerprint()}", err=True)
    began = time.monotonic()
    totals, earlier = _run(first, seeds, requests, jobs, results)
    _report(totals, earlier, time.monotonic() - began)
    if coverage_seeds:
        click.echo(_branches_reached(first, coverage_seeds))
    missing = totals.kinds_without_effect if totals.seeds >= SEEDS_THAT_SHOW_ALL else []
    if missing:
        click.echo(f"never took effect: {', '.join(missing)}", err=True)
    if totals.failures or missing:
        click.get_current_context().exit(EXIT_VIOLATION)


def _trace(seed: int) -> None:
    click.echo(f"options of seed {seed}:\n{SimOptions.draw(seed)}")
    result = run_seed(seed, click.echo)
    for checker, text in result.violations:
        click.echo(f"VIOLATION ({checker}): {text}", err=True)
    if result.violations:
        click.get_current_context().exit(EXIT_VIOLATION)


# --- many seeds ---------------------------------------------------------------------------------


def _run(
    first: int, seeds: int, requests: int, jobs: int, results: Path | None
) -> tuple[Totals, Totals]:
    """Run seeds until there are enough; return the sum, and what of it was done before."""
    file = None if results is None else ResultsFile(results, fingerprint())
    totals, done = (Totals(), set()) if file is None else file.read()
    earlier = Totals()
    earlier.add(totals)
    starts = (start for start in count(first, _CHUNK) if start not in done)
    running: dict[Future[Totals], int] = {}

    def wants_more() -> bool:
        planned = totals.seeds + _CHUNK * len(running)
        usual = totals.requests // totals.seeds if totals.seeds else 0
        sent = totals.requests + usual * _CHUNK * len(running)
        return planned < seeds or sent < requests

    with ProcessPoolExecutor(jobs) as pool, _progress() as progress:
        task = progress.add_task("", total=None)
        while True:
            while len(running) < jobs and wants_more():
                start = next(starts)
                size = _CHUNK if requests else min(_CHUNK, seeds)
                running[pool.submit(run_seeds, range(start, start + size))] = start
            if not running:
                return totals, earlier
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                start, chunk = running.pop(future), future.result()
                totals.add(chunk)
                if file is not None:
                    file.append(start, chunk)
            share = min(totals.seeds / seeds, totals.requests / requests if requests else 1.0)
            text = f"{totals.seeds:,} seeds, {totals.requests:,} requests"
            progress.update(task, total=1.0, completed=share, description=text)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


# --- the report ---------------------------------------------------------------------------------


def _report(totals: Totals, earlier: Totals, seconds: float) -> None:
    fresh = totals.requests - earlier.requests, totals.seeds - earlier.seeds
    table = Table("fault", "took effect", title="faults")
    for name, number in sorted(totals.faults.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{number:,}")
    console = Console()
    console.print(table)
    outcomes = ", ".join(f"{number:,} {name}" for name, number in totals.transactions.items())
    click.echo(
        f"{totals.seeds:,} seeds, {totals.requests:,} requests, "
        f"{totals.virtual_ms / 3_600_000:,.1f} virtual hours; transactions: {outcomes}"
    )
    click.echo(
        f"this time {fresh[1]:,} seeds and {fresh[0]:,} requests in {seconds:,.0f} s:"
        f" {fresh[1] / seconds:,.1f} seeds/s, {fresh[0] / seconds:,.0f} requests/s"
    )
    if not totals.failures:
        click.echo("no violation")
        return
    click.echo(f"{len(totals.failures)} seeds with a violation:", err=True)
    for seed, checker, text in totals.failures[:_MOST_FAILURES_SHOWN]:
        click.echo(f"  txnproducer simulate --trace --seed {seed}   # {checker}: {text}", err=True)


def _branches_reached(first: int, count: int) -> str:
    """Run seeds again in an interpreter of their own, counting the core's branches they reach.

    Lines that run when a module is imported count as well, so that it has to be a new interpreter.
    """
    core = Path(__file__).parent.parent / "_core"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "seeds.py"
        script.write_text(
            "from txnproducer.sim.campaign import run_seeds\n"
            f"run_seeds(range({first}, {first + count}))\n",
            encoding="utf-8",
        )
        # A configuration of its own: whatever stands in the working directory is another's.
        settings = Path(folder) / "coverage.ini"
        settings.write_text(
            f"[run]\nbranch = true\nsource = {core}\ndata_file = {folder}/data\n"
            "[report]\nexclude_also =\n    if TYPE_CHECKING\n    ^\\s*\\.\\.\\.$\n",
            encoding="utf-8",
        )
        tool = [sys.executable, "-m", "coverage"]
        options = ["--rcfile", str(settings)]
        _run_tool([*tool, "run", *options, str(script)])
        percent = _run_tool([*tool, "report", *options, "--format=total", "--precision=1"])
    return f"{count} seeds reach {percent.strip()} % of the core's lines and branches"


def _run_tool(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"--coverage failed: {done.stderr.strip()}")
    return done.stdout
