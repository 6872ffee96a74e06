"""Draws a picture as SVG.

All pictures have the same width, so that their texts have the same size on a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from html import escape

from tests.pictures.elements import (
    Arrow,
    Box,
    Colour,
    Down,
    Element,
    Frame,
    Lifeline,
    Mark,
    Picture,
    Track,
    Words,
)
from tests.pictures.layout import LINE, Area, Grid, check_width, lines_of, marked_up

WIDTH = 600
_MARGIN = 12
_BETWEEN_PARTS = 18
_AROUND = 6  # between a frame and the elements in it
_CROSS = 7  # half of its width
_BEFORE_LIFELINE = 2  # between an arrow's head and the line
_INDENT = 4  # of words that begin at the left border

_STYLE = """\
  <style>
    text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2430; text-anchor: middle; }
    text.small { font-size: 12px; fill: #555e6e; }
    text.left { text-anchor: start; }
    text.over { paint-order: stroke; stroke: #ffffff; stroke-width: 8px; }
    text.good { fill: #1f6b36; font-weight: 600; }
    text.bad { fill: #9c2323; font-weight: 600; }
    .bold { font-weight: 600; }
    .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
    rect { stroke-width: 1.5; }
    rect.first { fill: #d3e5fb; stroke: #2f6fbd; }
    rect.second { fill: #fde3c4; stroke: #c0711a; }
    rect.third { fill: #e4dcf6; stroke: #6f51b5; }
    rect.neutral { fill: #f3f5f8; stroke: #8892a3; }
    rect.good { fill: #d6f0dc; stroke: #2c8a47; }
    rect.bad { fill: #fbdcdc; stroke: #bb3030; }
    path { fill: none; stroke-width: 2; }
    path.neutral { stroke: #6b7485; stroke-width: 1.5; }
    path.good { stroke: #2c8a47; }
    path.bad { stroke: #bb3030; }
    .thin { fill: none; stroke: #aab1be; stroke-width: 1; }
    .dashed { stroke-dasharray: 5 4; }
  </style>
"""  # noqa: E501 - one rule a line
_HEADS = {Colour.NEUTRAL: "#6b7485", Colour.GOOD: "#2c8a47", Colour.BAD: "#bb3030"}


class _Layer(IntEnum):
    """The order of drawing: a later layer covers an earlier one."""

    FRAME = 0
    LINE = 1
    ARROW = 2
    BOX = 3
    TEXT = 4


_Piece = tuple[_Layer, str]


def draw(picture: Picture) -> str:
    """Return the picture."""
    drawn: list[_Piece] = []
    bottom: float = _MARGIN - _BETWEEN_PARTS
    for part in picture.parts:
        width = sum(part.columns.values()) + part.between_columns * (len(part.columns) - 1)
        left = (WIDTH - width) / 2
        if left < _MARGIN:
            raise ValueError(f"{picture.title}: {width} wide, at most {WIDTH - 2 * _MARGIN}")
        grid = Grid(part, left, bottom + _BETWEEN_PARTS)
        for number, row in enumerate(part.rows):
            for element in row:
                drawn += _drawn(element, grid, number, row)
        bottom = grid.bottom
    drawn.sort(key=lambda piece: piece[0])  # within a layer the order stays
    return "\n".join(
        [*_head(picture, bottom + _MARGIN), *(f"  {svg}" for _, svg in drawn), "</svg>", ""]
    )


def _head(picture: Picture, height: float) -> Iterator[str]:
    """Yield the lines before the first element.

    A picture without a width of its own is as wide as its page. It lies on white, because a
    picture on a page does not learn whether the reader has chosen a dark theme.
    """
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"'
        ' role="img" aria-labelledby="title desc">'
    )
    yield f'  <title id="title">{escape(picture.title, quote=False)}</title>'
    yield f'  <desc id="desc">{escape(picture.description, quote=False)}</desc>'
    yield f"{_STYLE}  <defs>"
    for colour, code in _HEADS.items():
        yield (
            f'    <marker id="{colour.value}" viewBox="0 0 10 10" refX="9" refY="5"'
            ' markerWidth="10" markerHeight="10" markerUnits="userSpaceOnUse" orient="auto">'
            f'<polygon points="0,0 10,5 0,10" fill="{code}"/></marker>'
        )
    yield "  </defs>"
    yield f'  <rect width="{WIDTH}" height="{height:g}" rx="8" fill="#ffffff"/>'


def _drawn(element: Element, grid: Grid, number: int, row: Sequence[Element]) -> Iterator[_Piece]:
    match element:
        case Box(text=text, colour=colour):
            yield from _box(grid.box_area(number, element), text, colour)
        case Lifeline():
            yield from _lifeline(element, grid, number)
        case Arrow():
            yield from _arrow(element, grid, number, row)
        case Down(at=at, to=to):
            x, top = grid.area(number, at, to).middle[0], grid.area(number, at).bottom
            bottom = grid.area(number + 1, at).top - _BEFORE_LIFELINE
            yield _Layer.ARROW, _path(f"M{x:g} {top:g}V{bottom:g}", Colour.NEUTRAL, head=True)
        case Words():
            yield from _words(element, grid.area(number, element.at, element.to))
        case Frame(at=at, to=to, rows=rows, dashed=dashed):
            area = grid.area(number, at, to, rows).grown(_AROUND)
            yield _Layer.FRAME, _rect(area, "thin dashed" if dashed else "neutral")
        case Track(at=at, to=to):
            area = grid.area(number, at, to)
            yield (
                _Layer.LINE,
                f'<path class="thin" d="M{area.left:g} {area.middle[1]:g}H{area.right:g}"/>',
            )
        case Mark(at=at, rows=rows, colour=colour):
            area = grid.area(number, at, rows=rows)
            yield (
                _Layer.LINE,
                _path(f"M{grid.x_before(at):g} {area.top:g}V{area.bottom:g}", colour),
            )


def _box(area: Area, text: str, colour: Colour) -> Iterator[_Piece]:
    yield _Layer.BOX, _rect(area, colour.value)
    yield from _lines(text, *area.middle)


def _lifeline(lifeline: Lifeline, grid: Grid, number: int) -> Iterator[_Piece]:
    area = grid.box_area(number, lifeline)
    x, bottom = grid.x_of(lifeline.at), grid.area(number, lifeline.at, rows=lifeline.rows).bottom
    yield _Layer.LINE, f'<path class="thin" d="M{x:g} {area.bottom:g}V{bottom:g}"/>'
    if lifeline.colour:
        yield from _box(area, lifeline.text, lifeline.colour)
    else:
        yield from _lines(lifeline.text, *area.middle)


def _arrow(arrow: Arrow, grid: Grid, number: int, row: Sequence[Element]) -> Iterator[_Piece]:
    start, end = grid.arrow_ends(number, row, arrow)
    label = lines_of(arrow.text) * LINE
    y = grid.area(number, arrow.at).middle[1] + label / 2
    if arrow.lost:
        end = (start + end) / 2
        yield _Layer.ARROW, _path(_cross(end, y), Colour.BAD)
    else:
        end -= _BEFORE_LIFELINE if start < end else -_BEFORE_LIFELINE
    line = f"M{start:g} {y:g}H{end:g}"
    head = not arrow.lost
    yield _Layer.ARROW, _path(line, arrow.colour, head=head, dashed=arrow.dashed)
    if arrow.text:
        names = "small" if arrow.colour is Colour.NEUTRAL else f"small {arrow.colour.value}"
        yield from _lines(arrow.text, (start + end) / 2, y - 3 - label / 2, names)


def _cross(x: float, y: float) -> str:
    size = 2 * _CROSS
    return f"M{x - _CROSS:g} {y - _CROSS:g}l{size} {size}m0 -{size}l-{size} {size}"


def _words(words: Words, area: Area) -> Iterator[_Piece]:
    bold = words.colour is not Colour.NEUTRAL
    check_width(words.text, area.right - area.left - _INDENT, small=words.small, bold=bold)
    names = [
        *(["small"] if words.small else []),
        *(["left"] if words.left else []),
        *(["over"] if words.over_line else []),
        *([words.colour.value] if bold else []),
    ]
    x, y = area.middle
    yield from _lines(words.text, area.left + _INDENT if words.left else x, y, " ".join(names))


def _lines(text: str, x: float, y: float, names: str = "") -> Iterator[_Piece]:
    """Yield the lines of a text, around a height."""
    baseline = y - LINE * (lines_of(text) - 1) / 2 + 4.5
    attribute = f' class="{names}"' if names else ""
    for place, line in enumerate(text.splitlines()):
        place_of_line = f'x="{x:g}" y="{baseline + LINE * place:g}"'
        yield _Layer.TEXT, f"<text{attribute} {place_of_line}>{marked_up(line)}</text>"


def _rect(area: Area, names: str) -> str:
    left, top, right, bottom = area
    return (
        f'<rect class="{names}" x="{left:g}" y="{top:g}" width="{right - left:g}"'
        f' height="{bottom - top:g}" rx="5"/>'
    )


def _path(course: str, colour: Colour, *, head: bool = False, dashed: bool = False) -> str:
    names = f"{colour.value} dashed" if dashed else colour.value
    marker = f' marker-end="url(#{colour.value})"' if head else ""
    return f'<path class="{names}" d="{course}"{marker}/>'
