"""The settings of a run, drawn from its seed.

Owns: `PartsOptions`. Must not know: how a run uses them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from txnproducer._broker.options import ClusterOptions

TOPIC = "rows"
SINK = "sink"


@dataclass(frozen=True)
class PartsOptions:
    """The settings of a run.

    Attributes:
        seed: of the run.
        cluster: of the brokers.
        topic_partitions: of the topic with the rows.
        batches: how many batches each query writes.
        most_parts: the most parts of a batch.
    """

    seed: int
    cluster: ClusterOptions
    topic_partitions: int = 2
    batches: int = 4
    most_parts: int = 3
    timeout_ms: int = 60_000
    kill_rate: float = 0.0
    pause_rate: float = 0.0
    longest_pause_s: float = 1.0
    loss_rate: float = 0.0
    late_rate: float = 0.0
    latest_ms: float = 1000.0
    most_of_text: int = 3696
    gives_other_rows: bool = False
    driver_rows: int = 0
    on_replay_mismatch: str = "warn"
    resize_rate: float = 0.0
    renumber_rate: float = 0.0
    refresh_rate: float = 0.0
    trouble_s: float = 600.0

    @classmethod
    def draw(cls, seed: int) -> PartsOptions:
        """Return the settings of a seed."""
        rng = random.Random(f"options {seed}")
        cluster = ClusterOptions(
            node_count=rng.choice((1, 3)),
            transaction_version=rng.choice((1, 2, 2)),
            max_marker_delay_ms=rng.choice((0, 5, 50)),
            abort_check_interval_ms=1000,
        )
        return cls(
            seed,
            cluster,
            topic_partitions=rng.randint(1, 3),
            batches=rng.randint(2, 5),
            most_parts=rng.randint(1, 5),
        )
