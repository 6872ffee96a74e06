"""The short form of `make chaos-spark`: some of five faults, and tests of its checks."""

from __future__ import annotations

import pytest

from integration.readers import Read
from integration.spark_chaos import page
from integration.spark_chaos.__main__ import SHORT
from integration.spark_chaos.checks import Count, Poller, count, value_of
from integration.spark_chaos.faults import BY_NAME, FAULTS
from integration.spark_chaos.gates import FaultError, Gate, Gatekeeper
from integration.spark_chaos.results import Result, append, load
from integration.spark_chaos.run import run
from integration.spark_chaos.stage import Stage
from tests.turns import of_this_turn

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


# None of the five kills a broker, so that one is enough.
@pytest.mark.slow("runs on a standalone Spark")
def test_each_row_is_written_exactly_once_under_every_fault():
    expected = {
        ("executor-after-commit", "partition"): ("exact", ""),
        ("deleted-checkpoint", "partition"): ("refused", "LedgerError"),
        ("zombie", "batch"): ("exact", ""),
        ("driver-after-end", "batch"): ("exact", ""),
        ("driver-after-decision", "prepared"): ("exact", ""),
    }
    assert set(expected) == set(SHORT)
    played = of_this_turn(SHORT)
    with Stage(nodes=1) as stage:
        results = [run(stage, BY_NAME[name], writer, 1, "test") for name, writer in played]
    outcomes = {(each.fault, each.writer): (each.outcome, each.text) for each in results}
    assert outcomes == {each: expected[each] for each in played}
    assert all(each.passes for each in results if each.writer == "batch")


# --- the checks ----------------------------------------------------------------------------------

ROWS = [value_of(batch, number, 20) for batch in range(2) for number in range(4)]
READS = [Read(at % 2, at // 2, None, row.encode()) for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        (READS, Count(8, 0, 0)),
        (READS[1:], Count(8, 1, 0)),
        ([*READS, READS[0], READS[0]], Count(8, 0, 2)),
        ([*READS[1:], READS[1]], Count(8, 1, 1)),
        ([*READS, Read(0, 9, None, b"another")], Count(8, 0, 0, 1)),
    ],
)
def test_rows_that_are_lost_doubled_or_foreign_are_counted(reads, found):
    assert count(ROWS, reads) == found
    assert found.is_exact is (reads is READS)


@pytest.mark.parametrize(
    ("seen", "torn"),
    [
        ([[], READS], []),
        ([READS[:4], READS], []),  # one batch before the other
        ([[read for read in READS[:4] if read.partition == 0]], []),  # one partition first
        ([READS[:3]], ["partition 1, batch 0: 1 of 2 rows"]),
        ([READS[:4], [*READS, READS[0]]], ["partition 0, batch 0: 3 of 2 rows"]),
    ],
)
def test_a_torn_batch_that_a_reader_has_seen_is_reported(seen, torn):
    poller = Poller("nowhere", "topic")
    for reads in seen:
        poller.saw(reads)
    assert poller.torn(READS) == torn
    assert poller.passes == len(seen)


def test_a_gate_holds_up_the_first_alone(tmp_path):
    keeper = Gatekeeper(tmp_path)
    note = Gate("one", "event", 3, partition=1, action="note")
    hook = keeper.hook(note, Gate("two", "event", 3, action="raise"))
    hook("event", {"batch_id": 2, "partition": 1})
    hook("other", {"batch_id": 3, "partition": 1})
    assert not keeper.has_come("one")
    hook("event", {"batch_id": 3, "partition": 1})
    assert keeper.await_arrival("one", 1).partition == 1
    with pytest.raises(FaultError):
        hook("event", {"batch_id": 3, "partition": 1})
    hook("event", {"batch_id": 3, "partition": 1})


# --- the page ------------------------------------------------------------------------------------


def result(fault, writer, seed, outcome="exact", **more):
    return Result("abc", fault, writer, seed, outcome, 1.0, 100, **more)


def test_the_page_shows_every_fault_and_the_runs_that_are_missing(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"
    for each in (
        result("zombie", "partition", 1, "failed"),
        result("zombie", "partition", 1),
        result("zombie", "batch", 1, "wrong", lost=2, doubled=2),
        result("zombie", "plain", 1, "wrong", doubled=30),
        result("speculation", "batch", 1, "refused", text="SinkError"),
    ):
        append(each, path)
    made = list(page.lines(page.newest(load(path))))
    assert "3 runs of the sink, 1 exact, 1 refused as they had to be, 1 wrong, 0 failed" in made[0]
    rows = {fault.name: next(line for line in made if fault.text in line) for fault in FAULTS}
    assert "1 exact" in rows["zombie"]
    assert "1 wrong" in rows["zombie"]
    assert "1 runs: of 100 rows 0 lost, 30 doubled" in rows["zombie"]
    assert "1 refused (`SinkError`)" in rows["speculation"]
    assert rows["leader"].count("not run") == 5
    assert [each.strip() for each in rows["late-attempt"].split("|")[2:-1]] == [
        "",
        "",
        "not run",
        "",
        "",
    ]
    shown = page.put(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", made)
    assert "old" not in shown
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")
    assert page.put(shown, made) == shown
