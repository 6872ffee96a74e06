"""The page of states says what the table says."""

from __future__ import annotations

from tests.state_machine_page import PAGE, render


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == render(), "run: python -m tests.state_machine_page"
