"""A row of the campaign says why its producers ended, and whether the protocol let them go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from integration.chaos import driver as module
from integration.chaos.campaign import main
from integration.chaos.clients import OPEN
from integration.chaos.driver import Driver
from integration.chaos.endings import endings, told
from integration.chaos.history import add_up, load
from integration.chaos.job import Job
from integration.chaos.page import NOT_RECORDED, render, without_causes
from integration.chaos.page import load as load_rows
from tests.test_chaos_driver import ScriptedClient

FENCED = "ProducerFencedError: a newer producer has taken over"


def line(call: str, at: str = "ok", writer: str = "a1", **more: Any) -> dict[str, Any]:
    return {"t": 1.0, "writer": writer, "id": "x", "txn": 0, "call": call, "at": at, **more}


def failed(during: str, error: str, verdict: str, writer: str = "a1") -> dict[str, Any]:
    more = {"why": "error", "during": during, "error": error, "verdict": verdict}
    return line("ended", "error", writer, **more)


def ends_of(*lines: dict[str, Any]) -> Any:
    return endings(add_up(lines))


def test_a_row_with_a_driver_that_notes_no_ends_has_no_causes():
    assert ends_of(line("init"), line("init")) is None


def test_the_end_of_the_row_is_no_cause():
    assert ends_of(line("init"), line("ended", why="end")) == []


def test_equal_causes_are_counted_and_keep_the_first_text():
    found = ends_of(
        line("init"),
        failed("commit", f"{FENCED} 1", "restart"),
        line("init"),
        failed("commit", f"{FENCED} 2", "restart"),
        line("init"),
        failed("abort", FENCED, "restart"),
    )
    assert [(each["during"], each["error"], each["count"]) for each in found] == [
        ("commit", f"{FENCED} 1", 2),
        ("abort", FENCED, 1),
    ]


def test_a_process_that_was_killed_has_a_successor_and_one_that_hung_has_none():
    killed = ends_of(
        line("init"), line("init", writer="a2"), line("ended", writer="a2", why="end")
    )
    assert killed == [{"why": "killed", "count": 1}]
    hung = ends_of(line("init"), line("ended", why="end"), line("init", writer="b1"))
    assert hung == [{"why": "hung", "count": 1}]


def test_a_producer_whose_initialization_failed_is_one_cause_and_no_killed_process():
    found = ends_of(
        failed("init", "KafkaTimeoutError: x", "again"), line("init"), line("ended", why="end")
    )
    assert [(each["why"], each["count"]) for each in found] == [("error", 1)]
    last = line("ended", writer="a2", why="end")
    killed = ends_of(
        failed("init", "KafkaTimeoutError: x", "again"),
        line("init"),
        line("init", writer="a2"),
        last,
    )
    assert [each["why"] for each in killed] == ["error", "killed"]


def init(writer: str, began: float, ended: float | None, at: str = "ok") -> list[dict[str, Any]]:
    call = {**line("init", "call", writer), "t": began}
    more = {"error": "KafkaTimeoutError: late"} if at == "error" else {}
    return [call] if ended is None else [call, {**line("init", at, writer, **more), "t": ended}]


@pytest.mark.parametrize(
    ("others", "is_taken"),
    [
        ([], False),
        (init("b1", 5.0, 6.0), True),
        (init("b1", 1.0, 2.4), True),  # it overlaps the producer's own
        (init("b1", 6.9, 9.0), True),  # it overlaps the fence
        (init("b1", 6.9, None), True),  # its process was killed in it
        (init("b1", 5.0, 6.0, "error"), True),  # it may have reached the coordinator
        (init("b1", 1.0, 1.9), False),  # the producer's own took the id later
        (init("b1", 7.1, 7.2), False),  # it came after the fence
        (init("a0", 5.0, 6.0), False),  # no other writer
        ([{**each, "id": "y"} for each in init("b1", 5.0, 6.0)], False),
    ],
)
@pytest.mark.parametrize("during", ["commit", "abort", "begin", "init"])
def test_a_fence_is_the_workload_s_only_if_the_other_writer_took_the_id_meanwhile(
    others: list[dict[str, Any]], is_taken: bool, during: str
) -> None:
    # The producer before it was made at 0.5, before the first calls of the other writer.
    before = [*init("a1", 0.5, 0.6), {**line("ended", why="turn"), "t": 0.9}]
    own = init("a1", 2.0, 2.5, "error" if during == "init" else "ok")
    fence = {**failed(during, FENCED, "restart"), "t": 7.0}
    lines = sorted([*before, *own, *others, fence], key=lambda each: each["t"])
    (ending,) = [each for each in ends_of(*lines) if each["why"] == "error"]
    says = told(ending, "takeover")
    assert ending["taken"] is is_taken
    assert says.startswith("the workload: `Prod" if is_taken else "**not explained**: `Prod")


def test_fences_with_and_without_another_writer_are_counted_apart() -> None:
    lines = [*init("a1", 1.0, 1.1), *init("b1", 2.0, 2.1)]
    lines.append({**failed("commit", FENCED, "restart"), "t": 3.0})
    lines += [*init("a1", 4.0, 4.1), {**failed("commit", FENCED, "restart"), "t": 5.0}]
    ended = {**line("ended", writer="b1", why="end"), "t": 6.0}
    found = ends_of(*lines, ended)
    assert [(each["taken"], each["count"]) for each in found] == [(True, 1), (False, 1)]


def test_the_page_counts_the_rows_whose_fences_were_not_checked() -> None:
    fence = failed("commit", FENCED, "restart") | {"count": 2}
    row = {**load_rows()[0], "row": "txnproducer/none/all/takeover/v1", "endings": [fence]}
    assert "In 1 rows, played earlier, each fence counts" in render([row])
    checked = {**row, "endings": [{**fence, "taken": True}, {"why": "turn", "count": 1}]}
    assert "each fence counts" not in render([checked])


@pytest.mark.parametrize(
    ("ending", "workload", "says"),
    [
        ({"why": "turn"}, "takeover", "the workload: a writer leaves"),
        ({"why": "member"}, "copy", "the workload: a member leaves"),
        ({"why": "signal"}, "plain", "the fault: SIGTERM"),
        ({"why": "killed"}, "bank", "the fault: its process was killed"),
        ({"why": "hung"}, "bank", "**its process hung**"),
        (
            failed("commit", FENCED, "restart"),
            "takeover",
            "the workload: `ProducerFenced",
        ),
        (failed("commit", FENCED, "restart"), "plain", "**not explained**: `ProducerF"),
        (
            failed("commit", "CommitOutcomeUnknownError: y", "unknown"),
            "plain",
            "the protocol: `CommitOutcomeUnknownError` in `commit`, since no answer said whether",
        ),
        (failed("write", "OddError: z", "restart"), "plain", "**not judged**: `OddError` in"),
        (failed("input", "OddError: z", "restart"), "copy", "the workload's consumer failed"),
    ],
)
def test_a_cause_says_whether_the_workload_the_fault_or_the_protocol_ended_the_producer(
    ending: dict[str, Any], workload: str, says: str
) -> None:
    assert told(ending, workload).startswith(says)


@pytest.mark.parametrize(
    ("fails", "during"), [({"commit": "restart"}, "commit"), ({"send": "unknown"}, "write")]
)
def test_the_driver_notes_the_error_that_ended_a_producer(
    fails: dict[str, Any], during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient(dict(fails), "unknown")
    monkeypatch.setitem(OPEN, "scripted", client)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    until = time.monotonic() + 60
    job = Job("scripted", "", "x", "a1", "plain", ["t"], 4, until, str(tmp_path / "a1.jsonl"))
    writer = Driver(job)
    monkeypatch.setattr(writer, "_goes_on", lambda: client.begun < 4)
    writer.run()
    (verdict,) = fails.values()
    cause = {"during": during, "error": f"ScriptedError: {verdict}", "verdict": verdict}
    assert endings(add_up(load([tmp_path / "a1.jsonl"]))) == [
        {"why": "error", **cause, "count": 1}
    ]


def test_the_driver_notes_that_a_signal_ended_its_work(tmp_path, monkeypatch):
    client = ScriptedClient({}, "unknown")
    monkeypatch.setitem(OPEN, "scripted", client)
    until = time.monotonic() + 60
    job = Job("scripted", "", "x", "a1", "plain", ["t"], 4, until, str(tmp_path / "a1.jsonl"))
    writer = Driver(job)
    monkeypatch.setattr(client, "commit", writer.stop)
    writer.run()
    assert endings(add_up(load([tmp_path / "a1.jsonl"]))) == [{"why": "signal", "count": 1}]


def test_a_row_without_recorded_causes_is_listed_if_a_producer_was_replaced():
    first = load_rows()[0]
    old = {name: value for name, value in first.items() if name != "endings"}
    name = "txnproducer/clean-stop/client/plain/v1"
    assert without_causes([{**old, "row": name, "producers": 2}]) == [name]
    assert without_causes([{**old, "row": name, "producers": 1}]) == []
    assert f"{NOT_RECORDED} |" in render([{**old, "row": name, "producers": 2}])


def test_a_row_with_recorded_causes_shows_them():
    name = "txnproducer/none/all/takeover/v1"
    ends = [{"why": "turn", "count": 3}, failed("commit", FENCED, "restart") | {"count": 2}]
    row = {**load_rows()[0], "row": name, "endings": ends}
    page = render([row])
    assert without_causes([row]) == []
    assert (
        "3 times the workload: a writer leaves the id to the other one; 2 times the workl" in page
    )


def test_a_campaign_refuses_a_name_that_is_no_row(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["campaign", "--names", "txnproducer/no/such/row/v2"])
    assert main() == 2
    assert "no such rows: txnproducer/no/such/row/v2" in capsys.readouterr().err
