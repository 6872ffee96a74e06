"""The ends of producers: the causes for which a writer has made the next one, and their judgement.

Why it exists: a client that asks for a new producer where the protocol lets the old one go on
costs its user a restart, so each row says why its producers ended.
Owns: the words that a driver notes at a producer's end, their counts for a row, and the text about
each cause. Must not know: how a page is laid out.
"""

from __future__ import annotations

from typing import Any

from integration.chaos.history import INPUT, History, Line
from integration.chaos.plan import TAKEOVER

Ending = dict[str, Any]

# What a driver notes: it is the end of the row, or the reason is the workload, a signal, an error.
AT_THE_END, TURN, MEMBER, SIGNAL, ERROR = "end", "turn", "member", "signal", "error"
# What follows from a producer without a note.
KILLED, HUNG = "killed", "hung"

_WHY = {
    TURN: "the workload: a writer leaves the id to the other one",
    MEMBER: "the workload: a member leaves the group",
    SIGNAL: "the fault: SIGTERM ended its process",
    KILLED: "the fault: its process was killed",
    HUNG: "**its process hung** at the end of the row",
}
_FENCED = ("ProducerFencedError", "InvalidProducerEpochError")


def endings(history: History) -> list[Ending] | None:
    """Return the ends of a row's producers before its end, counted by their causes.

    Returns:
        For each cause `why` and `count`; of an error also `during` (the call), `error` (the text
        of the first one) and `verdict` (the client's own); of a fence also `taken`, whether the
        other writer can have taken the id. None if the client's driver notes no ends.
    """
    if not history.ended:
        return None
    found: dict[tuple[object, ...], Ending] = {}
    key: tuple[object, ...]
    made_at: dict[str, float] = {}
    for line in history.ended:
        since, made_at[line["writer"]] = made_at.get(line["writer"], 0.0), line["t"]
        if line["why"] == AT_THE_END:
            continue
        if line["why"] == ERROR:
            kind = _kind(line)
            key = (ERROR, line["during"], kind, line["verdict"])
            cause = {name: line[name] for name in ("why", "during", "error", "verdict")}
            if kind in _FENCED:
                cause["taken"] = _is_taken(history, line, since)
                key += (cause["taken"],)
        else:
            key, cause = (line["why"],), {"why": line["why"]}
        found.setdefault(key, cause | {"count": 0})["count"] += 1
    for writer, count in _without_a_note(history).items():
        # A process that ended before its time has a successor of the next number.
        is_replaced = f"{writer[0]}{int(writer[1:]) + 1}" in history.begun
        why = KILLED if is_replaced else HUNG
        found.setdefault((why,), {"why": why, "count": 0})["count"] += count
    return list(found.values())


def _is_taken(history: History, line: Line, since: float) -> bool:
    """Return whether the other writer of an id can have fenced a producer.

    Its initialization must have overlapped, or lain in, the time from the beginning of this
    producer's own to the fence. An earlier one fences the producer before.

    Args:
        history: has the calls.
        line: the end of the producer.
        since: the end of the producer before it in this process.
    """
    same_id = [each for each in history.init_calls if each.transactional_id == line["id"]]
    own = [each.began for each in same_id if each.writer == line["writer"] and each.began >= since]
    began = min(own, default=line["t"])
    return any(
        each.writer[0] != line["writer"][0] and each.began <= line["t"] and each.ended >= began
        for each in same_id
    )


def _without_a_note(history: History) -> dict[str, int]:
    left = dict(history.begun)
    for line in history.ended:
        # A producer that could not be initialized is not among those that began.
        if not (line["why"] == ERROR and line["during"] == "init"):
            left[line["writer"]] -= 1
    return {writer: count for writer, count in left.items() if count > 0}


def is_unchecked(ending: Ending) -> bool:
    """Return whether a cause is a fence of a row that was played before fences were checked."""
    return ending["why"] == ERROR and _kind(ending) in _FENCED and "taken" not in ending


def _kind(ending: Ending) -> str:
    text: str = ending["error"]
    return text.split(":")[0]


def told(ending: Ending, workload: str) -> str:
    """Return a cause in words, with the reason why its producer could not go on."""
    if ending["why"] != ERROR:
        return _WHY[ending["why"]]
    kind = _kind(ending)
    if ending["during"] == INPUT:
        return f"the workload's consumer failed: `{ending['error']}`"
    name = f"`{kind}` in `{ending['during']}`"
    if kind in _FENCED and ending["verdict"] == "restart":
        # Rows that were played before there was this check have no such key.
        if ending.get("taken", workload == TAKEOVER):
            return f"the workload: {name}, since the other writer had taken the id"
        # No fault lasts as long as a transaction may, so none of them lets a broker fence it.
        return (
            f"**not explained**: {name}, though no other writer took the id: `{ending['error']}`"
        )
    if ending["verdict"] == "unknown":
        return (
            f"the protocol: {name}, since no answer said whether the commit took effect:"
            f" `{ending['error']}`"
        )
    return f"**not judged**: {name} ({ending['verdict']}): `{ending['error']}`"
