"""`python -m integration.benchmarks.phases`: where the time of a short transaction goes.

One producer, one record per transaction, one after another. Notes when each request goes out and
when its answer is taken, which costs a few microseconds each. Must not be used beside anything
else: it looks into the library, whose names may change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from integration.benchmarks.markdown import table
from txnproducer import TransactionalProducer
from txnproducer._wire.connection import Connection
from txnproducer.testing import EmbeddedKafka

_TOPIC = "phases"
_GATE, _PRODUCE, _END = "DescribeTransactionsRequest", "ProduceRequest", "EndTxnRequest"


@dataclass
class Timeline:
    """Seconds at which requests went out and answers were taken, by the request's name."""

    sent: dict[str, list[float]] = field(default_factory=dict)
    answered: dict[str, list[float]] = field(default_factory=dict)

    def watch(self) -> None:
        """Note everything from now on, of all connections."""
        send, receive = Connection.send_request, Connection.receive

        def noted_send(connection: Connection, request: Any, *others: Any) -> Any:
            name = type(request.body).__name__
            self.sent.setdefault(name, []).append(time.perf_counter())
            return send(connection, request, *others)

        def noted_receive(connection: Connection, now_ms: int, events: list[Any]) -> None:
            known = len(events)
            receive(connection, now_ms, events)
            now = time.perf_counter()
            for event in events[known:]:
                self.answered.setdefault(type(event.request.body).__name__, []).append(now)

        Connection.send_request = noted_send  # type: ignore[assignment,method-assign]
        Connection.receive = noted_receive  # type: ignore[assignment,method-assign]

    def forget(self) -> None:
        self.sent, self.answered = {}, {}


@dataclass
class Spans:
    """Microseconds of the parts of each transaction."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, begin: float, end: float) -> None:
        self.found.setdefault(name, []).append((end - begin) * 1e6)

    def lines(self) -> Iterator[str]:
        rows = []
        for name, spans in self.found.items():
            ordered = sorted(spans)
            share = [ordered[len(ordered) * percent // 100] for percent in (10, 90, 99)]
            cells = (statistics.median(ordered), *share)
            rows.append((name, f"{len(ordered):,}", *(f"{each:,.0f}" for each in cells)))
        yield from table(("µs", "transactions", "median", "p10", "p90", "p99"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=2_000)
    parser.add_argument("--brokers", type=int, default=1)
    arguments = parser.parse_args()
    with EmbeddedKafka(arguments.brokers) as kafka:
        kafka.create_topic(_TOPIC, partitions=1)
        with TransactionalProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=_TOPIC, linger_ms=0
        ) as producer:
            producer.init_transactions()
            for line in _measure(producer, arguments.transactions):
                print(line)


def _measure(producer: TransactionalProducer, count: int) -> Iterator[str]:
    timeline, spans = Timeline(), Spans()
    for _ in range(count):  # what runs often is compiled by then, at the broker
        _transaction(producer)
    timeline.watch()
    _transaction(producer)
    answered = timeline.answered[_END][-1]
    began = time.perf_counter()
    for _ in range(count):
        timeline.forget()
        steps = _transaction(producer)
        answered = _add(spans, timeline, answered, steps)
    seconds = time.perf_counter() - began
    yield from spans.lines()
    yield f"\n{count / seconds:,.0f} transactions/s"


def _transaction(producer: TransactionalProducer) -> tuple[float, float]:
    """Return when it began, and when its record was handed over."""
    began = time.perf_counter()
    producer.begin_transaction()
    producer.send(_TOPIC, b"x" * 100)
    sent = time.perf_counter()
    producer.commit_transaction()
    return began, sent


def _add(spans: Spans, timeline: Timeline, before: float, steps: tuple[float, float]) -> float:
    """Add a transaction's parts, and return when its EndTxn was answered.

    Args:
        spans: where to.
        timeline: what was sent and answered since the one before.
        before: when that one's EndTxn was answered.
        steps: when this one began, and when its record was handed over.
    """
    began, handed = steps
    sent, answered = timeline.sent, timeline.answered
    produced, ended = answered[_PRODUCE][-1], answered[_END][-1]
    spans.add("EndTxn answered - next begin", before, began)
    spans.add("begin, send", began, handed)
    spans.add("handed over - Produce", handed, sent[_PRODUCE][0])
    if answered.get(_GATE):
        spans.add("of that: until the last DescribeTransactions", handed, answered[_GATE][-1])
        spans.add("EndTxn answered - markers known to be there", before, answered[_GATE][-1])
    spans.add("Produce - its answer", sent[_PRODUCE][0], produced)
    spans.add("answer - EndTxn", produced, sent[_END][0])
    spans.add("EndTxn - its answer", sent[_END][0], ended)
    spans.add("from EndTxn's answer to the next", before, ended)
    return ended


if __name__ == "__main__":
    main()
