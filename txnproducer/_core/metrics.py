"""Counters, averages and rates under the Java client's names.

Owns: the numbers. Must not know: their subjects. Rule: the work is per batch or per request, never
per record. A number that another part keeps (memory, requests in flight) is read when asked for.
"""

from __future__ import annotations

from typing import Final

# Java's `metrics.sample.window.ms`; like Java, an average has the samples of two windows.
_WINDOW_MS: Final = 30_000
_COUNTED: Final = ("record-send", "record-retry", "record-error", "batch-split")
_WITH_MAXIMUM: Final = (
    "batch-size",
    "record-queue-time",
    "request-latency",
    "produce-throttle-time",
)
_WITHOUT_MAXIMUM: Final = ("compression-rate", "records-per-request")


class Stat:
    """Sum, count and maximum of a value, over the current and the previous window.

    Attributes:
        note: notes a value for the next `roll`. It is a list's own method, since each batch has
            three values and each request four.
        total: the sum of all values that were taken in.
    """

    __slots__ = (
        "_count",
        "_last_count",
        "_last_max",
        "_last_sum",
        "_max",
        "_noted",
        "_start_ms",
        "_sum",
        "note",
        "total",
    )

    def __init__(self, now_ms: int) -> None:
        self._start_ms = now_ms
        self._sum = self._last_sum = self.total = 0.0
        self._count = self._last_count = 0
        self._max = self._last_max = 0.0
        self._noted: list[float] = []
        self.note = self._noted.append

    def record(self, value: float, now_ms: int) -> None:
        """Take in a value."""
        self.roll(now_ms)
        self.note(value)

    def roll(self, now_ms: int) -> None:
        """Take in the values that were noted, and begin the next window if it is time."""
        noted = self._noted
        if noted:
            added = sum(noted)
            self._sum += added
            self.total += added
            self._count += len(noted)
            self._max = max(self._max, max(noted))
            noted.clear()
        elapsed = now_ms - self._start_ms
        if elapsed < _WINDOW_MS:
            return
        # After a pause of a whole window the previous one has no samples.
        is_next = elapsed < 2 * _WINDOW_MS
        self._last_sum = self._sum if is_next else 0.0
        self._last_count = self._count if is_next else 0
        self._last_max = self._max if is_next else 0.0
        self._sum, self._count, self._max = 0.0, 0, 0.0
        self._start_ms = now_ms if not is_next else self._start_ms + _WINDOW_MS

    def average(self, now_ms: int) -> float:
        """Return the average; 0.0 of nothing."""
        self.roll(now_ms)
        count = self._count + self._last_count
        return (self._sum + self._last_sum) / count if count else 0.0

    def maximum(self, now_ms: int) -> float:
        """Return the greatest value; 0.0 of nothing."""
        self.roll(now_ms)
        return max(self._max, self._last_max)

    def rate(self, now_ms: int) -> float:
        """Return the sum per second."""
        self.roll(now_ms)
        # At least 1, since a rate may be asked for in the millisecond in which a window begins.
        elapsed_ms = max(1, now_ms - self._start_ms + (_WINDOW_MS if self._last_count else 0))
        return (self._sum + self._last_sum) * 1000 / elapsed_ms


class Metrics:
    """The counters and averages of one producer.

    Args:
        now_ms: the start of the first window.
    """

    def __init__(self, now_ms: int) -> None:
        self._times: dict[str, float] = {}
        self._rates = {name: Stat(now_ms) for name in _COUNTED}
        self._stats = {name: Stat(now_ms) for name in (*_WITH_MAXIMUM, *_WITHOUT_MAXIMUM)}

    def count(self, name: str, amount: float, now_ms: int) -> None:
        """Count something that has a total and a rate: `record-retry`, `record-error` ..."""
        self._rates[name].record(amount, now_ms)

    def rate(self, name: str) -> Stat:
        """Return the count of something that has a total and a rate: `record-send` ..."""
        return self._rates[name]

    def stat(self, name: str) -> Stat:
        """Return a value's average and maximum: `batch-size`, `request-latency` ..."""
        return self._stats[name]

    def add_time(self, name: str, duration_ns: int) -> None:
        """Add to a total of time: `txn-commit` gives `txn-commit-time-ns-total`."""
        key = f"{name}-time-ns-total"
        self._times[key] = self._times.get(key, 0.0) + duration_ns

    def snapshot(self, now_ms: int) -> dict[str, float]:
        """Return all of them by name. An average of nothing is 0.0 (NaN in Java)."""
        values = dict(self._times)
        for name, stat in self._rates.items():
            values[f"{name}-rate"] = stat.rate(now_ms)
            values[f"{name}-total"] = stat.total
        for name, stat in self._stats.items():
            values[f"{name}-avg"] = stat.average(now_ms)
            if name in _WITH_MAXIMUM:
                values[f"{name}-max"] = stat.maximum(now_ms)
        return values
