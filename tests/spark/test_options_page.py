"""The options in docs/spark.md are those of the table."""

from __future__ import annotations

from tests.spark_options_page import PAGE, render


def test_the_options_on_the_page_are_up_to_date():
    page = PAGE.read_text("utf-8")
    assert page == render(page), "run: python -m tests.spark_options_page"
