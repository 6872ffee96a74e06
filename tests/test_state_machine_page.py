"""The drawn state machine is the table's."""

from __future__ import annotations

from tests.state_machine_page import PAGE, PICTURE, draw, render


def test_the_page_of_states_is_up_to_date():
    assert PAGE.read_text("utf-8") == render(), "run: python -m tests.state_machine_page"


def test_the_picture_of_states_is_up_to_date():
    assert PICTURE.read_text("utf-8") == draw(), "run: python -m tests.state_machine_page"
