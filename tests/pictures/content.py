"""The pictures of transactions, and the table of all pictures by the names of their files."""

from __future__ import annotations

from pathlib import Path

from tests.pictures.elements import (
    Arrow,
    Box,
    Colour,
    Down,
    Frame,
    Lifeline,
    Mark,
    Part,
    Picture,
    Track,
    Words,
)
from tests.pictures.spark import SPARK_BATCH

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"

_A, _B, _C = Colour.FIRST, Colour.SECOND, Colour.THIRD

TIMELINE = Picture(
    title="Transactions in a partition, and the last stable offset",
    description=(
        "Producer A has committed two records, producer B has an open transaction, producer C has"
        " committed one record after B began. The last stable offset is B's first record: a"
        " read_committed reader sees A's records and nothing after."
    ),
    parts=[
        Part(
            columns={"name": 124, **dict.fromkeys("0123456", 58)},
            between_columns=6,
            rows=[
                [
                    Words("name", "**producer A**", left=True),
                    Track("0", "6"),
                    Box("0", "`send`", _A),
                    Box("1", "`send`", _A),
                    Box("3", "`commit`", _A),
                ],
                [
                    Words("name", "**producer B**", left=True),
                    Track("0", "6"),
                    Box("2", "`send`", _B),
                    Box("4", "`send`", _B),
                    Words("5", "still open ...", to="6", small=True, left=True, over_line=True),
                ],
                [
                    Words("name", "**producer C**", left=True),
                    Track("0", "6"),
                    Box("5", "`send`", _C),
                    Box("6", "`commit`", _C),
                ],
                [
                    Mark("2", rows=3, colour=Colour.BAD),
                    *(Words(offset, offset, small=True) for offset in "0123456"),
                ],
                [
                    Words("name", "**the partition,**\n**by offset**", left=True),
                    Box("0", "a1", _A),
                    Box("1", "a2", _A),
                    Box("2", "b1", _B),
                    Box("3", "commit\nA", _A),
                    Box("4", "b2", _B),
                    Box("5", "c1", _C),
                    Box("6", "commit\nC", _C),
                ],
                [
                    Words(
                        "2",
                        "last stable offset: 2, where B begins,\nwhich is still open",
                        Colour.BAD,
                        to="6",
                        left=True,
                    ),
                ],
                [
                    Words("name", "**`read_committed`**\n**reader**", left=True),
                    Box("0", "a1", _A),
                    Box("1", "a2", _A),
                    Words(
                        "2",
                        "waits here: b1 may yet be aborted. c1 is\n"
                        "committed, and is delivered after B has ended,\n"
                        "since the order of the log holds.",
                        to="6",
                        small=True,
                        left=True,
                    ),
                ],
                [
                    Words("name", "**`read_uncommitted`**\n**reader**", left=True),
                    Box("0", "a1", _A),
                    Box("1", "a2", _A),
                    Box("2", "b1", _B),
                    Box("4", "b2", _B),
                    Box("5", "c1", _C),
                ],
            ],
        ),
    ],
)

FENCING = Picture(
    title="Fencing",
    description=(
        "The older process stops in the middle of a transaction. A newer one with the same"
        " transactional id initializes: the coordinator raises the epoch and aborts the open"
        " transaction. The older process wakes up, and its commit is refused."
    ),
    parts=[
        Part(
            columns={"older": 186, "coordinator": 186, "newer": 186},
            between_columns=9,
            between_rows=10,
            rows=[
                [
                    Lifeline(
                        "older", "the older process\n`transactional_id` orders-0", _B, rows=9
                    ),
                    Lifeline("coordinator", "transaction coordinator\n(a broker)", rows=9),
                    Lifeline(
                        "newer", "the newer process\n`transactional_id` orders-0", _A, rows=9
                    ),
                ],
                [Arrow("older", "coordinator", "begins, sends records\n(epoch 7)")],
                [
                    Box(
                        "older",
                        "is paused: a long\ngarbage collection,\na network that is cut,\n"
                        "a node given up",
                        rows=3,
                    ),
                    Arrow("newer", "coordinator", "`init_transactions()`"),
                ],
                [
                    Box(
                        "coordinator",
                        "raises the epoch\nof orders-0 and aborts\nthe transaction that is\n"
                        "open under epoch 7",
                    )
                ],
                [Arrow("coordinator", "newer", "a higher epoch: ready")],
                [Arrow("older", "coordinator", "`commit_transaction()`\n(epoch 7)")],
                [
                    Arrow("coordinator", "older", "refused: the epoch is old", Colour.BAD),
                    Arrow("newer", "coordinator", "begins, sends, commits"),
                ],
                [
                    Box("older", "`ProducerFencedError`:\nclose it, and stop", Colour.BAD),
                    Arrow("coordinator", "newer", "committed", Colour.GOOD),
                ],
                [],
            ],
        ),
        Part(
            columns={"all": 576},
            rows=[[Words("all", "**Of all producers of one id, only the newest can commit.**")]],
        ),
    ],
)

COMMIT_IN_DOUBT = Picture(
    title="A commit in doubt",
    description=(
        "Either the commit request is lost, or it arrives and its answer is lost. The program sees"
        " the same in both cases: no answer."
    ),
    parts=[
        Part(
            columns={"program": 110, "coordinator": 110, "program 2": 110, "coordinator 2": 110},
            between_columns=40,
            rows=[
                [
                    Frame("program", "coordinator", rows=6),
                    Words("program", "**The request is lost**", to="coordinator"),
                    Frame("program 2", "coordinator 2", rows=6),
                    Words("program 2", "**The answer is lost**", to="coordinator 2"),
                ],
                [
                    Lifeline("program", "program", None, rows=4),
                    Lifeline("coordinator", "coordinator", None, rows=4),
                    Lifeline("program 2", "program", None, rows=4),
                    Lifeline("coordinator 2", "coordinator", None, rows=4),
                ],
                [
                    Arrow("program", "coordinator", "commit", lost=True),
                    Arrow("program 2", "coordinator 2", "commit"),
                ],
                [Box("coordinator 2", "writes it", Colour.GOOD)],
                [
                    Box("program", "no answer", Colour.BAD),
                    Box("program 2", "no answer", Colour.BAD),
                    Arrow("coordinator 2", "program 2", lost=True),
                ],
                [
                    Words("program", "nothing is committed", Colour.BAD, to="coordinator"),
                    Words("program 2", "all of it is committed", Colour.GOOD, to="coordinator 2"),
                ],
            ],
        ),
        Part(
            columns={"all": 576},
            rows=[[Words("all", "**The program cannot tell these two apart.**")]],
        ),
        Part(
            columns={"step": 230, "note": 226},
            between_columns=14,
            between_rows=22,
            rows=[
                [
                    Box("step", "The producer repeats the\ncommit until it is answered."),
                    Down("step"),
                    Words(
                        "note",
                        "the usual end: committed,\nand nobody notices",
                        small=True,
                        left=True,
                    ),
                ],
                [
                    Box(
                        "step",
                        "It was fenced or closed first:\n`CommitOutcomeUnknownError`",
                        Colour.BAD,
                    ),
                    Down("step"),
                    Words(
                        "note",
                        'not "failed": writing again\nmight write everything twice',
                        small=True,
                        left=True,
                    ),
                ],
                [
                    Box("step", "`producer.resolve_outcome()`\nasks how it ended"),
                    Words(
                        "note",
                        '"committed", "aborted",\nor "unknown": the evidence is gone',
                        small=True,
                        left=True,
                    ),
                ],
            ],
        ),
    ],
)


PICTURES = {
    "timeline": TIMELINE,
    "fencing": FENCING,
    "commit-in-doubt": COMMIT_IN_DOUBT,
    "spark-batch": SPARK_BATCH,
}
