"""The pictures of the benchmark, as SVG: milliseconds of a batch over its rows or partitions.

Must not know: how it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from integration.benchmarks_spark.figures import Part
from integration.benchmarks_spark.works import NO_OPS, OURS, SPARK, SPARK_THERE, WRONG_GUESS
from integration.chart import Axis, by_powers, in_time, line, opening, rules

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 430, 74, 34, 62, 44
_COLOURS = ("first", "second", "third")
_KINDS = {
    SPARK: "fourth",
    SPARK_THERE: "fourth dashed",
    **dict(zip(OURS, _COLOURS, strict=True)),
    **{name: f"{kind} dashed" for name, kind in zip(WRONG_GUESS, _COLOURS, strict=True)},
    **dict(zip(NO_OPS, ("beside", "beside dashed"), strict=True)),
}
# Of each row of names above the lines.
_NAMES, _NAME_WIDTH = 4, 175
_ABOUT = {
    "curve": ("The time of a batch over its rows", "rows of a batch"),
    "growth": ("The time of a batch over its partitions", "partitions of a batch"),
}


def draw(part: Part) -> str:
    """Return the picture of a curve or of growth."""
    return "\n".join(_lines(part)) + "\n"


def _lines(part: Part) -> Iterator[str]:
    title, along = _ABOUT[part.name]
    yield from opening(title, _WIDTH, _HEIGHT)
    # Of a batch without rows there is no logarithm.
    found = [each for each in part.found if each.rounds and each.frame.rows]
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x, marks = by_powers((each.frame.rows for each in found), _LEFT, right)
    y, powers = by_powers((each.ms for each in found), bottom, _TOP)
    yield from rules(y, powers, in_time, _LEFT, right)
    yield from _marks(x, marks)
    yield f'  <text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{along}</text>'
    for number, name in enumerate(part.writers):
        points = [(each.frame.rows, each.ms) for each in found if each.writer == name]
        yield line(_KINDS[name], points, x, y)
        row, column = divmod(number, _NAMES)
        left, height = _LEFT + column * _NAME_WIDTH, 18 + 20 * row
        yield f'  <path class="{_KINDS[name]}" d="M{left} {height - 4}h22"/>'
        yield f'  <text x="{left + 28}" y="{height}">{name.removeprefix("ours, ")}</text>'
    yield "</svg>"


def _marks(axis: Axis, marks: list[float]) -> Iterator[str]:
    for mark in marks:
        place = f'x="{axis.at(mark)}" y="{_HEIGHT - _BOTTOM + 18}"'
        yield f'  <text {place} text-anchor="middle">{mark:,.0f}</text>'
