"""The history of a row: every call of the writers and its outcome, and every record read.

Owns: the form of a line, writing it, and the account that the lines of one row add up to. Each
process appends to a file of its own. `t` is the machine's monotonic clock, which is the same in
every process, Java's `System.nanoTime` included.
Must not know: clients, faults, verdicts.

Lines of a writer: `{"t", "writer", "id", "txn", "call", "at"}`. `call` is "init", "begin", "write"
(with "records"), "offsets", "commit", "abort", "told", "close" if that raised, or "sends" for a
send that failed though the commit succeeded; `at` is "call", "ok" or "error" (with "error"). A
"told" line has the "outcome" that the application believes, an "ended" line the reason for a
producer's end (`endings`). In place of a call, an "input" line has a time of another kind: "did"
(`waits`), "since" and "until". Lines of a reader: `{"t", "reader", "topic", "partition"}` with
"offset" and "value" for a record, with "end" when the reader has read all that is committed, or
with the "error" of its client. Lines of the run: `{"t", "fault": "begin" or "end"}`. Lines of a
probe, at each commit: `{"t", "probe", "took"}`, with the name of its client, and the seconds that
the transaction took from the making of its producer on.
A value is `writer:txn:index:count`; a copied record has `:partition-offset` of its input as well.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from integration.chaos.waits import ABSENT, STARTED

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
# In place of a call of the producer: the workload's consumer.
INPUT = "input"

Place = tuple[str, int]
Line = dict[str, Any]


class Notes:
    """A history file that lines are appended to. A line is complete when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def note(self, **line: Any) -> None:
        # One write of the whole line, flushed: a killed process leaves no half a line behind.
        self._file.write(json.dumps({"t": round(time.monotonic(), 4), **line}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Value:
    """A record's value, taken apart."""

    writer: str
    txn: int
    index: int
    count: int
    source: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The transaction."""
        return self.writer, self.txn

    @classmethod
    def parse(cls, text: str) -> Value:
        writer, txn, index, count, *rest = text.split(":")
        return cls(writer, int(txn), int(index), int(count), rest[0] if rest else None)


@dataclass
class Txn:
    """A transaction in the words of its writer.

    Attributes:
        writer: the process.
        number: the writer's count.
        transactional_id: it was written with.
        began: the time of the begin call.
        records: topic, partition and value of each record in the order of the sends.
        commit_called: the time of the first commit call, or None.
        told: the outcome as the application believes it, or None.
        told_at: the time of that.
    """

    writer: str
    number: int
    transactional_id: str
    began: float
    records: list[tuple[str, int, str]] = field(default_factory=list)
    commit_called: float | None = None
    told: str | None = None
    told_at: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.writer, self.number


@dataclass
class Reading:
    """A reader's sight of one partition: records in order, and the times of its ends.

    Attributes:
        records: time, offset and value of each.
        ends: the count of records at each moment at which all that was committed had been read.
        last_end: the time of the last of these moments; minus infinity before the first one.
    """

    records: list[tuple[float, int, str]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    last_end: float = -math.inf

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of all records."""
        return frozenset(value for _, _, value in self.records)


@dataclass
class Init:
    """A call that initializes a producer, which takes the id from its owner.

    Attributes:
        writer: the process.
        transactional_id: the id.
        began: the time of the call.
        ended: the time of its end, or endless if its process was killed in it.
    """

    writer: str
    transactional_id: str
    began: float
    ended: float = math.inf


@dataclass
class History:
    """All lines of a row, added up.

    Attributes:
        calls: begin and end of each call that ended, by the id of its producer.
        init_calls: the calls that began to initialize a producer.
        waits: begin and end of the times outside calls (`waits`), by the id of the producer and by
            their kind.
        probes: the commits of fresh producers, by their client.
        probes_took: how long each of these transactions took.
        begun: how many producers each process has initialized.
        ended: the lines about the ends of producers.
    """

    txns: dict[tuple[str, int], Txn] = field(default_factory=dict)
    readers: dict[str, dict[Place, Reading]] = field(default_factory=dict)
    fault: dict[str, float] = field(default_factory=dict)
    errors: list[Line] = field(default_factory=list)
    inits: list[float] = field(default_factory=list)
    init_calls: list[Init] = field(default_factory=list)
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    waits: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)
    probes_took: dict[str, list[float]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    ended: list[Line] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    copied: dict[str, int] = field(default_factory=dict)


def load(paths: Iterable[Path]) -> list[Line]:
    """Return the lines of several files by their times, without a last line that is not whole."""
    lines: list[Line] = []
    for path in paths:
        lines += map(json.loads, path.read_text("utf-8").split("\n")[:-1])
    return sorted(lines, key=lambda line: line["t"])


def add_up(lines: Iterable[Line]) -> History:
    """Return the account of some lines, which are in the order of their times."""
    history = History()
    readers: dict[str, dict[Place, Reading]] = defaultdict(lambda: defaultdict(Reading))
    under_way: dict[tuple[str, str], float] = {}
    for line in lines:
        if "reader" in line:
            _read(readers, line)
        elif "fault" in line:
            history.fault.setdefault(line["fault"], line["t"])
        elif "probe" in line:
            history.probes.setdefault(line["probe"], []).append(line["t"])
            history.probes_took.setdefault(line["probe"], []).append(line.get("took", 0.0))
        elif "copied" in line:
            history.copied.update(line["copied"])
        elif line["call"] == "ended":
            history.ended.append(line)
        elif line["call"] == INPUT:
            waits = history.waits.setdefault(line["id"], {})
            waits.setdefault(line["did"], []).append((line["since"], line["until"]))
            fault_at = history.fault.get("begin")
            if line["did"] == STARTED and fault_at is not None:
                waits.setdefault(ABSENT, []).append((fault_at, line["since"]))
        else:
            _called(history, under_way, line)
            _wrote(history, line)
    history.readers = {name: dict(places) for name, places in readers.items()}
    return history


def _read(readers: dict[str, dict[Place, Reading]], line: Line) -> None:
    reading = readers[line["reader"]][line["topic"], line["partition"]]
    if "end" in line:
        reading.ends.append(len(reading.records))
        reading.last_end = line["t"]
    elif "value" in line:
        reading.records.append((line["t"], line["offset"], line["value"]))


def _called(history: History, under_way: dict[tuple[str, str], float], line: Line) -> None:
    """Note a call that has ended. One of a killed process never does."""
    call = line["writer"], line["call"]
    if line["at"] == "call":
        under_way[call] = line["t"]
        if line["call"] == "init":
            history.init_calls.append(Init(line["writer"], line["id"], line["t"]))
    elif (began := under_way.pop(call, None)) is not None:
        history.calls.setdefault(line["id"], []).append((began, line["t"]))
        if line["call"] == "init":
            last = (each for each in reversed(history.init_calls) if each.writer == line["writer"])
            next(last).ended = line["t"]


def _wrote(history: History, line: Line) -> None:
    history.first = history.first or line["t"]
    history.last = line["t"]
    if line["at"] == "error":
        history.errors.append(line)
    if line["call"] == "init":
        if line["at"] == "ok":
            history.inits.append(line["t"])
            history.begun[line["writer"]] += 1
        return
    if line["call"] == "close":
        return
    key = line["writer"], line["txn"]
    if key not in history.txns:
        history.txns[key] = Txn(*key, line["id"], line["t"])
    txn = history.txns[key]
    match line["call"], line["at"]:
        case "write", "call":
            txn.records += [(topic, place, value) for topic, place, value in line["records"]]
        case "commit", "call":
            txn.commit_called = txn.commit_called or line["t"]
        case "told", _:
            txn.told, txn.told_at = line["outcome"], line["t"]
