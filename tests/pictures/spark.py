"""The picture of a Spark batch."""

from __future__ import annotations

from tests.pictures.elements import (
    Arrow,
    Box,
    Colour,
    Down,
    Element,
    Frame,
    Lifeline,
    Part,
    Picture,
    Words,
)


def _task(number: int) -> list[Element]:
    """Return the row of a task that commits."""
    return [
        Box("task", f"task {number}\norders-sink.p{number}"),
        Frame("rows", "ledger", dashed=True),
        Box("rows", f"rows of\npartition {number}", Colour.FIRST),
        Box("ledger", "ledger: batch 57\nrows, digest", Colour.THIRD),
        Words("end", "committed", Colour.GOOD, left=True),
        Arrow("Spark", "task"),
        Arrow("task", "rows"),
        Arrow("ledger", "end", colour=Colour.GOOD),
    ]


SPARK_BATCH = Picture(
    title="A Spark batch",
    description=(
        "Each partition of batch 57 is one transaction: its rows and the ledger's entry are"
        " committed together. A task that died after its commit runs again, finds batch 57 in the"
        " ledger and writes nothing."
    ),
    parts=[
        Part(
            columns={"Spark": 32, "task": 106, "rows": 98, "ledger": 122, "end": 116},
            between_columns=24,
            between_rows=18,
            rows=[
                [
                    Lifeline("Spark", "**Spark: batch 57**", to="task", rows=6),
                    Words("rows", "one transaction: both, or neither", to="ledger", small=True),
                ],
                _task(0),
                _task(1),
                _task(2),
                [
                    Arrow("task", "Spark", lost=True),
                    Words(
                        "task",
                        "dies after its commit, before Spark knows: Spark runs it again",
                        Colour.BAD,
                        to="end",
                        left=True,
                    ),
                ],
                [
                    Arrow("Spark", "task", dashed=True),
                    Box("task", "task 2 again\norders-sink.p2"),
                    Arrow("task", "rows"),
                    Box("rows", "takes the id: nobody\ncommits under it now", to="ledger"),
                    Down("rows", to="ledger"),
                ],
                [
                    Box("rows", "reads the ledger:\nbatch 57 is there", to="ledger"),
                    Down("rows", to="ledger"),
                ],
                [
                    Box("rows", "reads its rows,\ncompares them", to="ledger"),
                    Arrow("ledger", "end", colour=Colour.GOOD),
                    Words("end", "writes nothing", Colour.GOOD, left=True),
                ],
            ],
        ),
        Part(
            columns={"all": 576},
            between_rows=4,
            rows=[
                [Words("all", "**A reader at `read_committed` sees each row once.**")],
                [
                    Words(
                        "all",
                        'With `atomicity="batch"` the whole batch is one transaction,'
                        " with one entry.",
                        small=True,
                    )
                ],
            ],
        ),
    ],
)
