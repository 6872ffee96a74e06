"""The checker finds each anomaly in a history made by hand, and nothing in one that is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.chaos.checks import (
    DUPLICATE,
    FALSE_OUTCOME,
    G0,
    G1A,
    G1B,
    KINDS,
    LOST,
    ORDER,
    STRAY,
    TORN,
    check,
    times,
)
from integration.chaos.history import Notes, add_up, load
from integration.chaos.plan import NEUTRAL, OURS
from integration.chaos.probe import alike
from txnproducer import admin

Line = dict[str, Any]


def written(txn: int, at: float, ends: str = "committed", writer: str = "a") -> list[Line]:
    """Return a transaction's lines. It writes two records to each of two partitions."""
    who = {"writer": writer, "id": "the id", "txn": txn}
    records = [["t", i % 2, f"{writer}:{txn}:{i}:4"] for i in range(4)]
    lines: list[Line] = [
        {"t": at, **who, "call": "begin", "at": "call"},
        {"t": at + 0.1, **who, "call": "write", "at": "call", "records": records},
    ]
    if ends != "aborted":
        lines.append({"t": at + 0.2, **who, "call": "commit", "at": "call"})
    if ends == "refused":
        lines.append({"t": at + 0.3, **who, "call": "commit", "at": "error", "error": "E"})
    told = {"refused": "aborted"}.get(ends, ends)
    if ends != "killed":
        lines.append({"t": at + 0.4, **who, "call": "told", "at": "ok", "outcome": told})
    return lines


def seen(places: dict[int, list[str]], at: float = 90.0, reader: str = "final") -> list[Line]:
    """Return the lines of a reader that has read all there is."""
    lines: list[Line] = []
    for partition, values in places.items():
        who = {"t": at, "reader": reader, "topic": "t", "partition": partition}
        lines += [{**who, "offset": i, "value": value} for i, value in enumerate(values)]
        lines.append({**who, "end": True})
    return lines


def kinds(*lines: Line) -> set[str]:
    ordered = sorted(lines, key=lambda line: line["t"])
    return {finding.kind for finding in check(add_up(ordered))}


ONE = {0: ["a:1:0:4", "a:1:2:4"], 1: ["a:1:1:4", "a:1:3:4"]}
TWO = {0: ["a:2:0:4", "a:2:2:4"], 1: ["a:2:1:4", "a:2:3:4"]}
BOTH = {place: ONE[place] + TWO[place] for place in ONE}
EMPTY: dict[int, list[str]] = {0: [], 1: []}


@pytest.mark.parametrize(
    ("ends", "places"),
    [
        ("committed", ONE),
        ("aborted", EMPTY),
        ("refused", EMPTY),
        ("unknown", ONE),
        ("unknown", EMPTY),
        ("killed", ONE),
        ("killed", EMPTY),
    ],
)
def test_a_history_that_is_right_has_no_finding(ends: str, places: dict[int, list[str]]) -> None:
    assert kinds(*written(1, 1.0, ends), *seen(places), *seen(places, 80.0, "r1")) == set()


def test_two_transactions_in_order_have_no_finding() -> None:
    assert kinds(*written(1, 1.0), *written(2, 2.0), *seen(BOTH)) == set()


def test_an_aborted_read_is_found() -> None:
    assert kinds(*written(1, 1.0, "aborted"), *seen(ONE)) == {G1A}


def test_an_aborted_read_of_a_concurrent_reader_is_found() -> None:
    lines = [*written(1, 1.0, "aborted"), *seen(EMPTY), *seen(ONE, 5.0, "r1")]
    assert kinds(*lines) == {G1A}


def test_a_read_before_the_commit_was_called_is_found() -> None:
    assert kinds(*written(1, 1.0), *seen(ONE), *seen(ONE, 1.15, "r1")) == {G1A}


def test_an_intermediate_read_is_found() -> None:
    half = {0: ONE[0][:1], 1: ONE[1]}
    assert kinds(*written(1, 1.0), *seen(ONE), *seen(half, 5.0, "r1")) == {G1B}


def test_a_reader_that_has_not_read_to_the_end_may_have_seen_a_part() -> None:
    half = [line for line in seen({0: ONE[0][:1]}, 5.0, "r1") if "end" not in line]
    assert kinds(*written(1, 1.0), *seen(ONE), *half) == set()


def test_a_lost_write_is_found() -> None:
    assert kinds(*written(1, 1.0), *seen(EMPTY)) == {LOST}


@pytest.mark.parametrize("ends", ["committed", "unknown", "killed", "refused"])
def test_a_torn_transaction_is_found(ends: str) -> None:
    assert kinds(*written(1, 1.0, ends), *seen({0: ONE[0], 1: []})) == {TORN}


def test_a_record_that_is_there_twice_is_found() -> None:
    assert DUPLICATE in kinds(*written(1, 1.0), *seen({0: [*ONE[0], ONE[0][1]], 1: ONE[1]}))


def test_records_of_a_transaction_in_another_order_are_found() -> None:
    assert kinds(*written(1, 1.0), *seen({0: ONE[0][::-1], 1: ONE[1]})) == {ORDER}


def test_a_transaction_before_one_that_had_ended_when_it_began_is_found() -> None:
    turned = {place: TWO[place] + ONE[place] for place in ONE}
    assert kinds(*written(1, 1.0), *written(2, 2.0), *seen(turned)) == {ORDER}


def test_a_cycle_of_writes_is_found_where_real_time_gives_no_order() -> None:
    lines = [*written(1, 1.0, "unknown"), *written(2, 1.05, "unknown", "b")]
    two = {place: [value.replace("a:", "b:") for value in TWO[place]] for place in TWO}
    assert kinds(*lines, *seen({0: ONE[0] + two[0], 1: two[1] + ONE[1]})) == {G0}
    assert kinds(*lines, *seen({0: ONE[0] + two[0], 1: ONE[1] + two[1]})) == set()


def test_a_false_outcome_is_found() -> None:
    assert kinds(*written(1, 1.0, "refused"), *seen(ONE)) == {FALSE_OUTCOME}


def test_a_record_that_no_client_wrote_is_found() -> None:
    assert STRAY in kinds(*written(1, 1.0), *seen({0: [*ONE[0], "z:9:0:1"], 1: ONE[1]}))
    assert STRAY in kinds(*written(1, 1.0), *seen({0: ONE[0], 1: [*ONE[1], "a:1:0:4"]}))


def copied(txn: int, source: str) -> list[Line]:
    lines = written(txn, float(txn))
    lines[1]["records"] = [["t", 0, f"a:{txn}:0:1:{source}"]]
    return lines


def test_an_input_that_was_copied_twice_is_found() -> None:
    values = {0: ["a:1:0:1:0-0", "a:2:0:1:0-0"]}
    lines = [*copied(1, "0-0"), *copied(2, "0-0"), *seen(values)]
    assert kinds(*lines, {"t": 95.0, "copied": {"0": 1}}) == {DUPLICATE}


def test_an_input_that_the_group_has_passed_without_a_copy_is_found() -> None:
    values = {0: ["a:1:0:1:0-0", "a:2:0:1:0-1"]}
    lines = [*copied(1, "0-0"), *copied(2, "0-1"), *seen(values)]
    assert kinds(*lines, {"t": 95.0, "copied": {"0": 2}}) == set()
    assert kinds(*lines, {"t": 95.0, "copied": {"0": 3}}) == {LOST}


@pytest.mark.parametrize("offsets", [{"0": 1}, {"1": 2}, {}])
def test_a_copy_without_the_offset_of_its_input_is_torn(offsets: dict[str, int]) -> None:
    values = {0: ["a:1:0:1:0-0", "a:2:0:1:0-1"]}
    lines = [*copied(1, "0-0"), *copied(2, "0-1"), *seen(values)]
    assert TORN in kinds(*lines, {"t": 95.0, "copied": offsets})


def test_each_kind_has_a_test_that_shows_it() -> None:
    shown = {G0, G1A, G1B, LOST, TORN, DUPLICATE, ORDER, FALSE_OUTCOME, STRAY}
    assert shown == set(KINDS)


def test_recovery_counts_from_the_fault_and_the_stall_is_the_longest_gap() -> None:
    lines = [*written(1, 1.0), {"t": 2.0, "fault": "begin"}, *written(2, 9.0), *written(3, 10.0)]
    figures = times(add_up(lines))
    assert figures.recovery_s == pytest.approx(7.4)
    assert figures.stall_s == pytest.approx(8.0)


def test_the_id_that_stood_still_longest_counts() -> None:
    two = [{**line, "id": "another"} for line in [*written(1, 1.0), *written(2, 5.0)]]
    one = [{**line, "writer": "b"} for txn in range(9) for line in written(txn, txn / 2)]
    lines = [*one, *two, {"t": 2.0, "fault": "begin"}]
    figures = times(add_up(sorted(lines, key=lambda line: line["t"])))
    assert figures.recovery_s == pytest.approx(3.4)
    assert figures.stall_s == pytest.approx(4.0)


def test_the_commits_that_another_writer_of_the_id_fenced_in_the_longest_stall_are_counted() -> (
    None
):
    failed = {"writer": "a", "id": "the id", "call": "commit", "at": "error"}
    errors = [
        {**failed, "t": at, "txn": number, "error": error}
        for number, (at, error) in enumerate(
            [
                (0.9, "ProducerFencedError: before"),
                (3.0, "InvalidProducerEpochError: within"),
                (4.0, "KafkaTimeoutError: another error"),
                (5.0, "ProducerFencedError: within"),
            ],
            start=10,
        )
    ]
    lines = [*written(1, 1.0), *written(2, 9.0), *errors]
    assert times(add_up(sorted(lines, key=lambda line: line["t"]))).fenced == 2


def called(writer: str, call: str, began: float, ended: float | None) -> list[Line]:
    line = {"writer": writer, "id": "the id", "txn": 9, "call": call}
    end = [] if ended is None else [{**line, "t": ended, "at": "error", "error": "any"}]
    return [{**line, "t": began, "at": "call"}, *end]


def test_the_time_in_calls_within_the_longest_stall_counts_once() -> None:
    calls = [
        called("a", "commit", 3.0, 4.0),
        called("b", "init", 3.5, 5.0),  # half of it beside the other writer's call
        called("a", "offsets", 7.0, 7.5),
        called("b", "abort", 8.0, None),  # its process was killed
    ]
    own = times(add_up([*written(1, 1.0), *written(2, 9.0)])).called_s
    lines = [*written(1, 1.0), *written(2, 9.0), *(line for each in calls for line in each)]
    figures = times(add_up(sorted(lines, key=lambda line: line["t"])))
    assert figures.called_s == pytest.approx(own + 2.5)
    assert figures.longest_call_s == pytest.approx(1.5)


def test_an_id_that_never_began_a_transaction_stood_still_and_has_not_recovered() -> None:
    never = {"t": 1.0, "writer": "b", "id": "another", "txn": 0, "call": "init", "at": "call"}
    lines = [{"t": 0.5, "fault": "begin"}, never, *written(1, 1.0), *written(2, 9.0)]
    figures = times(add_up(sorted(lines, key=lambda line: line["t"])))
    assert figures.recovery_s is None
    assert figures.stall_s == pytest.approx(8.4)


def test_the_time_with_a_consumer_within_the_longest_stall_is_counted_by_its_kind() -> None:
    line = {"writer": "a", "id": "the id", "txn": 9, "call": "input", "at": "ok"}
    spans = [("poll", 0.2, 0.9), ("poll", 3.0, 4.0), ("rewind", 4.0, 6.5), ("poll", 7.0, 12.0)]
    waits = [{**line, "t": b, "did": did, "since": a, "until": b} for did, a, b in spans]
    waits.append({**waits[2], "id": "another", "since": 1.0})
    lines = [*written(1, 1.0), *written(2, 9.0), *waits]
    history = add_up(sorted(lines, key=lambda line: line["t"]))
    assert times(history).waited_s == pytest.approx({"poll": 3.4, "rewind": 2.5})
    # It is no call of a producer, and no transaction.
    plain = add_up(written(1, 1.0) + written(2, 9.0))
    assert (history.txns, history.calls) == (plain.txns, plain.calls)
    assert (history.first, history.last) == (plain.first, plain.last)


def test_aborted_transactions_within_the_longest_stall_are_counted() -> None:
    ends = [(10, 0.5, "aborted"), (11, 3.0, "aborted"), (12, 4.0, "unknown"), (13, 5.0, "aborted")]
    told = [line for txn, at, outcome in ends for line in written(txn, at, outcome)]
    lines = [*written(1, 1.0), *written(2, 9.0), *told]
    assert times(add_up(sorted(lines, key=lambda line: line["t"]))).aborted == 2


def test_a_transaction_that_was_open_at_the_fault_is_no_recovery() -> None:
    lines = [*written(1, 1.9), {"t": 2.0, "fault": "begin"}]
    assert times(add_up(sorted(lines, key=lambda line: line["t"]))).recovery_s is None


@pytest.mark.parametrize(
    ("commits", "stall_s"),
    [((), None), ((1.0, 1.5, 4.5, 9.3), 4.8), ((1.0, 2.0), 7.4), ((2.0, 20.0), 18.0)],
)
def test_the_cluster_stood_still_for_as_long_as_no_fresh_producer_committed(
    commits: tuple[float, ...], stall_s: float | None
) -> None:
    probes = [{"t": at, "probe": OURS} for at in commits]
    # Another client's fresh producers commit all the time.
    probes += [{"t": at / 2, "probe": NEUTRAL} for at in range(40)]
    lines = sorted([*written(1, 1.0), *written(2, 9.0), *probes], key=lambda line: line["t"])
    assert times(add_up(lines)).cluster_stall_s == (
        None if stall_s is None else pytest.approx(stall_s)
    )


def test_a_fresh_producers_transaction_counts_if_it_ended_within_the_longest_stall() -> None:
    took = [(1.0, 9.9), (3.0, 3.0), (4.0, 4.0), (5.0, 2.0), (9.7, 9.9)]
    probes = [{"t": at, "probe": OURS, "took": each} for at, each in took]
    probes.append({"t": 0.5, "probe": NEUTRAL, "took": 0.2})
    lines = sorted([*written(1, 1.0), *written(2, 9.0), *probes], key=lambda line: line["t"])
    assert times(add_up(lines)).fresh_took_s == {OURS: 4.0}


@pytest.mark.parametrize(
    ("commits", "stall_s"),
    [
        ((1.0, 9.0), 7.6),
        ((0.5, 20.0), 8.0),  # only what lies within the stall
        ((0.1, 3.0, 8.0), 5.0),
        ((4.0, 6.0), 3.4),  # it began within
        ((15.0, 17.0), 0.0),
    ],
)
def test_each_probe_stood_still_for_as_long_as_none_of_its_producers_committed_in_the_stall(
    commits: tuple[float, ...], stall_s: float
) -> None:
    probes = [{"t": at, "probe": NEUTRAL} for at in commits]
    probes += [{"t": at / 2, "probe": OURS} for at in range(40)]
    lines = sorted([*written(1, 1.0), *written(2, 9.0), *probes], key=lambda line: line["t"])
    assert times(add_up(lines)).fresh_stalls_s == pytest.approx({NEUTRAL: stall_s, OURS: 0.5})


def test_the_ids_of_the_probe_have_the_coordinator_of_the_writer() -> None:
    ids = alike("orders", "probe", 10, 50)
    assert not set(ids) & set(alike("orders", "another-probe", 10, 50)), "they would take the ids"
    buckets = {(admin.java_hash(each) & 0x7FFFFFFF) % 50 for each in [*ids, "orders"]}
    assert (len(set(ids)), len(buckets), "orders" in ids) == (10, 1, False)


def test_a_line_that_a_killed_process_left_half_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    notes = Notes(path)
    notes.note(call="begin")
    notes.close()
    with path.open("a") as file:
        file.write(json.dumps({"t": 1.0, "call": "commit"})[:9])
    assert [line["call"] for line in load([path])] == ["begin"]
