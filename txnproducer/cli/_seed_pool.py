"""A pool of processes that run seeds, gather the results, and show the progress.

Why it exists: a campaign runs for hours, may be interrupted, and must lose nothing by that.
Owns: the worker processes, the size of a chunk, progress on stderr. Must not know: the content of
a run or of the report.

Rules:
* The results of a chunk are in the file before they are in the sum.
* No worker outlives the command, however that ends.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from txnproducer.sim.campaign import ResultsFile, SeedsToRun, Totals, run_seeds

# The time of one processor for a chunk: an interruption loses no more than that.
_CHUNK_S = 2.0
_LONGEST_CHUNK = 20
# A seed's requests, until the first seed has run.
_USUAL_REQUESTS = 800
# A broken judge fails every seed. After so many failures, more seeds would show nothing new.
ENOUGH_FAILURES = 1000
_SHOW_EVERY_S = 30.0


class SeedPool:
    """A pool that runs seeds until there are enough.

    Args:
        to_run: the seeds.
        totals: the results of earlier sittings; the results of this one are added to it.
        file: takes the results of every chunk.
        seeds: the number of seeds to reach in `totals`.
        requests: the number of requests to reach in `totals`.
        jobs: the number of processes.
        run: runs a chunk of seeds; None for the simulator of the core.
    """

    def __init__(
        self,
        to_run: SeedsToRun,
        totals: Totals,
        file: ResultsFile | None,
        *,
        seeds: int,
        requests: int,
        jobs: int,
        run: Callable[[Iterable[int]], Totals] | None = None,
    ) -> None:
        self._to_run = to_run
        self._totals = totals
        self._file = file
        self._seeds = seeds
        self._requests = requests
        self._jobs = jobs
        self._run_chunk = partial(_run_chunk, run)
        self._running: dict[Future[Totals], range] = {}

    def run(self) -> None:
        """Run the seeds. An interruption also ends the workers.

        Raises:
            click.ClickException: The system killed a worker.
        """
        # Python 3.14 would start each worker from a server process, which ends after the command.
        how = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        with ProcessPoolExecutor(self._jobs, how, initializer=_end_with_the_parent) as pool:
            try:
                # The first workers are forked here, before the display has a thread that may hold
                # a lock.
                self._hand_out(pool)
                with ProgressDisplay(self._totals, Console(stderr=True)) as display:
                    while self._running:
                        # Bounded, so that progress is shown even while no chunk ends.
                        for future in wait(self._running, _SHOW_EVERY_S, FIRST_COMPLETED).done:
                            self._gather(future)
                        self._hand_out(pool)
                        display.show(self._share)
            except BaseException:
                for worker in multiprocessing.active_children():
                    # The pool's own end would wait for the chunks under way.
                    worker.terminate()
                raise

    def _hand_out(self, pool: ProcessPoolExecutor) -> None:
        while len(self._running) < self._jobs and (missing := self._missing) > 0:
            # The rest is shared among the idle workers.
            fair = -(-missing // (self._jobs - len(self._running)))
            chunk = self._to_run.take(min(fair, self._usual_chunk))
            self._running[pool.submit(self._run_chunk, chunk)] = chunk

    @property
    def _usual_chunk(self) -> int:
        """The number of seeds in a chunk, one until their time is known."""
        totals = self._totals
        if not totals.seeds:
            return 1
        fit = int(_CHUNK_S * totals.seeds / max(totals.seconds, 1e-3))
        return min(max(fit, 1), _LONGEST_CHUNK)

    @property
    def _missing(self) -> int:
        """The number of further seeds to hand out."""
        totals = self._totals
        if len(totals.failures) >= ENOUGH_FAILURES:
            return 0
        pending = sum(len(chunk) for chunk in self._running.values())
        usual = max(totals.requests // totals.seeds, 1) if totals.seeds else _USUAL_REQUESTS
        requests = self._requests - totals.requests - usual * pending
        return max(self._seeds - totals.seeds - pending, -(-requests // usual))

    @property
    def _share(self) -> float:
        requests = self._totals.requests / self._requests if self._requests else 1.0
        return min(self._totals.seeds / self._seeds, requests, 1.0)

    def _gather(self, future: Future[Totals]) -> None:
        try:
            totals = future.result()
        except BrokenProcessPool as error:
            chunks = sorted(self._running.values(), key=lambda chunk: chunk.start)
            names = ", ".join(_in_words(chunk) for chunk in chunks)
            raise click.ClickException(f"a worker was killed; running were: {names}") from error
        chunk = self._running.pop(future)
        if self._file is not None:
            # Before the sum: what an interruption loses is then run again, and nothing counts
            # twice.
            self._file.append(chunk, totals)
        self._totals.add(totals)


def _in_words(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _run_chunk(run: Callable[[Iterable[int]], Totals] | None, seeds: range) -> Totals:
    began = time.monotonic()
    totals = (run or run_seeds)(seeds)
    totals.seconds = time.monotonic() - began
    return totals


def _end_with_the_parent() -> None:
    """Leave Ctrl-C to the parent, and end with it, even if it is killed."""
    # A terminal sends Ctrl-C to the whole group; the parent ends the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A daemon, so that it does not keep a worker alive that the pool has ended.
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    # `sys.exit` would end only this thread.
    os._exit(1)


class ProgressDisplay:
    """The display of the progress: a bar on a terminal, otherwise a line from time to time.

    Args:
        totals: the sum, as it grows.
        console: the output.
        clock: returns the time, in seconds.
    """

    def __init__(
        self, totals: Totals, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._totals = totals
        self._clock = clock
        self._console = console
        self._began = self._shown = clock()
        # The requests of earlier sittings are no part of this one's rate.
        self._earlier = totals.requests
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, share: float) -> None:
        """Show the progress.

        Args:
            share: the finished part of all, from 0 to 1.
        """
        now = self._clock()
        seconds = now - self._began
        rate = (self._totals.requests - self._earlier) / seconds if seconds else 0.0
        text = (
            f"{self._totals.seeds:,} seeds, {self._totals.requests:,} requests,"
            f" {rate:,.0f} requests/s"
        )
        if self._console.is_terminal:
            self._bar.update(self._task, completed=share, description=text)
        elif now - self._shown >= _SHOW_EVERY_S:
            self._shown = now
            click.echo(f"{share:.0%}: {text}", file=self._console.file)
