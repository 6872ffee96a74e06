"""The order to a peer's process, and its answer.

Owns: both, and their form for Python's peers (JSON). `java` has the form for the other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict


class FailedRunError(Exception):
    """A run has no result, for the reason in the text."""


class LeftOutError(Exception):
    """A peer cannot do a work at all, for the reason in the text."""


@dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        peer: which.
        servers: the broker.
        topic: a fresh one.
        transactional_id: a fresh one.
        pool: path of a file with values, one after the other.
        value_bytes: of each value.
        records: of each transaction.
        partitions: of the topic.
        threads: that send.
        least: transactions to measure at least.
        most: and at most.
        seconds: after which no further one is begun, once there are enough.
        warm_seconds: of the same work before that, not measured; 0 for none.
        watches_memory: whether memory is asked for after each transaction.
        brokers: their process ids.
        settings: in the peer's words.
    """

    peer: str
    servers: str
    topic: str
    transactional_id: str
    pool: str
    value_bytes: int
    records: int
    partitions: int
    threads: int
    least: int
    most: int
    seconds: float
    warm_seconds: float
    watches_memory: bool
    brokers: list[int]
    settings: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


class Told(TypedDict):
    """The result of a measurement: seconds, milliseconds of each transaction, and MB.

    `latencies` are of whole transactions, `commits` of their last call. `rss` is taken before the
    first one that is measured, and after each, `peaks` is the most there was in each; both only
    where memory is watched, and never by Java's process. `busy` has that module's groups, and
    is not told by Java's process either.
    """

    version: str
    warm: int
    transactions: int
    seconds: float
    cpu: float
    latencies: list[float]
    commits: list[float]
    rss: list[float]
    peaks: list[float]
    busy: NotRequired[dict[str, float]]
