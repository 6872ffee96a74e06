"""Charts as SVG: axes, lines, and the colours of a light and of a dark screen.

Why it exists: a chart is text that the same figures always give, so that a test can hold it to
them. Must not know: which figures are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

_STYLE = """  <style>
    text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 12px; fill: #555e6e; }
    .back { fill: #ffffff; }
    .grid { stroke: #dfe3ea; stroke-width: 1; }
    .fault { stroke: #c0711a; stroke-width: 1; }
    .first { fill: none; stroke: #2f6fbd; stroke-width: 1.5; }
    .second { fill: none; stroke: #6f51b5; stroke-width: 1.5; }
    .third { fill: none; stroke: #2e8555; stroke-width: 1.5; }
    .fourth { fill: none; stroke: #c0711a; stroke-width: 1.5; }
    .beside { fill: none; stroke: #7b8494; stroke-width: 1.5; }
    .dashed { stroke-dasharray: 5 4; }
    circle { fill: #bb3030; }
    @media (prefers-color-scheme: dark) {
      text { fill: #b7bfcc; }
      .back { fill: #1a1c1e; }
      .grid { stroke: #363b43; }
      .fault { stroke: #e09a4a; }
      .first { stroke: #74a9ee; }
      .second { stroke: #ab93ea; }
      .third { stroke: #67c28f; }
      .fourth { stroke: #e09a4a; }
      .beside { stroke: #98a1b0; }
      circle { fill: #f07a7a; }
    }
  </style>"""


class Axis(NamedTuple):
    """A range of values, and the pixels from the lowest to the highest."""

    least: float
    most: float
    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value in pixels."""
        change: Callable[[float], float] = math.log10 if self.is_log else float
        part = (change(value) - change(self.least)) / (change(self.most) - change(self.least))
        return round(self.low + part * (self.high - self.low), 1)


def by_powers(values: Iterable[float], low: float, high: float) -> tuple[Axis, list[float]]:
    """Return a logarithmic axis for values above 0, and its marks, which are powers of ten."""
    found = [math.log10(value) for value in values]
    first = math.floor(min(found))
    powers = range(first, max(math.ceil(max(found)), first + 1) + 1)
    marks = [10.0**power for power in powers]
    return Axis(marks[0], marks[-1], low, high, is_log=True), marks


def opening(title: str, width: int, height: int) -> Iterator[str]:
    """Yield the begin of a picture, which scales with its page."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-labelledby="title">'
    )
    yield f'  <title id="title">{title}</title>'
    yield _STYLE
    yield f'  <rect class="back" width="{width}" height="{height}" rx="8"/>'


def in_time(ms: float) -> str:
    """Return milliseconds in words."""
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def rules(
    axis: Axis, marks: Sequence[float], told: Callable[[float], str], left: float, right: float
) -> Iterator[str]:
    """Yield a horizontal line at each mark, with its value at the left."""
    for mark in marks:
        y = axis.at(mark)
        yield f'  <path class="grid" d="M{left} {y}H{right}"/>'
        yield f'  <text x="{left - 8}" y="{y + 4}" text-anchor="end">{told(mark)}</text>'


def line(kind: str, values: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    """Return the line through some values, in the colour of its kind."""
    points = " ".join(f"{x.at(along)},{y.at(up)}" for along, up in values)
    return f'  <polyline class="{kind}" points="{points}"/>'
