"""One row, played: a topic, writers and a reader, the fault, the last read, the checks.

Must not know: the plan's order, the table.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from integration.chaos.checks import Finding, check, times
from integration.chaos.endings import endings
from integration.chaos.history import History, Notes, add_up, load
from integration.chaos.job import Job
from integration.chaos.plan import BANK, COPY, ROLLING, TAKEOVER, Row
from integration.chaos.probe import COMMIT as PROBES
from integration.chaos.probe import Probe
from integration.chaos.sight import Beside, blind_spot, fill, read_all, wait_until_settled
from integration.chaos.strikes import AWAY_S, Scene, fault, held_s
from integration.chaos.writers import Command, Writers
from txnproducer import TopicPartition, admin
from txnproducer.testing import EmbeddedKafka

Watch = Callable[[Callable[[], list[int]]], object]
PARTITIONS, INPUTS = 4, 4000
# Enough for a start, the longest fault that is held, and a while after it.
WRITE_S, LONG_WRITE_S, ROLLING_WRITE_S = 24.0, 36.0, 55.0
AFTER_S = 3.0
BEFORE_S, SETTLE_S, READ_S = 3.0, 30.0, 20.0
LAST_CALLS_S = 30.0
NO_TIME_LEFT = "the row had no time left after its fault"
_FIRST_COMMITS, _FIRST_S = 3, 15.0


@dataclass
class Played:
    """The outcome of a row.

    Attributes:
        row: its name.
        outcomes: how many transactions were told committed, aborted, unknown, or nothing because
            their process ended.
        wrong: the findings by their kinds.
        findings: the first texts of each.
        errors: the calls that raised, by call and class of error.
        victim: the broker or process that was struck.
        producers: how many producers were initialized.
        hung: how many processes did not end by themselves.
        recovery_s: from the fault to the first commit begun after it.
        stall_s: the longest time without a commit.
        cluster_stall_s: the longest time without a commit of our probe's fresh producers.
        fresh_stalls_s: the longest part of `stall_s` without a commit of a probe's fresh
            producers, by their client.
        fresh_took_s: the longest transaction of these within `stall_s`, likewise.
        fenced: commits that were refused as fenced meanwhile.
        called_s: how much of `stall_s` a producer of that id was in a call.
        longest_call_s: the longest of these calls.
        waited_s: how much of `stall_s` its writer was busy otherwise, by kind (`waits`).
        aborted_in_stall: how many transactions of that id were aborted within `stall_s`.
        endings: why producers ended before the row did, or None if the client's driver notes no
            ends.
        seconds: the row took, without the start of the cluster.
        failed: why the row could not be played, or nothing.
    """

    row: str
    outcomes: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    victim: str = ""
    producers: int = 0
    hung: int = 0
    recovery_s: float | None = None
    stall_s: float = 0.0
    cluster_stall_s: float | None = None
    fresh_stalls_s: dict[str, float] | None = None
    fresh_took_s: dict[str, float] | None = None
    fenced: int = 0
    called_s: float | None = None
    longest_call_s: float | None = None
    waited_s: dict[str, float] | None = None
    aborted_in_stall: int | None = None
    endings: list[dict[str, Any]] | None = None
    seconds: float = 0.0
    failed: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def play(
    kafka: EmbeddedKafka,
    row: Row,
    command: Command,
    folder: Path,
    watch: Watch,
    more_s: float = 0.0,
) -> Played:
    """Play a row on a running cluster.

    Args:
        kafka: the cluster, with links if the fault needs them.
        row: the row.
        command: returns the command of a writer.
        folder: for histories; it is empty.
        watch: called with the processes that are clients once they exist: a function that returns
            their ids.
        more_s: seconds that the writers write above the usual.
    """
    began = time.monotonic()
    played = Played(row.name)
    label = f"{folder.name}-{int(began * 1000) % 10**9}"
    topics = [f"{label}-one", f"{label}-two"] if row.workload == BANK else [f"{label}-one"]
    probed = {client: [f"{topic}-{client}" for topic in topics] for client in PROBES}
    for topic in itertools.chain(topics, *probed.values()):
        kafka.create_topic(topic, PARTITIONS, config={"min.insync.replicas": "2"})
    servers = kafka.bootstrap_servers
    source = f"{label}-source" if row.workload == COPY else ""
    if source:
        kafka.create_topic(source, PARTITIONS)
        fill(servers, source, PARTITIONS, INPUTS)
    until = time.monotonic() + _write_s(row) + more_s
    jobs = _jobs(row, servers, label, topics, source, until)
    writers = Writers(jobs, command, folder)
    beside = Beside(servers, topics, PARTITIONS, folder / "beside.jsonl")
    notes = Notes(folder / "run.jsonl")
    beside.start()
    writers.start()
    probes = [Probe(jobs[0], client, probed[client], folder) for client in PROBES]
    watch(lambda: [*writers.pids, *(probe.pid for probe in probes)])
    try:
        _wait_for_commits(writers)
        scene = Scene(kafka, row, topics[0], jobs[0].transactional_id, jobs[0].group, writers)
        notes.note(fault="begin")
        with fault(scene) as played.victim:
            time.sleep(held_s(row.fault))  # the length of the fault is part of the row
        notes.note(fault="end")
        if time.monotonic() > until - AFTER_S:
            played.failed = NO_TIME_LEFT
        time.sleep(max(0.0, until - time.monotonic()))  # the rest of the row shows the recovery
    except Exception as error:  # noqa: BLE001 - the row says so, and the next one is played
        played.failed = f"{type(error).__name__}: {error}"[:300]
    finally:
        played.hung = writers.finish(until + LAST_CALLS_S)
        for probe in probes:
            probe.stop()
        beside.stop()
        notes.close()
    try:
        open_ones = wait_until_settled(servers, topics, PARTITIONS, SETTLE_S)
        if source:
            _note_copied(servers, jobs[0].group, source, folder)
        unread = read_all(servers, topics, PARTITIONS, folder / "final.jsonl", READ_S)
    except Exception as error:  # noqa: BLE001 - as above
        played.failed = played.failed or f"{type(error).__name__}: {error}"[:300]
        return played
    if open_ones or unread:
        played.failed = played.failed or f"still open: {open_ones}; not read: {unread}"
    history = add_up(load(sorted(folder.glob("*.jsonl"))))
    if unseen := beside.failure or blind_spot(history):
        played.failed = played.failed or f"the reader beside the writers was blind: {unseen}"
    _judge(played, history)
    played.seconds = round(time.monotonic() - began, 1)
    return played


def _write_s(row: Row) -> float:
    if row.fault == ROLLING:
        return ROLLING_WRITE_S
    return LONG_WRITE_S if held_s(row.fault) > AWAY_S else WRITE_S


def _jobs(
    row: Row, servers: str, label: str, topics: list[str], source: str, until: float
) -> list[Job]:
    names = ["a"] if row.workload not in (BANK, TAKEOVER, COPY) else ["a", "b"]
    return [
        Job(
            client=row.client,
            servers=servers,
            # Those who take the id from each other have one; all others have their own.
            transactional_id=label if row.workload == TAKEOVER else f"{label}-{name}",
            writer=name,
            workload=row.workload,
            topics=topics,
            partitions=PARTITIONS,
            until=until,
            history="",
            source=source,
            group=f"{label}-group",
        )
        for name in names
    ]


def _wait_for_commits(writers: Writers) -> None:
    """Wait until the writers have committed some transactions, and then a moment longer."""
    deadline = time.monotonic() + _FIRST_S
    while time.monotonic() < deadline:
        told = Counter(
            line.get("outcome") for line in load(writers.histories) if line["call"] == "told"
        )
        if told["committed"] >= _FIRST_COMMITS:
            break
        time.sleep(0.3)  # reading the histories more often would take time from the writers
    time.sleep(BEFORE_S)  # the stall is compared with the time before the fault


def _note_copied(servers: str, group: str, source: str, folder: Path) -> None:
    places = [TopicPartition(source, partition) for partition in range(PARTITIONS)]
    offsets = admin.committed_offsets(servers, [group], partitions=places)[group]
    notes = Notes(folder / "group.jsonl")
    notes.note(copied={str(place.partition): found.offset for place, found in offsets.items()})
    notes.close()


def _judge(played: Played, history: History) -> None:
    findings = check(history)
    played.wrong = dict(Counter(finding.kind for finding in findings))
    played.findings = _firsts(findings)
    played.outcomes = _outcomes(history)
    played.errors = dict(
        Counter(f"{line['call']}: {line['error'].split(':')[0]}" for line in history.errors)
    )
    played.producers = len(history.inits)
    figures = times(history)
    played.recovery_s, played.stall_s = figures.recovery_s, figures.stall_s
    played.cluster_stall_s, played.fenced = figures.cluster_stall_s, figures.fenced
    played.fresh_stalls_s = figures.fresh_stalls_s
    played.fresh_took_s = figures.fresh_took_s
    played.called_s, played.aborted_in_stall = figures.called_s, figures.aborted
    played.longest_call_s = figures.longest_call_s
    played.waited_s = figures.waited_s
    played.endings = endings(history)


def _outcomes(history: History) -> dict[str, int]:
    return dict(Counter(txn.told or "not told" for txn in history.txns.values()))


def _firsts(findings: list[Finding]) -> list[str]:
    """Return the first three texts of each kind."""
    seen: Counter[str] = Counter()
    texts = []
    for finding in findings:
        seen[finding.kind] += 1
        if seen[finding.kind] <= 3:
            texts.append(f"{finding.kind}: {finding.text}")
    return texts
