"""`python -m integration.chaos.page`: write docs/clusters.md from the rows that were played.

The rows are kept beside this module, in rows.jsonl. `--add results/clusters.jsonl` takes rows of a
campaign into it. Of a row that was played twice the last one counts, with the stalls of those
before it; a row that could not be played is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from integration.benchmarks.markdown import table
from integration.chaos.endings import is_unchecked, told
from integration.chaos.plan import CLIENTS, FAULTS, OURS, PLAIN, cover, parts
from integration.chaos.reasons import BY_VERSION, COPIED, QUICKER, UNPROBED, is_probed_twice, why
from integration.chaos.versions import figures, medians

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("rows.jsonl")
PAGE = ROOT / "docs" / "clusters.md"

Line = dict[str, Any]

TITLE = "# Clusters under fault, beside the other clients"
MADE = "<!-- made by: python -m integration.chaos.page -->"
HEAD = (
    """Each client writes transactions to three brokers (Kafka 4.3.1, replication 3,
    `min.insync.replicas=2`) while one fault is made. Two readers at `read_committed` note
    every record, one beside the writers and one at the end. A checker then compares their
    records with the clients' own word for each transaction. It looks for aborted reads (G1a),
    intermediate reads (G1b), write cycles of one id (G0), lost writes, torn transactions,
    duplicates, records out of order, and outcomes told false.""",
    """`make chaos-clusters` plays the rows and goes on where it stopped. The plan has
    {planned} rows for each client: every fault with each target, workload and
    `transaction.version` that it can meet. This page shows the rows that were played, {played}
    of {all}, and no others.""",
    """All clients have the same time-outs: 5 s for a request, 15 s for a delivery and for a
    blocking call, 20 s for a transaction. One row is one run on a small, busy machine.
    Its writers begin transactions for 24, 36 or 55 s, according to the fault, and may take 30 s
    more for their last calls. {longer} The times of two clients may differ by chance.""",
    """Rows of txnproducer were played again, some after a change of it, some because other
    programs had loaded the machine: {newer} of its rows are of a version for which no other
    client's row was played. Its rows are of the producers at the commits {commits}; a newer one
    was not played. The last play counts. The list of every row has the stalls of earlier
    ones with the same version, which {again} rows have; those of older versions are not kept. The
    other clients' rows were played once, {unprobed} of them before there was a probe. The commits
    {joined} were joined into later ones, and are not in the history.""",
)
# Of rows, and of the figures of versions.json.
JOINED = ("e6db63e", "15c565c", "39b0654", "dc4898e")
BY_CLIENT = """"Unknown" counts transactions that ended with an error in the commit call which
    does not say, by the client's documentation, whether they are committed. (Ours asks then, by
    `resolve_outcome()`, and its answer counts.) "Not told" counts
    those that were open when their process was killed, hung, or left them to the next owner of
    the id. "Hung" counts processes that had not ended 30 s after the last transaction might
    begin."""
BY_FAULT = """The longest time for which a transactional id had no commit, in any row of the
    cell; in brackets, the number of rows. "Not recovered" are rows in which a process hung, or an
    id had no commit that began after the fault. SIGSTOP, partitions and slow links last 10 s; a
    slow link delays each part by 0.1 s each way. A partition lies between one broker and the two
    others, or between the clients and all brokers. A one-sided one loses the victim's words with
    version 2, and those of the others with version 1. Brokers that are killed or stopped start
    again after 3 s. The other brokers notice a dead one after 9 s."""
EVERY = """Times in seconds. Recovery counts from the fault to the first commit that was begun
    after it, of the id for which that took longest; the stall is as above. "Cluster" is the
    longest time in which no fresh producer of ours committed either; rows that were played
    before there was one have none."""
ROWS = """A row's name has the client, the fault, its target, the workload and the cluster's
    `transaction.version` at the start. Workloads: `plain` is one writer, with twelve records in
    a transaction. `bank` is two writers, and each transaction
    writes one record to each of two topics. `takeover` is two writers that take one id from each
    other, and leave a transaction open each time. `copy` is two members of a group that copy a
    topic with their offsets in the transaction, and that join and leave. Every fifth transaction
    is aborted. "Full disk" limits the
    size of a broker's files, for which Kafka ends that broker. "Version raised" raises
    `transaction.version` from 1 to 2 under load."""
REPLACED = """The rows of txnproducer in which a producer ended before the row did, and why.
    Two writers that take one id from each other end each other's producers, and a member that
    leaves its group closes its producer: these belong to the workload. A commit whose answers are
    lost for good ends its producer by the protocol. A cause that neither the workload nor the
    fault nor the protocol explains is printed in bold. A fence in a
    row of `takeover` counts as the other writer's only if that one's `init_transactions()`
    overlapped or ended between this producer's own and the fence. {left} of {all} rows have no
    line here: their producers served to the end."""
UNCHECKED = """In {count} rows, played earlier, each fence counts as the other writer's
    without this check."""
NOT_RECORDED = "not recorded"
# The causes of findings, where they were looked for.
NOTES = {
    "kafka-python": (
        """If another producer has taken its id, a broker answers INVALID_PRODUCER_EPOCH. The
        producer then asks for a new epoch by itself, and goes on. It drops the batches that were
        under way: their futures fail with `InvalidProducerEpochError`, and
        `commit_transaction()` returns without an error.""",
        """In the rows with an outcome told false, `commit_transaction()` raised and
        `abort_transaction()` after it as well. The driver took that for an abort then; it takes it
        for an unknown outcome now.""",
        """Batches that wait longer than `delivery_timeout_ms` for a leader expire: their futures
        fail with `KafkaTimeoutError`, and `commit_transaction()` returns without an error.""",
    ),
}
WORD = """A client is taken at the word of its commit call. Where the futures of its sends said
    otherwise, the list of every row has `sends`."""
WIDTH = 108
TOLD = ("committed", "aborted", "unknown", "not told")


def load(path: Path = DATA) -> list[Line]:
    """Return the rows that were played, in their order."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def merged(old: Sequence[Line], new: Sequence[Line]) -> list[Line]:
    """Return the rows with those that were played later in place of the earlier ones."""
    rows: dict[str, Line] = {}
    for line in (*old, *new):
        if not line["failed"]:
            before = rows.get(line["row"], line)
            rows[line["row"]] = line if before == line else _after(before, line)
    return sorted(rows.values(), key=_order)


def _after(before: Line, line: Line) -> Line:
    """Return a row with the stalls of its earlier plays by the same producer."""
    if before["commit"] != line["commit"]:
        return line
    return {**line, "earlier": [*before.get("earlier", ()), before["stall_s"]]}


def _order(line: Line) -> tuple[int, int, str]:
    client, fault = parts(line["row"])[:2]
    return CLIENTS.index(client), FAULTS.index(fault), line["row"]


def render(lines: Sequence[Line]) -> str:
    """Return the page."""
    return "\n".join(_page(lines)) + "\n"


def _text(text: str) -> Iterator[str]:
    """Return a paragraph's lines, with an empty one after it."""
    words = " ".join(text.split())
    yield from textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)
    yield ""


def _longer(lines: Sequence[Line]) -> str:
    """Return a sentence about the rows that took longer than a minute."""
    rows = [f"`{line['row']}` ({line['seconds']:.0f} s)" for line in lines if line["seconds"] > 60]
    if not rows:
        return "No row took longer than a minute."
    return f"Rows that took longer than a minute: {', '.join(rows)}."


def _page(lines: Sequence[Line]) -> Iterator[str]:
    planned = len(cover(CLIENTS[0]))
    yield from (TITLE, "", MADE, "")
    others = [line for client in CLIENTS if client != OURS for line in _of(lines, client)]
    theirs = {line["commit"] for line in others}
    for text in HEAD:
        yield from _text(
            text.format(
                planned=planned,
                played=len(lines),
                all=planned * len(CLIENTS),
                again=sum("earlier" in line for line in _of(lines, OURS)),
                commits=_commits(_of(lines, OURS)),
                joined=", ".join(JOINED),
                longer=_longer(lines),
                newer=sum(line["commit"] not in theirs for line in _of(lines, OURS)),
                unprobed=sum(line.get("cluster_stall_s") is None for line in others),
            )
        )
    yield from _text(ROWS)
    yield from ("## By client", "")
    yield from table(
        ("client", "version", "rows", *TOLD, "hung", "wrong"),
        [_client_row(lines, client) for client in CLIENTS],
    )
    yield ""
    yield from _text(BY_CLIENT)
    yield from ("## By fault", "")
    yield from _text(BY_FAULT)
    yield from table(
        ("fault", *CLIENTS),
        [[fault, *(_cell(_of(lines, client, fault)) for client in CLIENTS)] for fault in FAULTS],
    )
    yield from ("", "## Where another client was quicker", "")
    yield from _text(QUICKER)
    yield from _text(COPIED)
    if unprobed := sum(not is_probed_twice(line) for line in _of(lines, OURS)):
        yield from _text(UNPROBED.format(count=unprobed))
    yield from _by_version()
    yield from _quicker(lines)
    yield from ("", "## Why producers were replaced", "")
    ours = _of(lines, OURS)
    rows = [line for line in ours if _causes(line)]
    yield from _text(REPLACED.format(left=len(ours) - len(rows), all=len(ours)))
    if unchecked := sum(any(map(is_unchecked, line.get("endings") or ())) for line in ours):
        yield from _text(UNCHECKED.format(count=unchecked))
    yield from table(("row", "producers", "causes"), [_replaced(line) for line in rows])
    yield from ("", "## What was wrong", "")
    yield from _wrong(lines)
    yield from ("## Every row", "")
    yield from _text(EVERY)
    heads = (
        "row",
        "commit",
        "transactions",
        "recovery",
        "stall",
        "cluster",
        "earlier stalls",
        "producers",
        "calls that raised",
    )
    yield from table(heads, [_row(line) for line in lines])


def _of(lines: Sequence[Line], client: str, fault: str | None = None) -> list[Line]:
    named = ((line, parts(line["row"])) for line in lines)
    return [line for line, row in named if row[0] == client and fault in (None, row[1])]


def _by_version() -> Iterator[str]:
    yield from _text(BY_VERSION.format(commit=figures()["commit"]))
    yield from table(
        ("client", "version 1", "version 2"),
        [(client, f"{first:.2f} s", f"{second:.2f} s") for client, first, second in medians()],
    )
    yield ""


def _commits(lines: Sequence[Line]) -> str:
    """Return the commits of the producer that made some rows, each with their number."""
    counts = Counter(line["commit"] for line in lines).most_common()
    return ", ".join(f"{commit} ({count} rows)" for commit, count in counts)


def _client_row(lines: Sequence[Line], client: str) -> list[str]:
    rows = _of(lines, client)
    told: Counter[str] = Counter()
    for line in rows:
        told.update(line["outcomes"])
    versions = ", ".join(sorted({line["version"] for line in rows})) or "-"
    counts = [f"{told[name]:,}" for name in TOLD]
    hung = str(sum(line["hung"] for line in rows))
    wrong = str(sum(bool(line["wrong"]) for line in rows)) + " rows"
    return [client, versions, str(len(rows)), *counts, hung, wrong if rows else "-"]


def _cell(rows: Sequence[Line]) -> str:
    if not rows:
        return "not run"
    longest = f"{max(line['stall_s'] for line in rows):.1f} s"
    lost = sum(line["recovery_s"] is None or line["hung"] > 0 for line in rows)
    text = f"{longest} ({len(rows)})" + (f", {lost} not recovered" if lost else "")
    wrong = sum(bool(line["wrong"]) for line in rows)
    return text + (f", {wrong} wrong" if wrong else "")


def _wrong(lines: Sequence[Line]) -> Iterator[str]:
    bad = [line for line in lines if line["wrong"]]
    if not bad:
        yield "Nothing, in any row."
        yield ""
    for line in bad:
        counts = ", ".join(f"{count} {kind}" for kind, count in line["wrong"].items())
        yield f"* `{line['row']}`: {counts}. The first: `{line['findings'][0]}`."
    if not bad:
        return
    yield ""
    yield from _text(WORD)
    for client, notes in NOTES.items():
        rows = [line for line in bad if line["row"].startswith(client)]
        for note in notes if rows else ():
            yield from _text(f"{client} {rows[0]['version']}: {note}")


def _row(line: Line) -> list[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(line["outcomes"].items()))
    recovery = "none" if line["recovery_s"] is None else f"{line['recovery_s']:.1f}"
    errors = ", ".join(f"{count} `{name}`" for name, count in sorted(line["errors"].items()))
    name = f"`{line['row']}`"
    stall = f"{line['stall_s']:.1f}"
    earlier = ", ".join(f"{each:.1f}" for each in line.get("earlier", ())) or "-"
    times = [recovery, stall, _cluster(line), earlier]
    return [name, line["commit"], outcomes, *times, str(line["producers"]), errors]


def without_causes(lines: Sequence[Line]) -> list[str]:
    """Return the names of our rows that lack the reasons why their producers ended."""
    return [line["row"] for line in _of(lines, OURS) if _causes(line) == [NOT_RECORDED]]


def _causes(line: Line) -> list[str]:
    """Return why producers of a row ended before it did; nothing if none did."""
    workload = parts(line["row"])[3]
    if (endings := line.get("endings")) is None:
        writers = 1 if workload == PLAIN else 2
        return [NOT_RECORDED] if line["producers"] > writers else []
    counts: Counter[str] = Counter()
    for each in endings:
        counts[told(each, workload)] += each["count"]
    return [f"{count} times {cause}" for cause, count in counts.items()]


def _replaced(line: Line) -> list[str]:
    return [f"`{line['row']}`", str(line["producers"]), "; ".join(_causes(line))]


def _cluster(line: Line) -> str:
    found = line.get("cluster_stall_s")
    return "-" if found is None else f"{found:.1f}"


def _quicker(lines: Sequence[Line]) -> Iterator[str]:
    """Name each row of ours in which another client stood still for less time, and say why."""
    rows: dict[str, list[Line]] = {}
    for line in lines:
        rows.setdefault(line["row"].partition("/")[2], []).append(line)
    slower = 0
    for same in rows.values():
        ours = next((line for line in same if line["row"].startswith(OURS)), None)
        if ours is None:
            continue
        # One that hung, or never committed again, stood still for as long as its row went on.
        able = [line for line in same if line["recovery_s"] is not None and not line["hung"]]
        best = min(able, key=lambda line: line["stall_s"], default=ours)
        if ours["stall_s"] <= best["stall_s"]:
            continue
        slower += 1
        yield (
            f"* `{ours['row']}`: {ours['stall_s']:.2f} s, and {parts(best['row'])[0]}"
            f" {best['stall_s']:.2f} s. {why(ours, best)}"
        )
    if not slower:
        yield "There is none."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.chaos.page", description=__doc__)
    parser.add_argument("--add", type=Path, help="results of a campaign to take in")
    parser.add_argument(
        "--without-causes", action="store_true", help="only print the names of such rows of ours"
    )
    arguments = parser.parse_args()
    lines = load() if DATA.exists() else []
    if arguments.without_causes:
        print("\n".join(without_causes(lines)))
        return 0
    if arguments.add is not None:
        lines = merged(lines, load(arguments.add))
        DATA.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    PAGE.write_text(render(lines), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
