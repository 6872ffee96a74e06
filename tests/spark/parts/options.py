"""The settings of a run, drawn from its seed.

Owns: `PartsOptions`. Must not know: how a run uses them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from txnproducer._broker.options import ClusterOptions
from txnproducer.spark.ledger.move import default_topic

TOPIC = "rows"
SINK = "sink"
LEDGER = default_topic(SINK)
PLAN_GROUP = f"__txn.{SINK}.plan"
# Of the batches that have numbers, where others have names.
FIRST_NUMBER = 2


@dataclass(frozen=True)
class PartsOptions:
    """The settings of a run.

    Attributes:
        seed: of the run.
        cluster: of the brokers.
        topic_partitions: of the topic with the rows.
        batches: how many batches each query writes.
        most_parts: the most parts of a batch.
        timeout_ms: of transactions.
        driver_rows: see the sink's option.
        on_replay_mismatch: likewise.
        most_of_text: of a decision in one offset.
        gives_other_rows: whether each evaluation of a frame gives other rows.
        resize_rate: how often the next batch has another number of parts.
        renumber_rate: how often the parts of a frame have other numbers.
        refresh_rate: how often the ledger is refreshed after a batch.
        refresh_at_start_rate: likewise, by a driver before its first batch.
        rest_rate: how often there is a rest after a batch.
        longest_rest_s: the longest of those.
        is_slow: whether some tasks take nearly as long as a transaction may.
        kill_rate: how often a process dies, by request.
        kill_rate_between: likewise, while a decided part is not committed.
        pause_rate: how often a process stands still, by request.
        pause_rate_between: likewise, while a decided part is not committed.
        pause_rate_after_look: how often a driver stands still after it has read the plan.
        longest_pause_s: the longest of those pauses.
        loss_rate: how often a request is lost, and how often its answer is.
        outage_rate: how often a broker is out of reach for a while, from a decision on. The answer
            to the decision is lost as well, if it comes from that broker.
        outage_rate_between: how often one gets out of reach, by request, while a decided part is
            not committed.
        late_rate: how often a request arrives after the end of its connection.
        latest_ms: the longest time until it does.
        moves_every_s: how often a coordinator moves; 0 for never.
        trouble_s: how long faults last, at most.
        overtaken_s: when another query takes the sink over; None for never.
        rewound_at: after which batch the query is started from an earlier checkpoint, and takes
            over its own entries that are ahead; None for never.
        has_names: whether batches have names, but for every third; the ledger is in a topic then.
        repeat_rate: how often a named run is repeated that is done.
    """

    seed: int
    cluster: ClusterOptions
    topic_partitions: int = 2
    batches: int = 4
    most_parts: int = 3
    timeout_ms: int = 60_000
    driver_rows: int = 0
    on_replay_mismatch: str = "warn"
    most_of_text: int = 3696
    gives_other_rows: bool = False
    resize_rate: float = 0.0
    renumber_rate: float = 0.0
    refresh_rate: float = 0.0
    refresh_at_start_rate: float = 0.0
    rest_rate: float = 0.0
    longest_rest_s: float = 1.0
    is_slow: bool = False
    kill_rate: float = 0.0
    kill_rate_between: float = 0.0
    pause_rate: float = 0.0
    pause_rate_between: float = 0.0
    pause_rate_after_look: float = 0.0
    longest_pause_s: float = 1.0
    loss_rate: float = 0.0
    outage_rate: float = 0.0
    outage_rate_between: float = 0.0
    late_rate: float = 0.0
    latest_ms: float = 1000.0
    moves_every_s: float = 0.0
    trouble_s: float = 600.0
    overtaken_s: float | None = None
    rewound_at: int | None = None
    has_names: bool = False
    repeat_rate: float = 0.0

    def is_named(self, batch_id: int) -> bool:
        """Return whether a batch is a named run."""
        # A query that takes a sink over writes numbers once more that are ahead of its own, so a
        # driver that wakes up late may choose one that another has written.
        is_number = batch_id % 3 == FIRST_NUMBER and self.overtaken_s is None
        return self.has_names and not is_number

    @property
    def is_cut_otherwise(self) -> bool:
        """Whether a batch may come again in another number of parts."""
        return self.most_parts > 1

    @classmethod
    def draw(cls, seed: int, *, has_names: bool = False) -> PartsOptions:
        """Return the settings of a seed."""
        found = cls._drawn(seed)
        if not has_names:
            return found._perhaps_rewound()
        # A source of its own, so that the seeds of batches with numbers stay as they are.
        rng = random.Random(f"names {seed}")
        return replace(
            found, has_names=True, batches=rng.randint(2, 6), repeat_rate=rng.choice((0, 0.2, 0.5))
        )

    def _perhaps_rewound(self) -> PartsOptions:
        """Return the settings, of which every sixth rewinds the checkpoint."""
        rng = random.Random(f"rewound {self.seed}")
        if rng.random() > 1 / 6 or self.overtaken_s is not None:
            return self
        # A batch that was written before has to have the same rows in as many parts as then.
        # Entries that are ahead matter while a decided batch is not ended.
        return replace(
            self,
            batches=max(self.batches, 4),
            rewound_at=rng.choice((1, 2)),
            resize_rate=0.0,
            gives_other_rows=False,
            kill_rate_between=max(self.kill_rate_between, 0.1),
        )

    @classmethod
    def _drawn(cls, seed: int) -> PartsOptions:
        rng = random.Random(f"options {seed}")
        longest_rest_s = rng.choice((10, 100, 30_000))
        cluster = ClusterOptions(
            node_count=rng.choice((1, 3)),
            transaction_version=rng.choice((1, 2, 2)),
            max_marker_delay_ms=rng.choice((0, 5, 50, 500)),
            # Each of these looks costs time, and none of them changes anything in a long rest.
            abort_check_interval_ms=1000 if longest_rest_s < 1000 else 10_000,
            loading_ms=rng.choice((0, 100)),
        )

        def rate(*choices: float) -> float:
            """Return 0 in half of the seeds."""
            return rng.choice((*([0.0] * len(choices)), *choices))

        is_quiet = rng.random() < 0.1
        found = cls(
            seed,
            cluster,
            topic_partitions=rng.randint(1, 3),
            batches=rng.randint(2, 5),
            most_parts=rng.choice((1, 2, 3, 3, 4, 5)),
            timeout_ms=rng.choice((40_000, 60_000, 120_000)),
            driver_rows=rng.choice((0, 0, 2)),
            on_replay_mismatch=rng.choice(("warn", "warn", "stop")),
            most_of_text=rng.choice((40, 90, 3696)),
            gives_other_rows=rng.random() < 0.4,
            resize_rate=rate(0.3, 1),
            renumber_rate=rate(0.5, 1),
            refresh_rate=rate(0.3, 1),
            rest_rate=rate(0.3),
            longest_rest_s=longest_rest_s,
        )
        if is_quiet:
            return found
        found = replace(
            found,
            is_slow=seed % 4 == 3,
            kill_rate=rate(0.003, 0.01, 0.03),
            kill_rate_between=rate(0.03, 0.1),
            pause_rate=rate(0.003, 0.01, 0.03),
            pause_rate_between=rate(0.03, 0.1),
            longest_pause_s=rng.choice((1, 10, 30, 200)),
            loss_rate=rate(0.003, 0.01, 0.03),
            outage_rate=rate(0.7),
            late_rate=rate(0.5, 1),
            latest_ms=rng.choice((30, 1000)),
            moves_every_s=rate(0.5, 5),
            trouble_s=rng.choice((10, 60, 600)),
            overtaken_s=rng.choice((None, None, None, rng.uniform(0, 5))),
            outage_rate_between=rng.choice((0, 0, 0, 0.03)),
            pause_rate_after_look=rng.choice((0, 0, 0.05, 0.2)),
            refresh_at_start_rate=rng.choice((0, 0, 0.7)),
        )
        # A broker that comes back soon, or because the faults end, leaves no end in doubt.
        has_outages = found.outage_rate or found.outage_rate_between
        return replace(found, trouble_s=600) if has_outages else found
