"""The places of a part's columns and rows, and the room that a text takes.

The heights follow from the texts. A text that does not fit its place is an error: a changed word
cannot overlap a line unseen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

from tests.pictures.elements import Arrow, Box, Colour, Element, Lifeline, Part, Words

LINE = 16  # from one line of text to the next
_PADDING = 12  # above and below the text of a box, together
_SIDES = 6  # beside the text of a box, together
_ARROW = 10  # of an arrow's row, besides its label

# The average widths of DejaVu Sans at 13 pixels: the fonts of most systems are narrower.
_LETTER, _BOLD_LETTER, _CODE_LETTER = 6.9, 7.6, 7.3
_WIDER = dict.fromkeys("mwMW", 5)  # than the average
_SMALL = 12 / 13

_BOLD = re.compile(r"\*\*(.+?)\*\*")
_CODE = re.compile(r"`(.+?)`")


class Area(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return ((self.left + self.right) / 2, (self.top + self.bottom) / 2)

    def grown(self, by: float) -> Area:
        return Area(self.left - by, self.top - by, self.right + by, self.bottom + by)


def width_of(line: str, *, small: bool = False, bold: bool = False) -> float:
    """Estimate the width of a line."""
    bold = bold or "**" in line
    letters = _CODE.sub("", line.replace("**", ""))
    code = sum(map(len, _CODE.findall(line)))
    width = len(letters) * (_BOLD_LETTER if bold else _LETTER)
    width += sum(_WIDER.get(letter, 0) for letter in letters)
    return code * _CODE_LETTER + width * (_SMALL if small else 1)


def marked_up(line: str) -> str:
    """Return a line of text as SVG."""
    line = escape(line, quote=False)
    line = _BOLD.sub(r'<tspan class="bold">\1</tspan>', line)
    return _CODE.sub(r'<tspan class="code">\1</tspan>', line)


def check_width(text: str, room: float, *, small: bool = False, bold: bool = False) -> None:
    """Refuse a text that would overlap its surroundings."""
    for line in text.splitlines():
        if (width := width_of(line, small=small, bold=bold)) > room:
            raise ValueError(f"{line!r} takes {width:.0f} and has {room:.0f}: break the line")


def lines_of(text: str) -> int:
    return len(text.splitlines())


def _box_height(text: str) -> int:
    return lines_of(text) * LINE + _PADDING


def height_of(element: Element) -> float:
    """Return the height that an element asks of its row."""
    match element:
        case Lifeline(text=text) | Box(text=text, rows=1):
            return _box_height(text)
        case Arrow(text=text):
            return lines_of(text) * LINE + _ARROW
        case Words(text=text):
            return lines_of(text) * LINE
        case _:
            return 0


class Grid:
    """A part on the page, from its upper left corner."""

    def __init__(self, part: Part, left: float, top: float) -> None:
        self._between = part.between_columns
        self._columns: dict[str, tuple[float, float]] = {}
        for name, width in part.columns.items():
            self._columns[name] = (left, left + width)
            left += width + self._between
        heights = [max(map(height_of, row), default=0) for row in part.rows]
        tops = list(accumulate((height + part.between_rows for height in heights), initial=top))
        self._box_heights = [
            max((height_of(one) for one in row if isinstance(one, Box | Lifeline)), default=0)
            for row in part.rows
        ]
        self._rows = [(top, top + height) for top, height in zip(tops, heights, strict=False)]
        self.bottom = self._rows[-1][1]

    def x_of(self, column: str) -> float:
        """Return the place of a column's lifeline."""
        return sum(self._columns[column]) / 2

    def x_before(self, column: str) -> float:
        """Return the middle of the space to the left of a column."""
        return self._columns[column][0] - self._between / 2

    def area(self, number: int, at: str, to: str = "", rows: int = 1) -> Area:
        """Return the area of columns and rows."""
        left, right = self._columns[at][0], self._columns[to or at][1]
        return Area(left, self._rows[number][0], right, self._rows[number + rows - 1][1])

    def box_area(self, number: int, box: Box | Lifeline) -> Area:
        """Return the area of a box. Those that stand in one row alone are equally high there."""
        rows = box.rows if isinstance(box, Box) else 1
        area = self.area(number, box.at, box.to, rows)
        check_width(box.text, area.right - area.left - _SIDES)
        if rows > 1:
            if _box_height(box.text) > area.bottom - area.top:
                raise ValueError(f"{box.text!r} is higher than its {rows} rows")
            return area
        middle, half = area.middle[1], self._box_heights[number] / 2
        return area._replace(top=middle - half, bottom=middle + half)

    def arrow_ends(self, number: int, row: Sequence[Element], arrow: Arrow) -> tuple[float, float]:
        """Return from where to where an arrow goes, to the right or to the left."""
        start, end = self.x_of(arrow.at), self.x_of(arrow.to)
        rightwards = start < end
        for element in row:
            if not isinstance(element, Box | Words):
                continue
            area = self.area(number, element.at, element.to)
            if element.at == arrow.at or element.to == arrow.at:
                start = area.right if rightwards else area.left
            elif arrow.to in (element.at, element.to):
                end = area.left if rightwards else area.right
        bold = arrow.colour is not Colour.NEUTRAL
        check_width(arrow.text, abs(end - start) - 8, small=True, bold=bold)
        return start, end
