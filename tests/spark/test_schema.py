"""Which columns are written, and that a frame of just these is taken as it is."""

from __future__ import annotations

import pytest

from txnproducer.spark.errors import SchemaError
from txnproducer.spark.rows.schema import RowReader, written_columns


class Frame:
    """A frame that notes the columns selected of it."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def select(self, columns: list[str]) -> Selected:
        return Selected(columns)


class Selected(list[str]):
    """The columns that were selected, renamed where that was asked for."""

    def toDF(self, *names: str) -> Selected:  # noqa: N802
        return Selected(names)


@pytest.mark.parametrize(
    ("columns", "topic", "has_headers", "wanted"),
    [
        (("key", "value", "other"), "t", True, ["key", "value"]),
        (("topic", "value"), "t", True, ["value"]),
        (("topic", "value"), None, True, None),
        (("value", "headers"), "t", False, ["value"]),
        (("value", "headers"), "t", True, None),
        (("Value", "KEY", "other"), "t", True, ["value", "key"]),
    ],
)
def test_only_written_columns_are_selected_by_kafkas_names(columns, topic, has_headers, wanted):
    frame = Frame(*columns)
    found = written_columns(frame, RowReader(topic, has_headers))
    assert found is frame if wanted is None else found == wanted


def test_columns_that_kafka_cannot_distinguish_are_refused():
    for columns in (("value", "value"), ("value", "Value")):
        with pytest.raises(SchemaError, match="have the same name"):
            written_columns(Frame(*columns), RowReader("t"))
