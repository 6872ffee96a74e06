"""The samples of a soak: the values of one, the sums of a quarter of a run, and growth.

Must not know: how samples are taken, drawn or told.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# The growth from the second quarter of a run to its last one that counts as none. In the first
# quarter caches, pools and the first faults settle.
ALLOWED = {"memory_mb": 1.03, "threads": 1.0, "descriptors": 1.0}
_QUARTERS = 4


class Sample(NamedTuple):
    """The writing process at one time.

    Attributes:
        at_s: seconds since the begin.
        memory_mb: resident, in millions of bytes.
        transactions: that have ended since the last sample.
        median_ms: how long these took; 0 if there are none.
        longest_ms: likewise.
        faults: that took effect since the begin, and are over.
        renewals: of logins on living connections, accepted since the begin.
    """

    at_s: float
    memory_mb: float
    threads: int
    descriptors: int
    transactions: int
    median_ms: float
    longest_ms: float
    faults: int
    renewals: int


def quarters(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Return the samples in four parts of equal length."""
    ends = [round(len(samples) * each / _QUARTERS) for each in range(_QUARTERS + 1)]
    return [samples[ends[each] : ends[each + 1]] for each in range(_QUARTERS)]


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return the values that grew: the last quarter of a run against its second one."""
    _, early, _, late = quarters(samples)
    grown = []
    for name, allowed in ALLOWED.items():
        before = statistics.median(getattr(each, name) for each in early)
        after = statistics.median(getattr(each, name) for each in late)
        if after > before * allowed:
            grown.append(f"{name}: {before} in the second quarter, {after} in the last")
    return grown


def not_renewed(samples: Sequence[Sample], due_s: float) -> list[str]:
    """Return the quarters of a run in which fewer logins were renewed than were due.

    One producer at least lives all the time, so one login is due in each of these times.

    Args:
        due_s: within so many seconds a login is renewed.
    """
    ends = [(part[-1].at_s, part[-1].renewals) for part in quarters(samples)]
    return [
        f"{after - before} logins were renewed from {begin_s:.0f} s to {end_s:.0f} s, and"
        f" {(end_s - begin_s) // due_s:.0f} were due"
        for (begin_s, before), (end_s, after) in itertools.pairwise([(0.0, 0), *ends])
        if after - before < (end_s - begin_s) // due_s
    ]


def too_few_faults(samples: Sequence[Sample], every_s: float) -> list[str]:
    """Return a text if fewer faults took effect than one in each of these times.

    Args:
        every_s: in so many seconds a fault begins and ends.
    """
    last = samples[-1]
    due = int(last.at_s // every_s)
    return [f"{last.faults} faults took effect, and {due} were due"] if last.faults < due else []


def wrong_offset(outcomes: Mapping[int, str], offset: int | None) -> list[str]:
    """Return a text if a group's offset is not that of the last transaction that wrote it.

    Args:
        outcomes: by a transaction's number, which is also the offset that it writes. One that is
            "unknown" may have written it.
        offset: of the group; None if it has none.
    """
    last = max((number for number, each in outcomes.items() if each == "committed"), default=None)
    later = {n for n, each in outcomes.items() if each == "unknown" and n > (last or 0)}
    if offset in later | {last}:
        return []
    return [f"the group's offset is {offset}, and the last transaction committed {last}"]


def summed_up(part: Sequence[Sample]) -> dict[str, Any]:
    """Return a part of a run as figures: medians, largest values, sums."""
    medians = [each.median_ms for each in part if each.transactions]
    return {
        "until_s": part[-1].at_s,
        "memory_mb": round(statistics.median(each.memory_mb for each in part), 2),
        "memory_mb_most": max(each.memory_mb for each in part),
        "threads": statistics.median(each.threads for each in part),
        "threads_most": max(each.threads for each in part),
        "descriptors": statistics.median(each.descriptors for each in part),
        "descriptors_most": max(each.descriptors for each in part),
        "transactions": sum(each.transactions for each in part),
        "median_ms": round(statistics.median(medians), 1) if medians else None,
        "longest_ms": max(each.longest_ms for each in part),
    }


def trend_mb_per_hour(samples: Sequence[Sample]) -> float:
    """Return the slope of memory over time, without the first quarter, by least squares."""
    settled = samples[len(quarters(samples)[0]) :]
    line = statistics.linear_regression(
        [each.at_s / 3600 for each in settled], [each.memory_mb for each in settled]
    )
    return line.slope


def thinned(samples: Sequence[Sample], count: int) -> Iterator[Sample]:
    """Return at most so many samples: neighbours become one.

    Memory and medians are the medians of the neighbours, threads, descriptors and the longest
    transaction are their largest, transactions are their sum. Time, faults and renewals are the
    last one's.
    """
    step = -(-len(samples) // count)
    for first in range(0, len(samples), step):
        part = samples[first : first + step]
        told = summed_up(part)
        yield Sample(
            told["until_s"],
            told["memory_mb"],
            told["threads_most"],
            told["descriptors_most"],
            told["transactions"],
            told["median_ms"] or 0.0,
            told["longest_ms"],
            part[-1].faults,
            part[-1].renewals,
        )
