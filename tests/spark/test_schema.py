"""Which columns are written, and that a frame of just these is taken as it is."""

from __future__ import annotations

import pytest

from txnproducer.spark.schema import written_columns


class Frame:
    """Notes what is selected of it."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def select(self, columns: list[str]) -> list[str]:
        return columns


@pytest.mark.parametrize(
    ("columns", "topic", "has_headers", "wanted"),
    [
        (("key", "value", "other"), "t", True, ["key", "value"]),
        (("topic", "value"), "t", True, ["value"]),
        (("topic", "value"), None, True, None),
        (("value", "headers"), "t", False, ["value"]),
        (("value", "headers"), "t", True, None),
        (("value", "value"), "t", True, ["value", "value"]),  # Spark says that it is ambiguous
    ],
)
def test_only_what_is_written_is_selected(columns, topic, has_headers, wanted):
    frame = Frame(*columns)
    found = written_columns(frame, topic, has_headers)
    assert found is frame if wanted is None else found == wanted
