"""The reasons why another client had a shorter longest stall than ours in a row, in words.

Owns: the judgement whether the cluster, the workload or ours was slow, by the figures of two rows.
Must not know: how a page is laid out, histories.
"""

from __future__ import annotations

from typing import Any

from integration.chaos.driver import AWAY_S, TURN_S
from integration.chaos.plan import (
    CLIENT,
    COPY,
    LEADER,
    NEUTRAL,
    ONE_SIDED,
    OURS,
    PARTITION,
    PAUSE,
    SLOW,
    TAKEOVER,
    parts,
)
from integration.chaos.strikes import held_s
from integration.chaos.versions import SPEAK_V2, cost_of_v2_s
from integration.chaos.waits import (
    ABSENT,
    CLOSED,
    NO_PARTITIONS,
    OPENED,
    POLLED,
    REWOUND,
    STARTED,
)

Line = dict[str, Any]

# Two plays of one row differ by that much in the median.
_CHANCE_S = 0.5
# Slow transactions excuse at most so much beyond the stall of fresh producers.
_MOST_BEYOND_S = 5.0
# A probe may miss one of its steps at the begin of a stall, and one at the end. Two probes take
# steps of their own.
_STEP_S = 0.5
_NOTICE_S = _WEAK_S = 2 * _STEP_S
# A broker struck by these keeps connections open and is silent, so a request that it has ends with
# its time-out of this length, after the cluster has gone on without that broker.
_SILENT, _REQUEST_S = (PAUSE, PARTITION, ONE_SIDED), 5.0

_WITH = {
    POLLED: "in polls until there was a record",
    NO_PARTITIONS: "in polls without a partition",
    REWOUND: "in going back to the committed offsets",
    OPENED: "in its making",
    CLOSED: "in its closing",
}

_NAMED = {OURS: "ours", NEUTRAL: NEUTRAL}
_BEFORE = (
    "Before the next commit, {} of its transactions ended in an abort (the workload aborts some,"
    " and a writer that takes the id the other's)"
)

QUICKER = f"""One cluster elects new leaders sooner than the next one, by chance. So two probes run
    beside each row: every half a second, a fresh producer of ours and one of {NEUTRAL} each begin
    a transaction with the same coordinator, in topics of their own on the same brokers, and have
    some seconds for each call. If neither commits, the wait is most probably the cluster's. If
    those of ours stood still for {_WEAK_S:.0f} s longer than the others, that is a weakness of
    ours, and the row says so; otherwise the quicker of the two counts. A client may go on before a
    probe does, so the probes are a likelihood and no proof. The list has each row in which another
    client that recovered had a shorter longest stall than ours. A difference of at most
    {_CHANCE_S} s is not judged, since two plays of one row differ by as much. (In 31 pairs of
    ours, which are not kept, the median was 0.55 s.) "Ours was slow" means that neither the
    cluster nor the fault nor the workload accounts for the time."""
COPIED = """A consumer that gets a partition waits until no transaction with offsets of it is open.
    So in `copy` a slow producer can hold up the other member's consumer."""
BY_VERSION = """Over a slow link to a leader a transaction takes longer with version 2. With
    version 1 the client adds all partitions to the transaction in one request to the
    coordinator. With version 2 each leader adds its own, the coordinator takes one of these
    requests at a time, and each waits until its log is on the slow broker as well. Of
    these clients ours and the Java client speak version 2. The medians of transactions with four
    partitions, by `python -m integration.chaos.versions` at {commit}:"""
UNPROBED = f"""In {{count}} rows of ours, played earlier, the producers of {NEUTRAL} were not
    there yet: a weakness of ours that our fresh producers share would not show in these."""


def is_probed_twice(line: Line) -> bool:
    """Return whether fresh producers of both clients committed beside a row."""
    return {OURS, NEUTRAL} <= _fresh(line).keys()


def why(ours: Line, best: Line) -> str:
    """Return the reason why a row of another client was quicker than the same row of ours."""
    if ours["stall_s"] - best["stall_s"] <= _CHANCE_S:
        return f"One play of each does not tell {_CHANCE_S} s apart."
    fresh, stood = _fresh(ours), _stood(ours, best)
    if not fresh:
        return "There was no probe yet."
    # Those of one client may be slow by themselves.
    cluster = min(fresh.values())
    took = ours.get("fresh_took_s") or {}
    if parts(ours["row"])[1] == SLOW and took:
        # Each transaction takes seconds there, and those of a probe overlap.
        if took.get(OURS, 0.0) - _version_s(ours, best) - min(took.values()) > _WEAK_S:
            return f"**Ours was slow**, fresh ones as well:{_took(ours)} at most.{_spent(ours)}"
    elif fresh.get(OURS, cluster) - cluster > _WEAK_S:
        return f"**Ours was slow**, fresh ones as well: {stood}."
    if ours["stall_s"] <= cluster + _NOTICE_S:
        return f"On its cluster, {stood}."
    return (
        _workload(ours, best, cluster, stood)
        or _fault(ours, best, cluster, stood)
        or f"**Ours was slow**: {stood}.{_spent(ours)}"
    )


def _workload(ours: Line, best: Line, cluster: float, stood: str) -> str:
    """Return the reason that lies in the workload, or nothing."""
    workload, fenced = parts(ours["row"])[3], ours.get("fenced", 0)
    # Each client's writers take the id from each other, so only more often is a reason.
    there_fenced: int | None = best.get("fenced")
    turns_s = (fenced - (there_fenced or 0)) * (TURN_S + AWAY_S)
    is_by_turns = ours["stall_s"] <= cluster + turns_s + _NOTICE_S
    if workload == TAKEOVER and there_fenced is not None and turns_s > 0 and is_by_turns:
        return (
            f"Its two writers took the id from each other {fenced} times meanwhile (there"
            f" {there_fenced}); {stood}."
        )
    called, waited = ours.get("called_s"), ours.get("waited_s") or {}
    reached = max(cluster, _held_s(ours), _transactions_s(ours, best))
    if workload != COPY or called is None or called > reached + _NOTICE_S:
        return ""
    if ours["stall_s"] - called - sum(waited.values()) > _NOTICE_S:
        return ""
    held_s = _held_s(ours)
    held = f"The fault held its process for {held_s:.0f} s. " if held_s else ""
    return f"{held}{stood[0].upper()}{stood[1:]}.{_spent(ours)}"


def _fault(ours: Line, best: Line, cluster: float, stood: str) -> str:
    """Return the reason that lies in the fault or in transactions without a commit, or nothing."""
    _, fault, target, _, _ = parts(ours["row"])
    if target == CLIENT:
        return _held(ours, cluster, stood)
    # Only with a request under way, and then its producer is in one call for that time.
    is_in_call = (ours.get("longest_call_s") or 0.0) >= _REQUEST_S
    if fault in _SILENT and is_in_call and ours["stall_s"] <= cluster + _REQUEST_S:
        return (
            f"{stood[0].upper()}{stood[1:]}. A request that the silent broker has already ends"
            f" with its time-out, {_REQUEST_S:.0f} s after it was sent."
        )
    aborted: int = ours.get("aborted_in_stall") or 0
    if ours["stall_s"] <= _transactions_s(ours, best) + _NOTICE_S:
        before = f" {_BEFORE.format(aborted)}." if aborted else ""
        version = " Ours alone of the two speaks version 2." if _version_s(ours, best) else ""
        return f"Each transaction took seconds:{_took(ours)} at most.{before}{version}"
    return ""


def _transactions_s(ours: Line, best: Line) -> float:
    """Return how long those of a stall take a fresh producer over a slow link; otherwise 0."""
    took: dict[str, float] = ours.get("fresh_took_s") or {}
    if parts(ours["row"])[1] != SLOW:  # there they include the time without a leader
        return 0.0
    aborted: int = ours.get("aborted_in_stall") or 0
    quickest = min(took.values(), default=0.0) + _version_s(ours, best)
    # Each is counted as the slowest of a probe, and not all were as slow.
    most = min(_fresh(ours).values(), default=0.0) + _MOST_BEYOND_S
    return min((1 + aborted) * min(took.get(OURS, quickest), quickest), most)


def _version_s(ours: Line, best: Line) -> float:
    """Return how much longer a transaction takes than one of the other client's version."""
    _, fault, target, _, version = parts(ours["row"])
    if parts(best["row"])[0] in SPEAK_V2 or (fault, target, version) != (SLOW, LEADER, "v2"):
        return 0.0
    return cost_of_v2_s()


def _took(ours: Line) -> str:
    took = ours["fresh_took_s"]
    words = [
        f" one of a fresh producer of {_NAMED[client]} {took[client]:.1f} s"
        for client in sorted(took, reverse=True)
    ]
    return " and".join(words)


def _held_s(ours: Line) -> float:
    """Return for how long the fault let the client's process do nothing."""
    _, fault, target, _, _ = parts(ours["row"])
    return held_s(fault) if (fault, target) == (PAUSE, CLIENT) else 0.0


def _held(ours: Line, cluster: float, stood: str) -> str:
    """Return the reason of a client that was struck itself, or nothing if that is too little."""
    waited = ours.get("waited_s") or {}
    away, start = waited.get(ABSENT, 0.0), waited.get(STARTED, 0.0)
    if ours["stall_s"] > max(away, _held_s(ours)) + start + cluster + _NOTICE_S:
        return ""
    if not start:
        return f"The fault held the client; {stood}."
    return (
        f"Its process was away for {away:.1f} s, and from its start to its first call took"
        f" {start:.1f} s; {stood}."
    )


def _spent(ours: Line) -> str:
    """Return a sentence about the calls in which a copier stood still; nothing for others."""
    called = ours.get("called_s")
    if parts(ours["row"])[3] != COPY or called is None:
        return ""
    waited = ours.get("waited_s") or {}
    spent = [f"{waited[did]:.1f} s {words}" for did, words in _WITH.items() if waited.get(did)]
    consumer = f", and its consumer, kafka-python's, {', '.join(spent)}" if spent else ""
    return f" Its producers were in a call for {called:.1f} s of its stall{consumer}."


def _fresh(line: Line) -> dict[str, float]:
    """Return for how long fresh producers stood still, by their client."""
    found: dict[str, float] | None = line.get("fresh_stalls_s")
    if found:
        return found
    # A row of before there were two probes: the longest time in the whole row.
    cluster = line.get("cluster_stall_s")
    return {} if cluster is None else {OURS: cluster}


def _stood(ours: Line, best: Line) -> str:
    fresh = _fresh(ours)
    cluster, there = best.get("cluster_stall_s"), ""
    if cluster is not None:
        there = f" (there {cluster:.1f} s)"
    words = f"fresh producers of ours stood still for {fresh.get(OURS, 0.0):.1f} s{there}"
    if (neutral := fresh.get(NEUTRAL)) is not None:
        words += f", and those of {NEUTRAL} for {neutral:.1f} s"
    return words
