"""A streaming query: its checkpoint, its batches, and the drivers that write them.

Owns: the checkpoint, the rows of a batch, the life of a driver. Must not know: how a batch is
written, what is judged.

Rules, as of Spark: a batch is begun in the checkpoint before it is written, and done after that.
A driver that finds a batch begun, or done, by another driver ends. One that starts goes on with
the batch that was begun and is not done.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from tests.spark.parts.options import FIRST_NUMBER, SINK, TOPIC
from tests.spark.parts.spark import Frame, SparkError
from tests.spark.parts.system import VirtualTime
from tests.spark.parts.world import World
from txnproducer.errors import KafkaError
from txnproducer.sim.stack.baton import VirtualThread
from txnproducer.spark.driver.prepared_batch import PreparedBatches
from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    StaleRunError,
    TornBatchError,
)
from txnproducer.spark.options import SinkSettings, read_settings


class Checks:
    """Stands for the checks against the cluster, which have been made."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self.partitions: int | None = None

    def timeout_ms(self) -> int:
        """See `ClusterChecks`."""
        assert self._settings.transaction_timeout_ms is not None
        return self._settings.transaction_timeout_ms

    def producer_settings(self) -> dict[str, Any]:
        """See `ClusterChecks`."""
        return {"transaction.timeout.ms": str(self.timeout_ms()), **self._settings.producer}


FINAL = (PartialReplayError, ReplayMismatchError)
# Reasons to stop, unless another driver is at work that may be the cause.
_OTHERS = (LedgerError, StaleRunError, TornBatchError)
_MOST_REFUSALS = 3
# Of a query at one time. In a long outage each of them would stand still and be replaced.
_MOST_DRIVERS = 4
# In peace, of drivers that wait for a time-out, or for zombies to end.
_MOST_FAILURES = 100


class Query:
    """One query, from its first batch to its last.

    Args:
        world: where it runs.
        name: its id.
        takes_over: whether it takes the sink over from another query.

    Attributes:
        begun: the last batch that was begun; -1 before the first.
        done: the last batch that is done; -1 before the first.
        stopped: the error that only a human can end; None if there is none.
        is_overtaken: whether another query has taken the sink over, so that this one may stop.
        rewound: the batches that may be there twice, since the checkpoint was set back.
        drivers: those that live.
    """

    def __init__(self, world: World, name: str, *, takes_over: bool = False) -> None:
        self.world, self.name, self.takes_over = world, name, takes_over
        self.rng = world.rng(f"query {name}")
        self.begun = self.done = -1
        self.stopped: Exception | None = None
        self.stopped_at = -1
        self.is_overtaken = False
        self.rewound = range(0)
        self._parts = 0
        self.drivers: list[Driver] = []
        self._rows: dict[int, int] = {}
        self._made = self._editions = self._refused = self._failures = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches are done, or no driver can go on."""
        return self.stopped is not None or self.done + 1 >= self.world.options.batches

    def start(self) -> None:
        """Start a driver, beside those that live."""
        if self.is_over or self.world.violations:
            return
        self._made += 1
        driver = self.make_driver(f"{self.name}-{self._made}")
        self.drivers.append(driver)
        driver.start()

    def rewind(self) -> None:
        """Start from an earlier checkpoint, when the last driver has ended."""
        if self.is_over or self.rewound:
            return
        for driver in list(self.drivers):
            driver.kill()
        first = self.rng.randint(0, self.done - 1)
        self.rewound = range(first, self.begun + 1)
        self.world.trace(f"the checkpoint is set back to batch {first}")
        self.world.count("rewind the checkpoint")
        self.begun = self.done = first - 1
        self.takes_over = True
        if not self.drivers:  # otherwise the end of the last one starts another
            self.start_soon()

    def draw_parts(self, rng: random.Random) -> int:
        """Return the number of parts of a driver's first batch."""
        if self.world.options.rewound_at is not None:
            self._parts = self._parts or rng.randint(1, self.world.options.most_parts)
            return self._parts
        return rng.randint(1, self.world.options.most_parts)

    def make_driver(self, name: str) -> Driver:
        """Make a driver."""
        return Driver(self, name)

    @property
    def begun_batches(self) -> list[int]:
        """The batches that were begun."""
        return list(range(self.begun + 1))

    @property
    def done_batches(self) -> list[int]:
        """The batches that are done."""
        return list(range(self.done + 1))

    def named(self, batch_id: int) -> dict[str, str]:
        """Return the name of a batch, as an argument, or nothing."""
        is_named = self.world.options.is_named(batch_id)
        return {"run_id": f"run-{batch_id}"} if is_named else {}

    def start_soon(self, longest_s: float = 5.0) -> None:
        """Start a driver in a while, as a scheduler does that takes the last one for dead."""
        self.world.baton.call_after(1000 * self.rng.uniform(0.05, longest_s), self.start)

    def ended(self, driver: Driver) -> None:
        """Note the end of a driver, and start another one if it was the last."""
        self.drivers.remove(driver)
        if not self.drivers:
            self.start_soon()

    def failed(self, batch_id: int, error: Exception, done: Collection[int]) -> None:
        """Note that a driver ends with an error. These batches were done when it began."""
        del done
        is_others = isinstance(error, _OTHERS)
        # Before the faults have ended, it may belong to a driver that is dead.
        is_alone = self.world.is_healed and len(self.drivers) == 1
        self._refused = self._refused + 1 if is_others and is_alone else 0
        self._failures += self.world.is_healed
        is_final = (
            isinstance(error, FINAL)
            or self._refused >= _MOST_REFUSALS
            or self._failures >= _MOST_FAILURES
        )
        if is_final or (is_others and self.is_overtaken):
            self.stopped, self.stopped_at = error, batch_id

    def rows_of(self, batch_id: int) -> int:
        """Return how many rows a batch has."""
        return self._rows.setdefault(batch_id, self.rng.randint(0, 6))

    def draw_edition(self) -> int:
        """Return the number of another evaluation of a frame."""
        if not self.world.options.gives_other_rows:
            return 0
        self._editions += 1
        return self._editions


class Driver(VirtualThread):
    """One driver of a query, from its start to its end, in a process of its own."""

    def __init__(self, query: Query, name: str) -> None:
        super().__init__(query.world.baton, self._run, name)
        self.query, self.rng = query, query.world.rng(f"driver {name}")

    def start(self) -> None:
        self.query.world.processes[self.name] = self
        super().start()
        self.turn.process = self.name

    def _run(self) -> None:
        try:
            self._drive()
        finally:
            self.query.world.processes.pop(self.name, None)
            self.query.world.trace("the driver ends")
            self.query.ended(self)

    def kill(self) -> None:
        """Kill the process. Some of its tasks live on for a while."""
        world = self.query.world
        world.baton.kill(self.name)
        for name, process in list(world.processes.items()):
            if getattr(process, "driver", "") == self.name and self.rng.random() < 0.5:
                world.baton.kill(name)

    def pauses(self, seconds: float) -> None:
        """Let another driver be started, perhaps, while this one stands still."""
        if seconds > 1 and self.rng.random() < 0.5 and len(self.query.drivers) < _MOST_DRIVERS:
            self.query.world.count("replace a driver")
            self.query.start_soon(seconds)

    def _made(self) -> tuple[PreparedBatches, SinkSettings]:
        query, options = self.query, self.query.world.options
        settings = read_settings(
            bootstrap_servers="broker-0:9092",
            sink_id=SINK,
            topic=TOPIC,
            atomicity="prepared",
            driver_rows=options.driver_rows,
            transaction_timeout_ms=options.timeout_ms,
            on_replay_mismatch=options.on_replay_mismatch,
            on_foreign_ledger="take_over" if query.takes_over else "stop",
            ledger="topic" if options.has_names else "offsets",
            first_batch_id=FIRST_NUMBER if options.has_names else 0,
        )
        ledger = settings.sink_ledger
        return PreparedBatches(settings, ledger, Checks(settings), None), settings  # type: ignore[arg-type]

    def _drive(self) -> None:
        query, world = self.query, self.query.world
        options = world.options
        batches, settings = self._made()
        batch_id = query.begun if query.begun > query.done else query.done + 1
        parts = query.draw_parts(self.rng)
        if self.rng.random() < options.refresh_at_start_rate and not options.has_names:
            self._refresh(batches, settings)
        while not query.is_over:
            if batch_id > query.begun + 1 or batch_id <= query.done:
                return  # another driver has gone on
            query.begun = max(query.begun, batch_id)
            if not self._write(batches, batch_id, parts):
                return
            world.trace(f"batch {batch_id} is done")
            if query.done >= batch_id:
                return
            query.done = batch_id
            if batch_id == options.rewound_at:
                world.baton.call_after(self.rng.uniform(0, 200), query.rewind)
            batch_id += 1
            if query.begun >= batch_id:
                return
            if self.rng.random() < options.resize_rate:
                parts = self.rng.randint(1, options.most_parts)
            self._rest(batches, settings)
        batches.close()

    def _rest(self, batches: PreparedBatches, settings: SinkSettings) -> None:
        """Let time pass between two batches."""
        options, world = self.query.world.options, self.query.world
        if self.rng.random() < options.rest_rate:
            world.rest(options.longest_rest_s * 10 ** self.rng.uniform(-2, 0))
        # Records of a topic do not expire.
        if self.rng.random() < options.refresh_rate and not options.has_names:
            self._refresh(batches, settings)

    def _refresh(self, batches: PreparedBatches, settings: SinkSettings) -> None:
        world = self.query.world
        try:
            found = batches.refresh(self.query.name, Checks(settings).producer_settings())
            world.trace(f"refreshes {found}")
            world.count("refresh")
        except KafkaError as error:
            world.trace(f"does not refresh: {error!r}")

    def _write(self, batches: PreparedBatches, batch_id: int, parts: int) -> bool:
        """Write a batch. Return whether it is written."""
        query, world = self.query, self.query.world
        order = list(range(parts))
        if self.rng.random() < world.options.renumber_rate:
            self.rng.shuffle(order)
        edition = query.draw_edition
        frame = Frame(
            f"{query.name}|{batch_id}", query.rows_of(batch_id), parts, self.rng, edition, order
        )
        world.trace(f"writes batch {batch_id} in {parts} parts")
        named = query.named(batch_id)
        number, done = 0 if named else batch_id, query.done_batches
        try:
            batches.check(number, query.name, **named)
            report = batches.write(frame, number, query.name, VirtualTime.monotonic(), **named)
        except (KafkaError, SparkError) as error:
            world.trace(f"fails: {error!r}")
            world.count(type(error).__name__)
            query.failed(batch_id, error, done)
            return False
        if report.rows != query.rows_of(batch_id):
            world.violate("report", f"{report.rows} rows of batch {batch_id}")
        if batch_id in done and report.transactions:
            world.violate("report", f"batch {batch_id} was done, and is written again")
        return True
