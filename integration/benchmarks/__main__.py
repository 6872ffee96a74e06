"""`python -m integration.benchmarks`: all peers in turn, their medians, ratios and targets."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from integration.benchmarks import report
from integration.benchmarks.java import compile_java_peer
from integration.benchmarks.job import FailedRunError
from integration.benchmarks.results import Results
from integration.benchmarks.run import Bench, Plan
from integration.benchmarks.settings import PEERS, TABLES, in_words_of
from integration.benchmarks.targets import target_lines
from integration.benchmarks.values import ABOUT_VALUES
from integration.benchmarks.works import LONG, ONE, WORKS, Work
from txnproducer.testing import EmbeddedKafka

# None: where temporary files lie.
_LOGS: dict[str, Path | None] = {"memory": Path("/dev/shm"), "disk": None}
# Of each measurement. Up to here a page cache takes what is written, and a disk costs nothing.
_DISK_S = 10.0
# A batch of a megabyte is more than G1 likes to move: it would be most of the broker's work, and
# what is measured here are clients.
_BROKERS_JVM = ("-Xms2g", "-Xmx2g", "-Xmn1500m", "-XX:+UseParallelGC")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds",
        type=float,
        help="of each measurement (default: 0.6, 1 with --full, 10 with --log disk)",
    )
    parser.add_argument("--quick", action="store_true", help="one short round, to see it work")
    parser.add_argument("--full", action="store_true", help="more works, all peers in all of them")
    parser.add_argument("--only", default="", metavar="WORK", help="works with this in their name")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument("--brokers", type=int, default=1, help="three replicate everything")
    parser.add_argument(
        "--log",
        choices=("memory", "disk"),
        default="memory" if Path("/dev/shm").is_dir() else "disk",
        help="where the brokers' logs lie; on a disk a measurement takes 10 s, since its page"
        " cache hides it before that",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw into this folder")
    parser.add_argument("--read", type=Path, metavar="JSON", help="measure nothing, show this")
    arguments = parser.parse_args()
    if arguments.brokers < 1:
        parser.error(f"--brokers {arguments.brokers}: at least one is needed")
    unknown = set(arguments.peers.split(",")) - set(PEERS)
    if unknown:
        parser.error(f"no such peers: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if not arguments.read and not _works(arguments):
        parser.error(f"no work has {arguments.only!r} in its name; see works.py, and --full")
    return arguments


def main() -> None:
    arguments = _arguments()
    if arguments.read:
        results = Results.read(arguments.read)
        _show(results)
    else:
        results = _measure(arguments)
    _print(report.tail(results))
    _print(target_lines(results))
    if arguments.plots:
        from integration.benchmarks.plots import draw

        for path in draw(results, arguments.plots):
            print(f"drawn: {path}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _works(arguments: argparse.Namespace) -> list[Work]:
    chosen = [work for work in WORKS if arguments.full or work.brief]
    chosen = [work for work in chosen if arguments.only in work.name]
    return [work.shortened() for work in chosen] if arguments.quick else chosen


def _peers(arguments: argparse.Namespace, table: str, work: Work) -> list[str]:
    asked = arguments.peers.split(",")
    return [peer for peer in asked if work.takes_part(peer, table, is_full=arguments.full)]


def _measure(arguments: argparse.Namespace) -> Results:
    seconds = arguments.seconds or _seconds(arguments)
    # On a disk a work that ends sooner would only fill the page cache.
    plan = Plan(arguments.rounds, seconds, is_by_time=arguments.log == "disk")
    if arguments.quick:
        plan = Plan(1, 0.2, 0.4)
    works = _works(arguments)
    path = Path("results") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    with (
        tempfile.TemporaryDirectory(prefix="txnproducer-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="txnproducer-bench-", dir=_LOGS[arguments.log]) as log,
        EmbeddedKafka(
            arguments.brokers,
            jvm_options=_BROKERS_JVM,
            settings={"log.segment.delete.delay.ms": 1_000},
            data_dir=log,
        ) as kafka,
    ):
        results = Results(_about(kafka, plan, arguments))
        results.about["is_shortened"] = arguments.quick
        _print(report.head(results.about))
        java = compile_java_peer(kafka.version, Path(folder))
        bench = Bench(kafka, java, Path(folder), plan)
        _warm_up(bench, plan.rounds)
        for table in TABLES:
            for _ in _measure_table(bench, table, works, arguments, results):
                # Kept at once: an hour's work should not be lost with its last minute.
                results.about["load_after"] = f"{os.getloadavg()[0]:.1f}"
                results.write(path)
    print(f"\nkept in {path}")
    return results


def _seconds(arguments: argparse.Namespace) -> float:
    if arguments.log == "disk":
        return _DISK_S
    return 1.0 if arguments.full else 0.6


def _warm_up(bench: Bench, rounds: int) -> None:
    """Let the broker's own code compile, and its log of transactions be open."""
    for work in [work for work in WORKS if work.name in (LONG, ONE)] * rounds:
        # A peer that cannot be measured says so in its turn.
        with contextlib.suppress(FailedRunError):
            bench.measure_once("equal", work.shortened(), "txnproducer.send")


def _measure_table(
    bench: Bench, table: str, works: list[Work], arguments: argparse.Namespace, results: Results
) -> Iterator[None]:
    """Measure the works of a table, and yield after each."""
    chosen = [work for work in works if _peers(arguments, table, work)]
    if not chosen:
        return
    codec, began = "", time.perf_counter()
    for work in chosen:
        if work.codec != codec:
            codec = work.codec
            alike = [each for each in chosen if each.codec == codec]
            _print(report.settings_lines(table, codec, _of_all(arguments, table, alike)))
        found = bench.measure(table, work, _peers(arguments, table, work))
        results.found += found
        _print(report.work_lines(found))
        took_s = round(time.perf_counter() - began)
        began += took_s
        print(f"\n(in {took_s} s)", flush=True)
        results.about["took_s"] += took_s
        yield


def _of_all(arguments: argparse.Namespace, table: str, works: list[Work]) -> list[str]:
    return list(dict.fromkeys(peer for work in works for peer in _peers(arguments, table, work)))


def _show(results: Results) -> None:
    _print(report.head(results.about))
    shown = dict.fromkeys((each.table, each.work.name) for each in results.found)
    last = ("", "")
    for table, name in shown:
        found = results.of(table, name)
        if last != (table, found[0].work.codec):
            last = (table, found[0].work.codec)
            alike = (each for each in results.found if (each.table, each.work.codec) == last)
            _print(report.settings_lines(*last, list(dict.fromkeys(each.peer for each in alike))))
        _print(report.work_lines(found))


def _about(kafka: EmbeddedKafka, plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    words = {table: {peer: in_words_of(peer, table) for peer in PEERS} for table in TABLES}
    return {
        "commit": _commit(),
        "platform": _platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "kafka": kafka.version,
        "broker": f"{arguments.brokers}, on the same machine, {' '.join(_BROKERS_JVM)}",
        "log": arguments.log,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "java_warm_s": plan.java_warm_s,
        "took_s": 0,
        "values": ABOUT_VALUES,
        "settings": words,
        "load_before": f"{os.getloadavg()[0]:.1f}",
        "load_after": "",
    }


def _platform() -> str:
    # Not the whole release, which names the kernel's own build.
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.system()} {release}, {platform.machine()}"


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("diff", "--stat") else "")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
