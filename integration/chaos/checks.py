"""The checker: compares the records that readers saw with the outcomes that writers believe.

Pure: it takes a `History` and returns what is wrong in it. Names as in Adya's and Elle's reports:
* aborted read (G1a): a reader at `read_committed` sees a record of a transaction that was aborted,
  or whose commit had not been called when it was read.
* intermediate read (G1b): a reader that has read all that is committed in a partition has seen a
  part of a transaction's records there.
* write cycle (G0): of two transactions of one transactional id each wrote before the other, by the
  order of the logs. Writers with different ids may interleave; Kafka promises them nothing.
* lost write: a commit was confirmed, and no record is there. Torn: some are, and some are not, or
  copies are there without the offset of their input. (A lost offset shows only if no later
  transaction has set it.)
* duplicate: a record, or a copy of one input, is there twice.
* order: in a partition, records of a transaction, or transactions that ended before the next one
  began, stand in another order than they were written.
* outcome told false: a commit was called, the client said that it failed, and it is there.
Must not know: clients, faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from integration.chaos.history import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    History,
    Place,
    Reading,
    Txn,
    Value,
)
from integration.chaos.plan import OURS

G1A, G1B, G0 = "aborted read (G1a)", "intermediate read (G1b)", "write cycle (G0)"
LOST, TORN, DUPLICATE = "lost write", "torn transaction", "duplicate"
ORDER, FALSE_OUTCOME, STRAY = "order", "outcome told false", "record that nobody wrote"
KINDS = (G1A, G1B, G0, LOST, TORN, DUPLICATE, ORDER, FALSE_OUTCOME, STRAY)
FINAL = "final"

Key = tuple[str, int]


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    kind: str
    text: str


def check(history: History) -> list[Finding]:
    """Return everything that is wrong in a history. The reader `FINAL` has read all topics."""
    found: list[Finding] = []
    for name, places in history.readers.items():
        for place, reading in places.items():
            where = f"{name} on {place[0]}-{place[1]}"
            found += _strays(history, place, reading, where)
            found += _aborted_reads(history, reading, where)
            found += _intermediate_reads(history, place, reading, where)
            found += _duplicates(reading, where)
            found += _order(history, reading, where)
    final = history.readers.get(FINAL, {})
    found += _ends(history, final)
    found += _copies(history, final)
    found += _cycles(history, final)
    return list(dict.fromkeys(found))


def _values(reading: Reading) -> Iterator[Value]:
    return (Value.parse(text) for _, _, text in reading.records)


def _strays(history: History, place: Place, reading: Reading, where: str) -> Iterator[Finding]:
    for _, offset, text in reading.records:
        txn = history.txns.get(Value.parse(text).key)
        if txn is None or (*place, text) not in txn.records:
            yield Finding(STRAY, f"{where}: {text} at {offset}")


def _aborted_reads(history: History, reading: Reading, where: str) -> Iterator[Finding]:
    for read_at, _, text in reading.records:
        txn = history.txns.get(Value.parse(text).key)
        if txn is None:
            continue
        if txn.commit_called is None:
            yield Finding(G1A, f"{where}: {text}, of a transaction that was {txn.told or 'open'}")
        elif read_at < txn.commit_called:
            yield Finding(G1A, f"{where}: {text}, read before its commit was called")


def _intermediate_reads(
    history: History, place: Place, reading: Reading, where: str
) -> Iterator[Finding]:
    seen: dict[Key, int] = defaultdict(int)
    done = 0
    for end in reading.ends:
        for _, _, text in reading.records[done:end]:
            seen[Value.parse(text).key] += 1
        done = end
        for key, count in list(seen.items()):
            txn = history.txns.get(key)
            whole = sum(record[:2] == place for record in txn.records) if txn else count
            if count < whole:
                yield Finding(G1B, f"{where}: {count} of {whole} records of {key}")
            # Whole, or told once: no later end has to look at it again.
            del seen[key]


def _duplicates(reading: Reading, where: str) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for _, offset, text in reading.records:
        if text in seen and seen[text] != offset:
            yield Finding(DUPLICATE, f"{where}: {text} at {seen[text]} and at {offset}")
        seen[text] = offset


def _order(history: History, reading: Reading, where: str) -> Iterator[Finding]:
    last_index: dict[Key, int] = {}
    latest: dict[str, Txn] = {}
    for value in _values(reading):
        if value.index < last_index.get(value.key, -1):
            text = f"{where}: record {value.index} of {value.key} after {last_index[value.key]}"
            yield Finding(ORDER, text)
        last_index[value.key] = value.index
        txn = history.txns.get(value.key)
        if txn is None:
            continue
        before = latest.get(txn.transactional_id)
        if before is None or before.began < txn.began:
            latest[txn.transactional_id] = txn
        elif txn.told == COMMITTED and txn.told_at is not None and txn.told_at < before.began:
            text = f"{where}: {txn.key} after {before.key}, which began when it had been committed"
            yield Finding(ORDER, text)


def _ends(history: History, final: dict[Place, Reading]) -> Iterator[Finding]:
    there: dict[Key, set[tuple[str, int, str]]] = defaultdict(set)
    for place, reading in final.items():
        for _, _, text in reading.records:
            there[Value.parse(text).key].add((*place, text))
    for key, txn in history.txns.items():
        found, whole = there[key] & set(txn.records), set(txn.records)
        told = txn.told or UNKNOWN
        if found and found != whole:
            yield Finding(TORN, f"{key} ({told}): {len(found)} of {len(whole)} records")
        elif told == COMMITTED and whole and not found:
            yield Finding(LOST, f"{key}: committed, and none of {len(whole)} records is there")
        elif told == ABORTED and found and txn.commit_called is not None:
            yield Finding(FALSE_OUTCOME, f"{key}: the client said aborted, and it is there")


def _copies(history: History, final: dict[Place, Reading]) -> Iterator[Finding]:
    """Check that each input was copied once if its offset was committed, and not twice."""
    copies: dict[str, list[Key]] = defaultdict(list)
    for reading in final.values():
        for value in _values(reading):
            if value.source is not None:
                copies[value.source].append(value.key)
    for source, keys in copies.items():
        if len(keys) > 1:
            yield Finding(DUPLICATE, f"input {source} was copied by {keys}")
        place, _, at = source.partition("-")
        reached = history.copied.get(place, 0)
        if int(at) >= reached:
            yield Finding(TORN, f"{keys[0]} copied input {source}, and the offset is {reached}")
    for partition, offset in history.copied.items():
        missing = [at for at in range(offset) if f"{partition}-{at}" not in copies]
        if missing:
            text = f"partition {partition}: {len(missing)} inputs before the group's offset"
            yield Finding(LOST, f"{text} {offset} were not copied, the first at {missing[0]}")


def _cycles(history: History, final: dict[Place, Reading]) -> Iterator[Finding]:
    """Look for transactions of one id that the logs put in different orders."""
    after: dict[Key, set[Key]] = defaultdict(set)
    for reading in final.values():
        last: dict[str, Key] = {}
        for value in _values(reading):
            txn = history.txns.get(value.key)
            if txn is None:
                continue
            before = last.get(txn.transactional_id)
            if before is not None and before != txn.key:
                after[before].add(txn.key)
            last[txn.transactional_id] = txn.key
    for members in _strongly_connected(after):
        if len(members) > 1:
            yield Finding(G0, f"{sorted(members)}")


def _strongly_connected(after: dict[Key, set[Key]]) -> list[set[Key]]:
    """Return the groups in which each transaction is before each other one (Kosaraju)."""
    reverse: dict[Key, set[Key]] = defaultdict(set)
    for one, others in after.items():
        for other in others:
            reverse[other].add(one)
    nodes = list(dict.fromkeys([*after, *reverse]))
    finished: list[Key] = []
    seen: set[Key] = set()
    for node in nodes:
        finished += _finished(node, after, seen)
    groups: list[set[Key]] = []
    seen = set()
    for node in reversed(finished):
        group = set(_finished(node, reverse, seen))
        if group:
            groups.append(group)
    return groups


def _finished(start: Key, after: dict[Key, set[Key]], seen: set[Key]) -> list[Key]:
    """Return the nodes that can be reached and were not seen, each after those it leads to."""
    if start in seen:
        return []
    seen.add(start)
    order: list[Key] = []
    # Without recursion: a history has more transactions than Python has frames.
    stack = [(start, iter(sorted(after.get(start, ()))))]
    while stack:
        node, others = stack[-1]
        for other in others:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(sorted(after.get(other, ())))))
                break
        else:
            order.append(node)
            stack.pop()
    return order


# Our errors for an id that another producer has taken, or a transaction that timed out.
_FENCED = ("ProducerFencedError", "InvalidProducerEpochError")


@dataclass(frozen=True)
class Times:
    """Figures of a history.

    Attributes:
        recovery_s: from the fault to the first commit that was begun after it and confirmed, for
            the transactional id for which that took longest; None if an id had no such commit.
        stall_s: the longest time for which a transactional id had no confirmed commit.
        cluster_stall_s: the longest time in which no fresh producer of ours committed, from the
            probe's first commit to the writers' end; None if there was none.
        fresh_stalls_s: for each probe, by its client, the longest part of `stall_s` in which none
            of its fresh producers committed.
        fresh_took_s: the longest time of a transaction of these within `stall_s`, likewise.
        fenced: commits that were refused as fenced within `stall_s`.
        called_s: the part of `stall_s` in which a producer of that id was in a call.
        longest_call_s: the longest of these calls, as far as it lies in `stall_s`.
        waited_s: the parts of `stall_s` in which the writer of that id was busy otherwise, by
            their kind (`waits`).
        aborted: transactions of that id that ended in an abort within `stall_s`: by the workload's
            will, or because the id was taken.
    """

    recovery_s: float | None
    stall_s: float
    cluster_stall_s: float | None
    fresh_stalls_s: dict[str, float]
    fresh_took_s: dict[str, float]
    fenced: int
    called_s: float
    longest_call_s: float
    waited_s: dict[str, float]
    aborted: int


def times(history: History) -> Times:
    """Return how long the writers stood still."""
    commits: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for init in history.init_calls:
        commits[init.transactional_id] = []  # also of an id that never began a transaction
    for txn in history.txns.values():
        commits[txn.transactional_id] += (
            [(txn.began, txn.told_at)] if txn.told == COMMITTED and txn.told_at is not None else []
        )
    stalls, recoveries = [(0.0, 0.0, "")], []
    fault_at = history.fault.get("begin")
    for name, pairs in commits.items():
        marks = [history.first, *sorted(told_at for _, told_at in pairs), history.last]
        stalls += [(b - a, a, name) for a, b in pairwise(marks)]
        later = [told_at for began, told_at in pairs if fault_at is None or began >= fault_at]
        recoveries.append(min(later, default=None))
    known = [at for at in recoveries if at is not None]
    is_whole = fault_at is not None and known and len(known) == len(recoveries)
    recovery = round(max(known) - fault_at, 2) if is_whole and fault_at is not None else None
    stall_s, since, name = max(stalls)
    fenced = [
        line
        for line in history.errors
        if (line["id"], line["call"]) == (name, "commit")
        and since <= line["t"] <= since + stall_s
        and line["error"].startswith(_FENCED)
    ]
    calls = history.calls.get(name, [])
    called_s = _covered(calls, since, since + stall_s)
    longest_call_s = max((_covered([each], since, since + stall_s) for each in calls), default=0.0)
    waited_s = {
        did: covered
        for did, spans in history.waits.get(name, {}).items()
        if (covered := round(_covered(spans, since, since + stall_s), 2))
    }
    aborted = sum(
        txn.transactional_id == name
        and txn.told == ABORTED
        and txn.told_at is not None
        and since <= txn.told_at <= since + stall_s
        for txn in history.txns.values()
    )
    return Times(
        recovery,
        round(stall_s, 2),
        _cluster_stall(history),
        _fresh_stalls(history, since, since + stall_s),
        _fresh_took(history, since, since + stall_s),
        len(fenced),
        round(called_s, 2),
        round(longest_call_s, 2),
        waited_s,
        aborted,
    )


def _covered(spans: list[tuple[float, float]], since: float, until: float) -> float:
    """Return how much of a time lies within any of some spans."""
    covered, reached = 0.0, since
    for begin, end in sorted(spans):
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            covered, reached = covered + end - begin, end
    return covered


def _cluster_stall(history: History) -> float | None:
    commits = history.probes.get(OURS)
    if not commits:
        return None
    marks = [*commits, max(commits[-1], history.last)]
    return round(max(b - a for a, b in pairwise(marks)), 2)


def _fresh_took(history: History, since: float, until: float) -> dict[str, float]:
    """Return the longest time of the transactions that fresh producers committed in a time."""
    took = {
        client: [
            took
            for at, took in zip(commits, history.probes_took[client], strict=True)
            if since < at < until
        ]
        for client, commits in history.probes.items()
    }
    return {client: max(each) for client, each in took.items() if each}


def _fresh_stalls(history: History, since: float, until: float) -> dict[str, float]:
    stalls = {}
    for client, commits in history.probes.items():
        begin = min(max(since, commits[0]), until)  # before its first commit it says nothing
        marks = [begin, *(at for at in commits if begin < at < until), until]
        stalls[client] = round(max(b - a for a, b in pairwise(marks)), 2)
    return stalls
