"""The picture of a soak, as SVG: transactions, memory, threads and descriptors over its minutes.

Must not know: how samples are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from integration.chart import Axis, by_powers, in_time, line, opening, rules
from integration.soak_samples import Sample

_WIDTH, _LEFT, _RIGHT, _TOP = 720, 74, 14, 34
_HEIGHTS, _BETWEEN, _BOTTOM = (190, 120, 120), 30, 44
_SIDES = (_LEFT, _WIDTH - _RIGHT)
_HEIGHT = _TOP + sum(_HEIGHTS) + _BETWEEN * (len(_HEIGHTS) - 1) + _BOTTOM
_STEPS = (1, 2, 5, 10, 15, 30, 60)  # minutes between two marks


def draw(samples: Sequence[Sample]) -> str:
    """Return the picture of a run of two samples at least."""
    return "\n".join(_lines(samples)) + "\n"


def _lines(samples: Sequence[Sample]) -> Iterator[str]:
    minutes = Axis(0.0, samples[-1].at_s / 60, _LEFT, _WIDTH - _RIGHT)
    title = "A soak: transactions, memory, threads and descriptors over its minutes"
    yield from opening(title, _WIDTH, _HEIGHT)
    upper, middle, lower = _panels()
    took = [value for each in samples for value in (each.median_ms, each.longest_ms) if value]
    times, powers = by_powers(took or [1, 10], *upper)
    yield from rules(times, powers, in_time, *_SIDES)
    # Not from zero: a little growth shall show.
    used = [each.memory_mb for each in samples]
    least, most = 10 * math.floor(min(used) / 10), 10 * math.floor(max(used) / 10) + 10
    memory = Axis(least, most, *middle)
    yield from rules(memory, [least, (least + most) / 2, most], "{:.0f} MB".format, *_SIDES)
    most = 10 * math.ceil(max(max(each.threads, each.descriptors) for each in samples) / 10)
    counts = Axis(0, most, *lower)
    yield from rules(counts, [0, most / 2, most], "{:.0f}".format, *_SIDES)
    yield from _marks_of_minutes(minutes)
    yield from _faults(samples, minutes)
    ran = [each for each in samples if each.transactions]
    for each in ran:
        x, y = minutes.at(each.at_s / 60), times.at(each.longest_ms)
        yield f'  <circle cx="{x}" cy="{y}" r="1.6"/>'
    yield line("first", [(each.at_s / 60, each.median_ms) for each in ran], minutes, times)
    yield line("first", [(each.at_s / 60, each.memory_mb) for each in samples], minutes, memory)
    yield line("first", [(each.at_s / 60, each.threads) for each in samples], minutes, counts)
    yield line("second", [(each.at_s / 60, each.descriptors) for each in samples], minutes, counts)
    yield from _names((upper, middle, lower))
    yield "</svg>"


def _panels() -> Iterator[tuple[float, float]]:
    """Yield the lower and the upper edge of each part of the picture."""
    top = float(_TOP)
    for height in _HEIGHTS:
        yield top + height, top
        top += height + _BETWEEN


def _marks_of_minutes(axis: Axis) -> Iterator[str]:
    step = next((each for each in _STEPS if axis.most / each <= 8), _STEPS[-1])
    for minute in range(0, math.floor(axis.most) + 1, step):
        place = f'x="{axis.at(minute)}" y="{_HEIGHT - _BOTTOM + 18}"'
        yield f'  <text {place} text-anchor="middle">{minute}</text>'
    yield f'  <text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">minutes</text>'


def _faults(samples: Sequence[Sample], axis: Axis) -> Iterator[str]:
    before = 0
    for each in samples:
        if each.faults > before:
            before = each.faults
            yield f'  <path class="fault" d="M{axis.at(each.at_s / 60)} {_TOP - 12}v9"/>'


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
