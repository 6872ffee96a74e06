"""The works, their writers, and the targets of ours. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from integration.benchmarks.works import Work

SPARK, PARTITION, BATCH = "Spark's own", "ours, partition", "ours, batch"
PEERS = (SPARK, PARTITION, BATCH)
PARTITION_TASKS, BATCH_TASKS = "ours, partition, by tasks", "ours, batch, by tasks"
# Atomicity, and the most rows that the driver writes: the default, any number, none.
SINKS: dict[str, tuple[str, int | None]] = {
    PARTITION: ("partition", None),
    BATCH: ("batch", None),
    PARTITION_TASKS: ("partition", 0),
    BATCH_TASKS: ("batch", 0),
}
ANY_NUMBER = 10**9
BY_DRIVER: dict[str, tuple[str, int | None]] = {
    PARTITION: ("partition", ANY_NUMBER),
    BATCH: ("batch", ANY_NUMBER),
}
SIZES = (0, 100, 1_000, 10_000, 30_000, 100_000)
KEYLESS, KEYED, EMPTY, SMALL = "keyless rows", "rows with keys", "an empty batch", "100 rows"
VALUE_BYTES = 100


def works(rows: int) -> tuple[Work, ...]:
    """Return the works: two of many rows, two that are all overhead."""
    return (
        Work(KEYLESS, VALUE_BYTES, rows),
        Work(KEYED, VALUE_BYTES, rows),
        Work(EMPTY, VALUE_BYTES, 0),
        Work(SMALL, VALUE_BYTES, 100),
    )


@dataclass(frozen=True)
class Target:
    """The target of one of our writers beside Spark's own.

    Attributes:
        work: by its name.
        ours: which.
        limit: rows a second at least so many times Spark's; of overhead, time at most.
    """

    work: str
    ours: str
    limit: float

    @property
    def is_of_overhead(self) -> bool:
        return self.work in (EMPTY, SMALL)

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.is_of_overhead else ratio >= self.limit


TARGETS = (
    Target(KEYLESS, PARTITION, 1.5),
    Target(KEYED, PARTITION, 1.5),
    Target(KEYLESS, BATCH, 1.5),
    Target(KEYED, BATCH, 1.0),
    Target(EMPTY, PARTITION, 1.5),
    Target(EMPTY, BATCH, 1.5),
    Target(SMALL, PARTITION, 1.5),
    Target(SMALL, BATCH, 1.5),
)
