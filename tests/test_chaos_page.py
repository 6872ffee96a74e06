"""The page of the campaign beside the peers is the one that its rows make."""

from __future__ import annotations

from typing import Any

import pytest

from integration.chaos import versions
from integration.chaos.page import PAGE, load, merged, render
from integration.chaos.plan import CLIENTS, cover
from integration.chaos.reasons import why

# A row without the times that a test does not give.
TIMES = ("fresh_stalls_s", "fresh_took_s", "called_s", "waited_s", "aborted_in_stall")
BARE = load()[0] | dict.fromkeys(TIMES)
OURS = [line for line in load() if line["row"].startswith("txnproducer/")]
AGAIN = "make it again: python -m integration.chaos.page"


def test_the_page_is_generated_from_the_rows() -> None:
    assert PAGE.read_text("utf-8") == render(load()), AGAIN


# A reason of the page explains at most so much of a stall beyond that of the fresh producers.
MOST_S = 6.0


@pytest.mark.parametrize("line", OURS, ids=[line["row"] for line in OURS])
def test_no_row_of_ours_would_be_excused_if_it_had_stood_still_for_longer(
    line: dict[str, Any],
) -> None:
    fresh = min((line.get("fresh_stalls_s") or {"none": 0.0}).values())
    # In its own calls: a copier's consumer is no part of it.
    called = line.get("called_s") or line["stall_s"]
    added = max(0.0, fresh - called) + MOST_S
    longer = {**line, "stall_s": line["stall_s"] + added, "called_s": called + added}
    quick = {**line, "row": "kafka-python/" + line["row"].partition("/")[2], "stall_s": 0.1}
    assert "**Ours was slow" in why(longer, {**quick, "fenced": line.get("fenced", 0)})


def test_each_row_on_the_page_is_of_the_plan() -> None:
    planned = {row.name for client in CLIENTS for row in cover(client)}
    assert {line["row"] for line in load()} <= planned


@pytest.mark.parametrize(
    ("target", "workload", "cluster_s", "fenced", "says"),
    [
        ("leader", "plain", None, 0, "no probe"),
        (
            "leader",
            "plain",
            11.2,
            0,
            "fresh producers of ours stood still for 11.2 s (there 7.5 s).",
        ),
        ("client", "plain", 1.2, 1, "The fault held the client"),
        (
            "leader",
            "takeover",
            9.9,
            5,
            "Its two writers took the id from each other 5 times meanwhile (there 2); fresh",
        ),
        ("leader", "takeover", 1.0, 3, "**Ours was slow"),
        (
            "leader",
            "plain",
            9.9,
            5,
            "Fresh producers of ours stood still for 9.9 s (there 7.5 s). A request that the sil",
        ),
        (
            "leader",
            "plain",
            6.7,
            5,
            "**Ours was slow**: fresh producers of ours stood still for 6.7 s (there 7.5 s)",
        ),
    ],
)
def test_a_row_in_which_another_client_was_quicker_says_why(
    target: str, workload: str, cluster_s: float | None, fenced: int, says: str
) -> None:
    row = f"SIGSTOP/{target}/{workload}/v2"
    line = {**BARE, "cluster_stall_s": cluster_s, "stall_s": 11.8, "fenced": fenced}
    line["longest_call_s"] = 5.0
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    other["fenced"] = 2
    page = render([ours, {**other, "stall_s": 8.0, "cluster_stall_s": 7.5}])
    assert f"`txnproducer/{row}`: 11.80 s, and java 8.00 s. " in page
    assert says in page
    assert "does not tell 0.5 s apart" in render([ours, {**other, "stall_s": 11.4}])
    assert "There is none" in render([ours, {**other, "stall_s": 11.8}])
    # It stood still until its row ended.
    assert "There is none" in render([ours, {**other, "stall_s": 8.0, "recovery_s": None}])
    assert "There is none" in render([ours, {**other, "stall_s": 8.0, "hung": 1}])


@pytest.mark.parametrize(
    ("own_s", "neutral_s", "says"),
    [
        (
            11.2,
            11.0,
            "On its cluster, fresh producers of ours stood still for 11.2 s (there 7.5 s)",
        ),
        (11.2, 11.0, "and those of confluent-kafka for 11.0 s."),
        (11.9, 11.1, "On its cluster, "),
        (10.9, 10.3, "**Ours was slow**: fresh producers"),  # the quicker one counts
        (11.2, 10.1, "**Ours was slow**, fresh ones as well: fresh producers of ours stood still"),
        (6.7, 11.2, "**Ours was slow**: fresh producers"),
    ],
)
def test_fresh_producers_of_ours_are_no_excuse_where_those_of_another_client_went_on(
    own_s: float, neutral_s: float, says: str
) -> None:
    row = "slow-link/leader/plain/v2"
    line = {**BARE, "cluster_stall_s": 11.9, "stall_s": 11.7}
    fresh = {"txnproducer": own_s, "confluent-kafka": neutral_s}
    ours = {**line, "row": f"txnproducer/{row}", "fresh_stalls_s": fresh}
    other = {**line, "row": f"java/{row}", "stall_s": 8.0, "cluster_stall_s": 7.5}
    assert says in render([ours, other])
    assert "were not there yet" not in render([ours, other])
    assert "In 1 rows of ours" in render([{**ours, "fresh_stalls_s": None}, other])


@pytest.mark.parametrize(
    ("fault", "stall_s", "waited_s", "says"),
    [
        ("SIGSTOP", 11.0, None, "The fault held the client; fresh"),
        ("SIGSTOP", 40.0, None, "**Ours was slow**"),
        (
            "kill--9",
            2.2,
            {"absent": 0.1, "start": 0.6},
            "Its process was away for 0.1 s, and from",
        ),
        ("kill--9", 25.0, {"absent": 0.1, "start": 0.6}, "**Ours was slow**"),
    ],
)
def test_a_fault_of_the_client_excuses_no_more_than_its_own_time(
    fault: str, stall_s: float, waited_s: dict[str, float] | None, says: str
) -> None:
    row = f"{fault}/client/plain/v2"
    line = {**BARE, "cluster_stall_s": 0.7, "stall_s": stall_s, "waited_s": waited_s}
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    assert says in render([ours, {**other, "stall_s": 0.9}])


def test_a_copier_that_was_held_says_so_before_its_calls() -> None:
    row = "SIGSTOP/client/copy/v2"
    line = {**BARE, "cluster_stall_s": 0.7, "stall_s": 12.1, "called_s": 10.8}
    line["waited_s"] = {"partitions": 0.9, "rewind": 0.2}
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    page = " ".join(render([ours, {**other, "stall_s": 10.1}]).split())
    assert "The fault held its process for 10 s. Fresh producers of ours" in page


@pytest.mark.parametrize(
    ("called_s", "says"), [(5.1, "A request that"), (4.9, "**Ours was slow"), (None, "**Ours was")]
)
def test_a_silent_broker_excuses_a_request_that_was_under_way(
    called_s: float | None, says: str
) -> None:
    row = "partition/leader/bank/v2"
    line = {**BARE, "cluster_stall_s": 8.0, "stall_s": 11.8, "longest_call_s": called_s}
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    assert says in render([ours, {**other, "stall_s": 2.0}])


@pytest.mark.parametrize(
    ("called_s", "longest_s", "says"),
    [
        (9.1, 2.0, "**Ours was slow**: fresh"),
        (11.1, 5.1, "A request that"),
    ],
)
def test_a_copier_is_not_slow_for_the_time_of_a_request_to_a_silent_broker(
    called_s: float, longest_s: float, says: str
) -> None:
    row = "SIGSTOP/leader/copy/v2"
    line = {**BARE, "cluster_stall_s": 9.9, "stall_s": 11.8, "called_s": called_s}
    line["longest_call_s"] = longest_s
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    assert says in render([ours, {**other, "stall_s": 8.0}])


@pytest.mark.parametrize(
    ("poll_s", "says"),
    [
        (
            2.0,
            "s. Its producers were in a call for 9.1 s of its stall, and its consumer, kafka-py",
        ),
        (
            0.3,
            "was slow**: fresh producers of ours stood still for 9.9 s. Its producers were in a c",
        ),
    ],
)
def test_time_in_no_call_at_all_is_no_reason_for_a_copier(poll_s: float, says: str) -> None:
    row = "slow-link/leader/copy/v2"
    line = {**BARE, "cluster_stall_s": 9.9, "stall_s": 12.3, "called_s": 9.1}
    ours = {**line, "row": f"txnproducer/{row}", "waited_s": {"poll": poll_s, "rewind": 0.5}}
    page = render([ours, {**line, "row": f"java/{row}", "stall_s": 8.0, "cluster_stall_s": None}])
    assert says in page
    assert "s in polls until there was a record, 0.5 s in going back to the committed" in page


@pytest.mark.parametrize(
    ("aborted", "says"),
    [
        (2, "2 of its transactions ended in an abort"),
        (1, "Ours was slow"),
        (None, "Ours was slow"),
    ],
)
def test_aborts_of_the_workload_explain_a_stall_as_long_as_their_transactions_take(
    aborted: int | None, says: str
) -> None:
    row = "slow-link/controller/plain/v1"
    line = {**BARE, "cluster_stall_s": 3.0, "stall_s": 9.0, "aborted_in_stall": aborted}
    line["fresh_took_s"] = {"txnproducer": 3.0, "confluent-kafka": 2.8}
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    assert says in render([ours, {**other, "stall_s": 6.0}])


@pytest.mark.parametrize(
    ("fault", "own_s", "aborted", "says"),
    [
        (
            "slow-link",
            3.9,
            1,
            "Each transaction took seconds: one of a fresh producer of ours 3.9 s",
        ),
        ("slow-link", 3.9, 0, "**Ours was slow**: fresh"),
        ("slow-link", 4.7, 1, "**Ours was slow**, fresh ones as well"),
        ("partition", 3.9, 1, "**Ours was slow**: fresh"),  # they waited for a leader
    ],
)
def test_over_a_slow_link_a_stall_is_as_long_as_its_transactions(
    fault: str, own_s: float, aborted: int, says: str
) -> None:
    row = f"{fault}/leader/plain/v2"
    line = {**BARE, "cluster_stall_s": 2.0, "stall_s": 7.2, "aborted_in_stall": aborted}
    line |= {"fresh_stalls_s": {"txnproducer": 2.2, "confluent-kafka": 1.5}, "called_s": 3.0}
    line |= {"fresh_took_s": {"txnproducer": own_s, "confluent-kafka": 3.5}}
    ours, other = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"java/{row}"}
    assert says in render([ours, {**other, "stall_s": 3.4}])


@pytest.mark.parametrize(
    ("target", "version", "other", "own_s", "says"),
    [
        ("leader", "v2", "kafka-python", 4.7, "Ours alone of the two speaks version 2."),
        ("leader", "v2", "kafka-python", 5.5, "**Ours was slow**, fresh ones as well"),
        ("leader", "v2", "java", 4.7, "**Ours was slow**, fresh ones as well"),
        ("leader", "v1", "kafka-python", 4.7, "**Ours was slow**, fresh ones as well"),
        ("controller", "v2", "kafka-python", 4.7, "**Ours was slow**, fresh ones as well"),
    ],
)
def test_the_cost_of_version_2_excuses_ours_beside_a_client_without_it(
    target: str, version: str, other: str, own_s: float, says: str
) -> None:
    row = f"slow-link/{target}/plain/{version}"
    line = {**BARE, "cluster_stall_s": 2.0, "stall_s": 5.2, "aborted_in_stall": 0}
    line |= {"fresh_stalls_s": {"txnproducer": 1.2, "confluent-kafka": 1.5}, "called_s": 5.2}
    line |= {"fresh_took_s": {"txnproducer": own_s, "confluent-kafka": 3.5}}
    ours, theirs = {**line, "row": f"txnproducer/{row}"}, {**line, "row": f"{other}/{row}"}
    assert says in render([ours, {**theirs, "stall_s": 3.4}])


def test_the_clients_differ_in_their_transactions_only_with_version_2() -> None:
    cost = {client: second - first for client, first, second in versions.medians()}
    assert {client for client, more_s in cost.items() if more_s > 0.3} == set(versions.SPEAK_V2)
    assert cost["txnproducer"] == versions.cost_of_v2_s() <= cost["java"]
    first_ones = [first for _, first, _ in versions.medians()]
    assert max(first_ones) - min(first_ones) < 0.5


@pytest.mark.parametrize("there", [5, 6, None])
def test_taking_the_id_no_more_often_than_another_client_is_no_reason(there: int | None) -> None:
    row = "slow-link/controller/takeover/v1"
    line = {**BARE, "cluster_stall_s": 2.4, "stall_s": 10.7, "fenced": 5}
    ours = {**line, "row": f"txnproducer/{row}"}
    other = {**line, "row": f"java/{row}", "stall_s": 6.1, "fenced": there}
    if there is None:
        del other["fenced"]
    assert "**Ours was slow**: fresh producers of ours stood still for 2.4 s" in render(
        [ours, other]
    )


def test_a_row_that_was_played_again_counts_once_and_a_failed_one_not_at_all() -> None:
    line = {**BARE, "failed": "", "stall_s": 7.0, "earlier": [5.0]}
    later, failed = {**line, "stall_s": 9.0}, {**line, "commit": "other", "failed": "no cluster"}
    assert merged([line], [{**later}, failed]) == [{**later, "earlier": [5.0, 7.0]}]
    assert merged([line], [line]) == [line]
    # The stalls of another producer say nothing about this one.
    newer = {key: value for key, value in later.items() if key != "earlier"} | {"commit": "new"}
    assert merged([line], [newer]) == [newer]
