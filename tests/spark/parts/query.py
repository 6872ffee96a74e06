"""A streaming query: its checkpoint, its batches, and the drivers that write them.

Owns: the checkpoint, the rows of a batch, the life of a driver. Must not know: how a batch is
written, what is judged.

Rules, as of Spark: a batch is begun in the checkpoint before it is written, and done after that.
A driver that finds a batch begun, or done, by another driver ends. One that starts goes on with
the batch that was begun and is not done.
"""

from __future__ import annotations

from typing import Any

from tests.spark.parts.options import SINK, TOPIC
from tests.spark.parts.spark import Frame, SparkError
from tests.spark.parts.system import VirtualTime
from tests.spark.parts.world import World
from txnproducer.errors import KafkaError
from txnproducer.sim.stack.baton import VirtualThread
from txnproducer.spark.driver.prepared_batch import PreparedBatches
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


class Query:
    """One query, from its first batch to its last.

    Attributes:
        name: its id.
        begun: the last batch that was begun; -1 before the first.
        done: the last batch that is done; -1 before the first.
        reports: the report of each batch, by its number.
        stopped: why it cannot go on without a human; empty if it can.
        drivers: those that live.
    """

    def __init__(self, world: World, name: str, *, takes_over: bool = False) -> None:
        self.world, self.name, self.takes_over = world, name, takes_over
        self.rng = world.rng(f"query {name}")
        self.begun = self.done = -1
        self.rows: dict[int, int] = {}
        self.stopped = ""
        self.refused = 0
        self.drivers: list[Driver] = []
        self.made = 0
        self.editions = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches are done, or no driver can go on."""
        return bool(self.stopped) or self.done + 1 >= self.world.options.batches

    def start(self) -> None:
        """Start a driver beside those that live."""
        self.made += 1
        driver = Driver(self, f"{self.name}-{self.made}")
        self.drivers.append(driver)
        driver.thread.start()
        driver.thread.turn.process = driver.name

    def failed(self, driver: Driver, error: Exception) -> None:
        """Note that a driver has ended with an error."""
        self.stopped = repr(error)

    def rows_of(self, batch_id: int) -> int:
        """Return how many rows a batch has."""
        return self.rows.setdefault(batch_id, self.rng.randint(0, 6))

    def draw_edition(self) -> int:
        """Return the number of another evaluation of a frame."""
        if not self.world.options.gives_other_rows:
            return 0
        self.editions += 1
        return self.editions


class Driver:
    """One driver of a query, from its start to its end."""

    def __init__(self, query: Query, name: str) -> None:
        self.query, self.name = query, name
        self.rng = query.world.rng(f"driver {name}")
        self.is_over = False
        self.thread = VirtualThread(query.world.baton, self._run, name)

    def _run(self) -> None:
        query, world = self.query, self.query.world
        world.killers[self.name] = self.kill
        try:
            self._drive()
        finally:
            self.is_over = True
            world.killers.pop(self.name, None)
            query.drivers.remove(self)
            world.trace("the driver ends")

    def kill(self) -> None:
        """Kill the process."""
        self.query.world.baton.kill(self.name)

    def _drive(self) -> None:
        query, world = self.query, self.query.world
        options = world.options
        settings = read_settings(
            bootstrap_servers="broker-0:9092",
            sink_id=SINK,
            topic=TOPIC,
            atomicity="prepared",
            driver_rows=options.driver_rows,
            transaction_timeout_ms=options.timeout_ms,
            on_replay_mismatch=options.on_replay_mismatch,
            on_foreign_ledger="take_over" if query.takes_over else "stop",
        )
        batches = PreparedBatches(settings, settings.sink_ledger, Checks(settings), None)  # type: ignore[arg-type]
        batch_id = query.begun if query.begun > query.done else query.done + 1
        parts = self.rng.randint(1, options.most_parts)
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
            query.refused = 0
            batch_id += 1
            if query.begun >= batch_id:
                return
            if self.rng.random() < options.resize_rate:
                parts = self.rng.randint(1, options.most_parts)
            self._rest(batches)
        batches.close()

    def _rest(self, batches: PreparedBatches) -> None:
        """Let time pass between two batches."""
        options, world = self.query.world.options, self.query.world
        if self.rng.random() < options.refresh_rate:
            try:
                found = batches.refresh(self.query.name, self._settings_of(batches))
                world.trace(f"refreshes {found}")
            except KafkaError as error:
                world.trace(f"does not refresh: {error!r}")

    @staticmethod
    def _settings_of(batches: PreparedBatches) -> Any:
        return batches._cluster.producer_settings()

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
        try:
            batches.check(batch_id, query.name)
            report = batches.write(frame, batch_id, query.name, VirtualTime.monotonic())
        except (KafkaError, SparkError) as error:
            world.trace(f"fails: {error!r}")
            world.counts[type(error).__name__] += 1
            query.failed(self, error)
            return False
        if report.rows != query.rows_of(batch_id):
            world.violate("report", f"{report.rows} rows of batch {batch_id}")
        return True
