"""The order to a process that writes, as the campaign gives it to every client."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """A writer's work.

    Attributes:
        client: the client to write with.
        servers: the addresses of the cluster.
        transactional_id: of its producer.
        writer: the name of this process in the history. A process that replaces a killed one has
            another.
        workload: the kind of transactions.
        topics: the topics to write to.
        partitions: of each topic.
        until: the time, on the machine's monotonic clock, after which no transaction begins.
        history: the file for the lines.
        source: the topic that a copier reads.
        group: the copiers' group.
    """

    client: str
    servers: str
    transactional_id: str
    writer: str
    workload: str
    topics: list[str]
    partitions: int
    until: float
    history: str
    source: str = ""
    group: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))
