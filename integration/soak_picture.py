"""The picture of a soak, as SVG: transactions, memory, threads and descriptors over its minutes.

Why it exists: the picture is text that the same samples always give, so that a test can hold it to
them, and it has the colours of a light and of a dark screen.
Must not know: how samples are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from integration.soak_samples import Sample

_WIDTH, _LEFT, _RIGHT, _TOP = 720, 74, 14, 34
_HEIGHTS, _BETWEEN, _BOTTOM = (190, 120, 120), 30, 44
_HEIGHT = _TOP + sum(_HEIGHTS) + _BETWEEN * (len(_HEIGHTS) - 1) + _BOTTOM
_STEPS = (1, 2, 5, 10, 15, 30, 60)  # minutes between two marks

_STYLE = """  <style>
    text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 12px; fill: #555e6e; }
    .back { fill: #ffffff; }
    .grid { stroke: #dfe3ea; stroke-width: 1; }
    .fault { stroke: #c0711a; stroke-width: 1; }
    .first { fill: none; stroke: #2f6fbd; stroke-width: 1.5; }
    .second { fill: none; stroke: #6f51b5; stroke-width: 1.5; }
    circle { fill: #bb3030; }
    @media (prefers-color-scheme: dark) {
      text { fill: #b7bfcc; }
      .back { fill: #1a1c1e; }
      .grid { stroke: #363b43; }
      .fault { stroke: #e09a4a; }
      .first { stroke: #74a9ee; }
      .second { stroke: #ab93ea; }
      circle { fill: #f07a7a; }
    }
  </style>"""


class _Axis(NamedTuple):
    """A range of values, and the pixels from the lowest to the highest."""

    least: float
    most: float
    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        change: Callable[[float], float] = math.log10 if self.is_log else float
        part = (change(value) - change(self.least)) / (change(self.most) - change(self.least))
        return round(self.low + part * (self.high - self.low), 1)


def draw(samples: Sequence[Sample]) -> str:
    """Return the picture of a run of two samples at least."""
    return "\n".join(_lines(samples)) + "\n"


def _lines(samples: Sequence[Sample]) -> Iterator[str]:
    minutes = _Axis(0.0, samples[-1].at_s / 60, _LEFT, _WIDTH - _RIGHT)
    title = "A soak: transactions, memory, threads and descriptors over its minutes"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        ' aria-labelledby="title">'
    )
    yield f'  <title id="title">{title}</title>'
    yield _STYLE
    yield f'  <rect class="back" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>'
    upper, middle, lower = _panels()
    took = [value for each in samples for value in (each.median_ms, each.longest_ms) if value]
    first, last = (math.log10(value) for value in (min(took, default=1), max(took, default=10)))
    powers = range(math.floor(first), max(math.ceil(last), math.floor(first) + 1) + 1)
    times = _Axis(10.0 ** powers[0], 10.0 ** powers[-1], *upper, is_log=True)
    yield from _frame(times, [10.0**power for power in powers], _time)
    # Not from zero: a little growth shall show.
    used = [each.memory_mb for each in samples]
    least, most = 10 * math.floor(min(used) / 10), 10 * math.floor(max(used) / 10) + 10
    memory = _Axis(least, most, *middle)
    yield from _frame(memory, [least, (least + most) / 2, most], "{:.0f} MB".format)
    most = 10 * math.ceil(max(max(each.threads, each.descriptors) for each in samples) / 10)
    counts = _Axis(0, most, *lower)
    yield from _frame(counts, [0, most / 2, most], "{:.0f}".format)
    yield from _marks_of_minutes(minutes)
    yield from _faults(samples, minutes)
    ran = [each for each in samples if each.transactions]
    for each in ran:
        x, y = minutes.at(each.at_s / 60), times.at(each.longest_ms)
        yield f'  <circle cx="{x}" cy="{y}" r="1.6"/>'
    yield _line("first", [(each.at_s, each.median_ms) for each in ran], minutes, times)
    yield _line("first", [(each.at_s, each.memory_mb) for each in samples], minutes, memory)
    yield _line("first", [(each.at_s, each.threads) for each in samples], minutes, counts)
    yield _line("second", [(each.at_s, each.descriptors) for each in samples], minutes, counts)
    yield from _names((upper, middle, lower))
    yield "</svg>"


def _panels() -> Iterator[tuple[float, float]]:
    """Yield the lower and the upper edge of each part of the picture."""
    top = float(_TOP)
    for height in _HEIGHTS:
        yield top + height, top
        top += height + _BETWEEN


def _time(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _frame(axis: _Axis, marks: Sequence[float], told: Callable[[float], str]) -> Iterator[str]:
    for mark in marks:
        y = axis.at(mark)
        yield f'  <path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
        yield f'  <text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{told(mark)}</text>'


def _marks_of_minutes(axis: _Axis) -> Iterator[str]:
    step = next((each for each in _STEPS if axis.most / each <= 8), _STEPS[-1])
    for minute in range(0, math.floor(axis.most) + 1, step):
        place = f'x="{axis.at(minute)}" y="{_HEIGHT - _BOTTOM + 18}"'
        yield f'  <text {place} text-anchor="middle">{minute}</text>'
    yield f'  <text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">minutes</text>'


def _faults(samples: Sequence[Sample], axis: _Axis) -> Iterator[str]:
    before = 0
    for each in samples:
        if each.faults > before:
            before = each.faults
            yield f'  <path class="fault" d="M{axis.at(each.at_s / 60)} {_TOP - 12}v9"/>'


def _line(kind: str, values: Sequence[tuple[float, float]], minutes: _Axis, axis: _Axis) -> str:
    points = " ".join(f"{minutes.at(at_s / 60)},{axis.at(value)}" for at_s, value in values)
    return f'  <polyline class="{kind}" points="{points}"/>'


def _names(panels: Sequence[tuple[float, float]]) -> Iterator[str]:
    marks = "each mark: a fault is over, and the brokers are in sync again"
    yield f'  <text x="{_LEFT}" y="14">{marks}</text>'
    names = (
        "a transaction: the median (line), and the longest since the last sample (dots)",
        "resident memory",
        "threads (blue), descriptors (violet)",
    )
    for (_, high), name in zip(panels, names, strict=True):
        # Above its part, but within the first one, over which the faults are.
        y = high + 14 if name == names[0] else high - 7
        yield f'  <text x="{_LEFT + 6}" y="{y}">{name}</text>'
