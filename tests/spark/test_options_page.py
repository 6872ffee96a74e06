"""The options in docs/spark.md are those of the table, and its events those of the code."""

from __future__ import annotations

import re

from tests.plain_words import sources
from tests.spark_options_page import MORE, PAGE, render

EVENT = re.compile(
    r'"((?:task|batch|partition)_(?:before|after|replayed|committed|decided|done)\w*)"'
)


def test_the_options_on_the_page_are_up_to_date():
    page = PAGE.read_text("utf-8")
    assert page == render(page), "run: python -m tests.spark_options_page"


def test_the_row_of_on_event_names_the_events_of_the_code():
    rooms = ("tasks", "driver", "sink.py")
    files = [path for room in rooms for path in sources(f"txnproducer/spark/{room}")]
    called = {name for path in files for name in EVENT.findall(path.read_text("utf-8"))}

    named = set(re.findall(r"`((?:task|batch|partition)_\w+)`", MORE))

    assert named == called
