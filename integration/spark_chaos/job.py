"""The jobs of a driver, and its answers: files of JSON between two processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self

from integration.spark_chaos.gates import Gate, Gates, write_whole

Writer = Literal["partition", "batch", "prepared", "source", "plain"]
Input = Literal["files", "kafka", "kafka-unlimited"]


@dataclass(frozen=True)
class Job:
    """A query, to be run to its end.

    Attributes:
        answer: the file for the answer.
        writer: the sink's atomicity; "source": the data source; "plain": a producer that knows no
            transactions.
        servers: of Kafka.
        topic: to write to.
        sink_id: of the sink.
        source: folder of the input: one file is one batch; with Kafka as the input its topic.
        checkpoint: of the query.
        partitions: of the frame; with Kafka as the input its topic's count.
        is_keyed: whether rows have keys.
        gates: where the run is held up.
        halts_half_way: a gate in the middle of the rows of partition 0 of this batch; -1 for none.
        has_claims: False switches the claims of "batch" off, to see what they are for.
        options: of the sink.
        input: where rows come from.
        rows_per_batch: with input "kafka"; 0 for all that there is.
        has_other_rows: whether each row gets an end that differs each time the frame is evaluated.
    """

    answer: str
    writer: Writer
    servers: str
    topic: str
    sink_id: str
    source: str
    checkpoint: str
    partitions: int
    is_keyed: bool
    gates: Gates
    halts_half_way: int = -1
    has_claims: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    input: Input = "files"
    rows_per_batch: int = 0
    has_other_rows: bool = False

    def save(self, path: Path) -> None:
        """Write it for a driver."""
        write_whole(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it, as a driver."""
        fields = json.loads(path.read_text("utf-8"))
        found = fields.pop("gates")
        gates = Gates(found["folder"], tuple(Gate(**gate) for gate in found["gates"]))
        return cls(gates=gates, **fields)


@dataclass(frozen=True)
class Answer:
    """How a query ended.

    Attributes:
        error: what it failed with; empty if it did not.
    """

    error: str

    def save(self, path: Path) -> None:
        """Write it for the campaign."""
        write_whole(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it."""
        return cls(**json.loads(path.read_text("utf-8")))
