"""One measurement, in a process of its own, so that no peer is warm for another.

Owns: the clock, and the warm-up before it: the same work, not measured, so that all code is
loaded and all connections are open. Prints one JSON line. Must not know: how a peer writes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from integration.benchmarks.busy import BusyMeter
from integration.benchmarks.job import Job, Told
from integration.benchmarks.memory import MemoryMeter
from integration.benchmarks.peers import OPEN
from integration.benchmarks.rows import Peer, Rows

_LONGEST_LIST = 300_000
_CHUNK = 50_000


@dataclass
class Course:
    """Seconds of transactions, one by one: of the whole, and of its commit."""

    latencies: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)


def main() -> None:
    job = Job.from_json(sys.argv[1])
    peer = OPEN[job.peer](job, rows(job))
    try:
        warm, course = Course(), Course()
        if job.warm_seconds:
            repeat(peer, 1, job.most, job.warm_seconds, warm)
        meter = MemoryMeter() if job.watches_memory else None
        if meter is not None:
            meter.start()
        busy = BusyMeter(job.brokers)
        began, used = time.perf_counter(), cpu_seconds()
        repeat(peer, job.least, job.most, job.seconds, course, meter)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
        shares = busy.seconds()
    finally:
        peer.close()
    told = Told(
        version=peer.version,
        warm=len(warm.latencies),
        transactions=len(course.latencies),
        seconds=seconds,
        cpu=cpu,
        latencies=[round(each * 1e3, 3) for each in course.latencies],
        commits=[round(each * 1e3, 3) for each in course.commits],
        rss=[] if meter is None else meter.rss,
        peaks=[] if meter is None else meter.peaks,
        busy=shares,
    )
    print(json.dumps(told))


def rows(job: Job) -> Rows:
    """Return a transaction's values, or a part that is written several times."""
    content, size = Path(job.pool).read_bytes(), job.value_bytes
    pool = [content[at : at + size] for at in range(0, len(content), size)]
    count = job.records if job.records <= _LONGEST_LIST else _CHUNK
    places = list(islice(cycle(range(job.partitions)), count)) if job.partitions > 1 else None
    return Rows(list(islice(cycle(pool), count)), places, job.records // count)


def repeat(
    peer: Peer,
    least: int,
    most: int,
    seconds: float,
    course: Course,
    meter: MemoryMeter | None = None,
) -> None:
    """Write transactions: `most`, or as many as begin in this time, but no fewer than `least`."""
    count, end = 0, time.perf_counter() + seconds
    while count < most and (count < least or time.perf_counter() < end):
        began = time.perf_counter()
        peer.begin()
        peer.write()
        written = time.perf_counter()
        peer.commit()
        done = time.perf_counter()
        course.latencies.append(done - began)
        course.commits.append(done - written)
        count += 1
        if meter is not None:
            meter.note()


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
