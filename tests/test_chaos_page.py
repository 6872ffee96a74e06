"""The page of the campaign beside the peers is the one that its rows make."""

from __future__ import annotations

from integration.chaos.page import PAGE, load, merged, render
from integration.chaos.plan import CLIENTS, cover

AGAIN = "make it again: python -m integration.chaos.page"


def test_the_page_is_generated_from_the_rows() -> None:
    assert PAGE.read_text("utf-8") == render(load()), AGAIN


def test_each_row_on_the_page_is_of_the_plan() -> None:
    planned = {row.name for client in CLIENTS for row in cover(client)}
    assert {line["row"] for line in load()} <= planned


def test_a_row_that_was_played_again_counts_once_and_a_failed_one_not_at_all() -> None:
    line = {**load()[0], "failed": ""}
    later, failed = {**line, "stall_s": 99.0}, {**line, "commit": "other", "failed": "no cluster"}
    assert merged([line], [later, failed]) == [later]
