"""The elements of a picture.

A picture is a column of parts, and a part is a grid. Its columns are the parties, its rows follow
one another in time, and the elements of a row happen side by side. An element names the column
where it stands (`at`), and the last one if it covers several (`to`). `rows` counts the rows that
it covers, its own included.

A text has a line for each line of the string. As in Markdown, `**bold**` is bold, and what stands
between backticks is code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Colour(Enum):
    """The meaning of a colour. The first three tell parties and their records apart."""

    FIRST = "first"
    SECOND = "second"
    THIRD = "third"
    NEUTRAL = "neutral"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Box:
    """A note on a lifeline, a party, or a record."""

    at: str
    text: str
    colour: Colour = Colour.NEUTRAL
    to: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Lifeline:
    """A party's line through its rows, from its name down. A name without colour has no box."""

    at: str
    text: str
    colour: Colour | None = Colour.NEUTRAL
    to: str = ""
    rows: int = 2


@dataclass(frozen=True)
class Arrow:
    """A message, with its label above. A lost one ends with a cross on half of its way.

    It ends at the boxes and words that stand in its row, otherwise at the lifelines.
    """

    at: str
    to: str
    text: str = ""
    colour: Colour = Colour.NEUTRAL
    dashed: bool = False
    lost: bool = False


@dataclass(frozen=True)
class Down:
    """An arrow from the box of this row to the box below it."""

    at: str
    to: str = ""


@dataclass(frozen=True)
class Words:
    """Text without a box."""

    at: str
    text: str
    colour: Colour = Colour.NEUTRAL
    to: str = ""
    small: bool = False
    left: bool = False  # begins at the left border instead of standing in the middle
    over_line: bool = False  # hides the line that it stands on


@dataclass(frozen=True)
class Frame:
    """A box around other elements."""

    at: str
    to: str
    rows: int = 1
    dashed: bool = False


@dataclass(frozen=True)
class Track:
    """A thin line across columns, on which boxes stand in the order of time."""

    at: str
    to: str


@dataclass(frozen=True)
class Mark:
    """An upright line before a column."""

    at: str
    rows: int
    colour: Colour


Element = Box | Lifeline | Arrow | Down | Words | Frame | Track | Mark


@dataclass(frozen=True)
class Part:
    """A grid: its columns with their widths, and its rows from top to bottom."""

    columns: Mapping[str, int]
    rows: Sequence[Sequence[Element]]
    between_columns: int = 8
    between_rows: int = 12


@dataclass(frozen=True)
class Picture:
    """A picture, with the title and the description that a screen reader reads."""

    title: str
    description: str
    parts: Sequence[Part]
