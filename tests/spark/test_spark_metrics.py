"""The gauges of a sink in the metrics of Spark: their growth, their pace, and a refusal."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from txnproducer.spark import spark_metrics
from txnproducer.spark.reports import SinkTotals
from txnproducer.spark.spark_metrics import SinkGauges

FIRST = SinkTotals(
    batches=1, rows=100, size_bytes=900, transactions=2, replayed=1, retries=1, seconds=0.5
)
SECOND = replace(FIRST, batches=2, rows=160, seconds=0.75)


class Gauge:
    """An accumulator of the JVM's."""

    def __init__(self, values: Counter[str], name: str) -> None:
        self._values, self._name = values, name

    def add(self, value: int) -> None:
        self._values[self._name] += value

    def setValue(self, value: int) -> None:  # noqa: N802 - Spark's name
        self._values[self._name] = value


@pytest.fixture
def values(monkeypatch):
    """Return the values of the gauges of an application."""
    found: Counter[str] = Counter()
    names = (*spark_metrics._SUMS.values(), "milliseconds", "last_timeout_percent")
    made = {name: Gauge(found, name) for name in names}
    monkeypatch.setattr(spark_metrics, "context_of", lambda _: object())
    monkeypatch.setattr(spark_metrics, "_gauges_of", lambda *_: made)
    return found


@pytest.fixture
def at(monkeypatch):
    """Return a function that sets the time, in seconds."""
    return lambda seconds: monkeypatch.setattr(time, "monotonic", lambda: seconds)


def test_the_totals_of_a_sink_are_added_up(values, at):
    gauges = SinkGauges("orders")
    at(10.0)
    gauges.tell(FIRST, 0.25)
    at(12.0)
    gauges.tell(SECOND, 0.5)
    assert values == {
        "batches": 2,
        "rows": 160,
        "bytes": 900,
        "transactions": 2,
        "replayed_partitions": 1,
        "retries": 1,
        "milliseconds": 750,
        "last_timeout_percent": 50,
    }


def test_two_sinks_of_one_id_add_to_the_same_gauges(values, at):
    at(10.0)
    for _ in range(2):
        SinkGauges("orders").tell(FIRST, 0.25)
    assert (values["batches"], values["rows"]) == (2, 200)


def test_gauges_are_set_at_most_once_a_second_and_at_the_end(values, at):
    gauges = SinkGauges("orders")
    at(10.0)
    gauges.tell(FIRST, 0.25)
    at(10.9)
    gauges.tell(SECOND, 0.5)
    assert values["batches"] == 1
    gauges.tell(SECOND, 0.5, is_last=True)
    assert (values["batches"], values["rows"]) == (2, 160)


def test_a_refusal_of_spark_fails_no_batch_and_is_not_repeated(monkeypatch, at):
    calls = []

    def refuse(*given):
        calls.append(given)
        raise AttributeError("no such class")

    monkeypatch.setattr(spark_metrics, "context_of", lambda _: object())
    monkeypatch.setattr(spark_metrics, "_gauges_of", refuse)
    gauges = SinkGauges("orders")
    for second in range(3):
        at(10.0 * second)
        gauges.tell(FIRST, 0.25)
    assert len(calls) == 1
