"""`txnproducer simulate`: run the core against modelled brokers, under seeded faults.

Owns: the options, the report, the exit code. Must not know: the content of a run, the distribution
of seeds over processors, the counting of branches.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import ModuleType

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from txnproducer._record.compression import codec_for
from txnproducer._record.implementation import IMPL
from txnproducer.cli._core_coverage import measure, require_coverage
from txnproducer.cli._missing_package import EXIT_FATAL
from txnproducer.cli._option_checks import NumberRange, not_empty
from txnproducer.cli._seed_pool import ENOUGH_FAILURES, SeedPool
from txnproducer.errors import InvalidConfigurationError
from txnproducer.sim import RunKind, SimOptions, run_seed
from txnproducer.sim.campaign import (
    SEEDS_THAT_SHOW_ALL,
    Noted,
    ResultsFile,
    SeedsToRun,
    Totals,
    fingerprint,
)

EXIT_VIOLATION = 1
_MOST_FAILURES_SHOWN = 20
_OPTIONS_OF_A_TRACE = ("seed", "trace", "kind", "stack")


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The first seed; default: the first of the results, else a random one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many, with those of the results.",
)
@click.option(
    "--requests",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Go on with further seeds until N requests were sent, with those of the results.",
)
@click.option("--trace", is_flag=True, help="Print every event of one seed, and its options.")
@click.option(
    "--kind",
    type=click.Choice([each.value for each in RunKind]),
    help="With --trace: make the run of a kind that few seeds draw by themselves.",
)
@click.option(
    "--stack",
    is_flag=True,
    help="Run the whole stack, from the calls to the bytes (needs TXNPRODUCER_IMPL=python).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Processes; default: one for each processor.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=not_empty("no file"),
    help="Append what was done to this file, and go on with what it leaves out.",
)
@click.option(
    "--coverage",
    "coverage_seeds",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also count the core's branches that the first N seeds reach (slow; needs coverage).",
)
@click.option(
    "--least-branches",
    type=NumberRange(0, 100),
    default=0.0,
    metavar="PERCENT",
    help="Fail if --coverage finds that fewer branches are reached.",
)
@click.pass_context
def command(
    context: click.Context,
    seed: int | None,
    seeds: int,
    requests: int,
    trace: bool,
    kind: str | None,
    stack: bool,
    jobs: int,
    results: Path | None,
    coverage_seeds: int,
    least_branches: float,
) -> None:
    """Run the producer's core against modelled brokers in virtual time, under seeded faults.

    With --stack the whole producer runs so: the calls, the I/O thread, the connections.

    A seed draws the cluster, the producers, what they do and all that goes wrong; the same seed is
    the same run. Exits with 1 if anything was not exactly once, or if in a thousand seeds or more
    one of the faults never took effect.
    """
    if stack:
        _refuse_stack_with(kind, coverage_seeds)
    if trace:
        _refuse_options_without_effect(context)
        first = _random_seed() if seed is None else seed
        show = _trace_stack if stack else partial(_trace, kind=RunKind(kind) if kind else None)
        context.exit(show(first))
    if kind is not None:
        raise click.UsageError("--kind needs --trace")
    if least_branches and not coverage_seeds:
        raise click.UsageError("--least-branches needs --coverage")
    if coverage_seeds:
        require_coverage()
    version = _stack().stack_fingerprint() if stack else fingerprint()
    file = None if results is None else ResultsFile(results, version)
    noted = Noted() if file is None else file.read()
    if noted.is_of_other_kind:
        raise click.UsageError(
            f"--results: {results} is no file of results: it has no line of `simulate`. Name"
            " another file"
        )
    first = min(noted.seeds, default=_random_seed()) if seed is None else seed
    # First, so that a run that is interrupted, or fails, can be repeated by its seed.
    click.echo(f"from seed {first}, version {version}", err=True)
    _report_skipped_lines(noted)
    totals = noted.totals
    to_run = SeedsToRun(first, noted.seeds)
    run = _stack().run_stack_seeds if stack else None
    pool = SeedPool(to_run, totals, file, seeds=seeds, requests=requests, jobs=jobs, run=run)
    # With --stack: without it the same seed is another run, of the core.
    replay = "simulate --stack --trace" if stack else "simulate --trace"
    _run_and_report(pool, totals, replay)
    is_good = _judge(totals, _stack().KINDS if stack else None)
    if coverage_seeds:
        # Not `and`: the branches are counted, and shown, even if a seed has failed.
        is_good &= _reaches_enough(first, coverage_seeds, least_branches, jobs)
    context.exit(0 if is_good else EXIT_VIOLATION)


def _random_seed() -> int:
    return random.SystemRandom().randrange(1 << 40)


def _refuse_options_without_effect(context: click.Context) -> None:
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _OPTIONS_OF_A_TRACE:
            raise click.UsageError(f"--trace shows one seed: leave out {option.opts[0]}")


def _stack() -> ModuleType:
    # Imported late: it imports the producer itself, which the simulator of the core does not need.
    from txnproducer.sim.stack import campaign

    return campaign


def _refuse_stack_with(kind: str | None, coverage_seeds: int) -> None:
    if IMPL != "python":
        raise click.UsageError(
            "--stack runs the parts in Python: set the environment variable"
            " TXNPRODUCER_IMPL=python"
        )
    if kind is not None or coverage_seeds:
        raise click.UsageError("--stack has no kinds of runs, and does not count branches")
    _require_codecs()


class _MissingCodecError(click.ClickException):
    exit_code = EXIT_FATAL


def _require_codecs() -> None:
    # Imported late, as above.
    from txnproducer.sim.stack.options import CODECS

    try:
        for name in CODECS:
            codec_for(name)
    except InvalidConfigurationError as error:
        # Not drawn from those that are installed: a seed would be another run on each machine.
        raise _MissingCodecError(
            f"--stack draws compression_type among {', '.join(CODECS)}: {error}"
        ) from error


class _TraceLines:
    """The lines of a trace, on the standard output.

    An error of the output ends the lines and not the run, which would take it for a violation.
    """

    def __init__(self) -> None:
        self._failure: OSError | None = None

    def __call__(self, line: str) -> None:
        if self._failure is None:
            try:
                click.echo(line)
            except OSError as error:
                self._failure = error

    def check(self) -> None:
        """Raise the error of the output, if there was one."""
        if self._failure is not None:
            raise self._failure


def _trace_stack(seed: int) -> int:
    from txnproducer.sim.stack.options import StackOptions
    from txnproducer.sim.stack.run import run_stack_seed

    click.echo(f"options of seed {seed}:\n{StackOptions.draw(seed)}")
    lines = _TraceLines()
    code = _show_violations(run_stack_seed(seed, lines).violations)
    lines.check()
    return code


def _trace(seed: int, kind: RunKind | None) -> int:
    """Print a run. Return the exit code."""
    click.echo(f"options of seed {seed}:\n{SimOptions.draw(seed, kind)}")
    lines = _TraceLines()
    code = _show_violations(run_seed(seed, lines, kind=kind).violations)
    lines.check()
    return code


def _show_violations(violations: Iterable[tuple[str, str]]) -> int:
    code = 0
    for checker, text in violations:
        click.echo(f"VIOLATION ({checker}): {text}", err=True)
        code = EXIT_VIOLATION
    return code


# --- many seeds ---------------------------------------------------------------------------------


def _run_and_report(pool: SeedPool, totals: Totals, replay: str) -> None:
    """Run the seeds, and report the finished ones even after an interruption.

    Args:
        pool: runs the seeds.
        totals: their results.
        replay: the command that shows a seed again.
    """
    seeds, requests = totals.seeds, totals.requests
    began = time.monotonic()
    try:
        pool.run()
    except KeyboardInterrupt:
        click.echo("interrupted; until then:", err=True)
        raise
    finally:
        seconds = time.monotonic() - began
        _report(totals)
        work = _work(totals.seeds - seeds, totals.requests - requests, seconds)
        click.echo(f"this time {work}")
        if seeds:
            work = _work(totals.seeds, totals.requests, totals.seconds)
            click.echo(f"in all sittings {work} of one process")
        _report_failures(totals, replay)


def _report_skipped_lines(noted: Noted) -> None:
    if noted.other_versions:
        click.echo(f"lines of another version, left out: {noted.other_versions:,}", err=True)
    if noted.unreadable:
        click.echo(f"torn lines, left out: {noted.unreadable:,}", err=True)


def _judge(totals: Totals, kinds: Iterable[str] | None) -> bool:
    """Return whether all was well. Print the faults that no seed has tried."""
    # Rare faults take effect in few seeds, so a short run proves nothing by their absence.
    missing: list[str] = []
    if totals.seeds >= SEEDS_THAT_SHOW_ALL:
        missing = totals.kinds_without_effect
        if kinds is not None:
            missing = [kind for kind in kinds if not totals.faults[kind]]
    if missing:
        click.echo(f"never took effect: {', '.join(missing)}", err=True)
    return not totals.failures and not missing


def _reaches_enough(first: int, count: int, least_percent: float, jobs: int) -> bool:
    click.echo(f"counting the core's branches that {count:,} seeds reach", err=True)
    reached = measure(first, count, jobs)
    click.echo(f"{count:,} seeds reach of the core {reached.describe()}")
    if reached.branches_percent >= least_percent:
        return True
    percent = reached.branches_percent
    click.echo(f"{percent:.2f} % of the branches, not {least_percent:g} % as asked for", err=True)
    return False


# --- the report ---------------------------------------------------------------------------------


def _report(totals: Totals) -> None:
    table = Table("fault", "took effect", title="faults")
    for name, number in sorted(totals.faults.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{number:,}")
    Console().print(table)
    outcomes = ", ".join(
        f"{number:,} {name}" for name, number in totals.transactions.most_common()
    )
    click.echo(
        f"{totals.seeds:,} seeds, {totals.requests:,} requests, "
        f"{totals.virtual_ms / 3_600_000:,.1f} virtual hours; transactions: {outcomes}"
    )


def _work(seeds: int, requests: int, seconds: float) -> str:
    # A sitting that had nothing left to run takes no time that could be divided by.
    some = max(seconds, 1e-3)
    return (
        f"{seeds:,} seeds and {requests:,} requests in {seconds:,.0f} s:"
        f" {seeds / some:,.1f} seeds/s, {requests / some:,.0f} requests/s"
    )


def _report_failures(totals: Totals, replay: str) -> None:
    if not totals.failures:
        click.echo("no violation" if totals.seeds else "no seed was finished")
        return
    click.echo(f"{len(totals.failures):,} seeds with a violation:", err=True)
    for seed, checker, text in totals.failures[:_MOST_FAILURES_SHOWN]:
        click.echo(f"  txnproducer {replay} --seed {seed}   # {checker}: {text}", err=True)
    if len(totals.failures) >= ENOUGH_FAILURES:
        click.echo("so many that no more seeds were run", err=True)
