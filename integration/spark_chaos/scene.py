"""One run: its topic, its input, its query, and the verbs of the faults.

Owns: what is fresh for each run, and the order of things. Must not know: which faults there are.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.readers import Read, end_offset
from integration.spark_chaos import checks, kafka_input
from integration.spark_chaos.checks import Count, Poller
from integration.spark_chaos.cluster import children_of, kill_with_children, parent_of
from integration.spark_chaos.gates import STOP, Arrival, Gate, Gatekeeper
from integration.spark_chaos.job import Input, Job, Writer
from integration.spark_chaos.stage import Driver, Stage
from integration.waiting import wait_until

PARTITIONS = 3
BATCHES = 3
_QUERY_S = 300.0
_QUIET_S = 1.0
_IN_SYNC_S = 120.0


class Scene:
    """A run.

    Args:
        stage: the clusters.
        name: of the run; topic, sink id and checkpoint are named after it.
        writer: "partition", "batch", "source" or "plain".
        seed: decides what the fault leaves open.
        source: where rows come from.

    Attributes:
        rng: the seed's.
        batch: that is struck.
        partition: of Spark's that is struck.
        partitions: of Spark's that write.
        rows: all that should be there in the end.
        batches: of the query.
        has_other_rows: whether rows have another end each time they are evaluated.
    """

    def __init__(
        self, stage: Stage, name: str, writer: Writer, seed: str, source: Input = "files"
    ) -> None:
        self.stage = stage
        self.writer = writer
        self.input = source
        # A whole batch has at most one task for each partition of the topic.
        is_kafka = kafka_input.is_input(source)
        is_as_source = is_kafka and writer != "batch"
        self.partitions = kafka_input.PARTITIONS if is_as_source else PARTITIONS
        self.rng = random.Random(seed)
        # Drawn in any case, so that a seed strikes the same task with each input.
        batch = self.rng.randrange(BATCHES)
        self.batches = 1 if source == kafka_input.UNLIMITED else BATCHES
        self.batch = batch if self.batches == BATCHES else 0
        self.partition = self.rng.randrange(PARTITIONS)
        self.is_keyed = self.rng.random() < 0.5
        self.rows: list[str] = []
        self.has_other_rows = False
        self.topic = self.sink_id = name
        self.folder = stage.spark.folder / "runs" / name
        self.keeper = Gatekeeper(self.folder / "gates")
        self._source = (
            kafka_input.renumbered_topic(f"{name}-in") if is_kafka else str(self.folder / "in")
        )
        self._checkpoint = self.folder / "checkpoint"
        self._job: Job | None = None
        self._driver: Driver | None = None
        self._answers = 0
        self._poller: Poller | None = None

    def prepare(self, rows: int = 600, size_bytes: int = 100) -> None:
        """Make the topic and the input, and have a reader poll.

        Args:
            rows: of each batch.
            size_bytes: of each row.
        """
        kafka = self.stage.kafka
        kafka.create_topic(self.topic, partitions=PARTITIONS)
        self.folder.mkdir(parents=True, exist_ok=True)
        batches = [
            [checks.value_of(batch, number, size_bytes) for number in range(rows)]
            for batch in range(BATCHES)
        ]
        self.rows = [row for batch in batches for row in batch]
        if kafka_input.is_input(self.input):
            kafka.create_topic(self._source, partitions=kafka_input.PARTITIONS)
            kafka_input.fill(kafka.bootstrap_servers, self._source, self.rows)
        else:
            _write_files(Path(self._source), batches)
        if self.writer == "batch":
            self._poller = Poller(kafka.bootstrap_servers, self.topic)
            self._poller.start()

    def clear(self) -> None:
        """Stop the query, and forget the input."""
        if self._poller is not None:
            self._poller.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the query ------------------------------------------------------------------------------

    def gate(self, name: str, event: str, **more: Any) -> Gate:
        """Return a gate in the batch and partition that are struck."""
        is_of_task = event.startswith("task_")
        given = {"partition": self.partition if is_of_task else None, **more}
        return Gate(name, event, given.pop("batch_id", self.batch), **given)

    def submit(self, *gates: Gate, settings: Sequence[str] = (), **changes: Any) -> None:
        """Have the driver run the query, from its checkpoint.

        Args:
            gates: where the run is held up; none for those of the last time.
            settings: Spark's; another driver is started for others than it has.
            changes: of the job.
        """
        self._answers += 1
        last = self._job
        hook = self.keeper.hook(*gates) if gates or last is None else last.gates
        given = {
            "partitions": PARTITIONS,
            "is_keyed": self.is_keyed,
            # Prepared parts keep half of this to be ended.
            "options": {"transactionTimeout": "60000" if self.writer == "prepared" else "30000"},
            **changes,
        }
        self._job = Job(
            answer=str(self.folder / f"{self._answers}.answer"),
            writer=self.writer,
            servers=self.stage.kafka.bootstrap_servers,
            topic=self.topic,
            sink_id=self.sink_id,
            source=self._source,
            checkpoint=str(self._checkpoint),
            gates=hook,
            input=self.input,
            rows_per_batch=len(self.rows) // BATCHES if self.batches == BATCHES else 0,
            has_other_rows=self.has_other_rows,
            **given,
        )
        more = kafka_input.settings() if kafka_input.is_input(self.input) else ()
        self._driver = self.stage.driver((*settings, *more))
        self._driver.ask(self._job)

    def finish(self) -> str:
        """Wait until the query has ended, and return its error, or nothing."""
        if self._driver is None or self._job is None:
            raise RuntimeError("nothing was submitted")
        return self._driver.await_answer(self._job, _QUERY_S).error

    def stop_query(self) -> None:
        """Have the driver stop the query, as its owner would."""
        (self.keeper.folder / STOP).touch()

    def delete_checkpoint(self) -> None:
        """Have the query forget where it is."""
        shutil.rmtree(self._checkpoint)

    # --- harm -----------------------------------------------------------------------------------

    def kill_executor_of(self, who: Arrival) -> None:
        """Kill the executor of a task, with its Python workers."""
        executor = executor_of(who)
        # The grandparent of any other process may be the one that runs these tests.
        if executor not in self.stage.spark.executors():
            raise RuntimeError(f"process {who.pid} stands at a gate and is no task of an executor")
        kill_with_children(executor)

    def kill_process_of(self, who: Arrival) -> None:
        """Kill the very process that stands at a gate."""
        os.kill(who.pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill the driver, with its JVM."""
        if self._driver is None:
            raise RuntimeError("nothing was submitted")
        self._driver.kill()

    def await_no_executors(self) -> None:
        """Wait until those of a killed driver have ended as well."""
        wait_until(lambda: not self.stage.spark.executors(), "executors live on", 60.0)

    def freeze_workers_of(self, who: Arrival) -> list[int]:
        """Stop (SIGSTOP) all Python workers of a task's executor, and return them."""
        daemons = children_of(executor_of(who))
        workers = [pid for daemon in daemons for pid in children_of(daemon)]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        return workers

    @staticmethod
    def thaw(workers: Sequence[int]) -> None:
        """Let stopped processes run again."""
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    def lose_shuffles(self) -> int:
        """Delete the shuffle files of all executors, and return how many there were."""
        spark = self.stage.spark
        return sum(spark.delete_shuffle_files(executor) for executor in spark.executors())

    # --- what is there --------------------------------------------------------------------------

    def await_quiet(self) -> None:
        """Wait until something is written, and nothing more comes for a while."""
        last, since = 0, time.monotonic()

        def is_quiet() -> bool:
            nonlocal last, since
            servers = self.stage.kafka.bootstrap_servers
            now = sum(end_offset(servers, self.topic, number) for number in range(PARTITIONS))
            if now != last:
                last, since = now, time.monotonic()
            return last > 0 and time.monotonic() - since > _QUIET_S

        wait_until(is_quiet, "nothing is written", 120.0)

    def reads(self) -> list[Read]:
        """Return all that is committed, when the cluster is whole and no transaction is open."""
        kafka = self.stage.kafka
        kafka.wait_in_sync(_IN_SYNC_S)
        reads = checks.settled_reads(kafka.bootstrap_servers, self.topic, PARTITIONS)
        if not self.has_other_rows:
            return reads
        end = checks.OTHER_END.encode()
        return [replace(read, value=(read.value or b"").partition(end)[0]) for read in reads]

    def count(self, reads: Sequence[Read] | None = None) -> Count:
        """Count the rows that are there."""
        return checks.count(self.rows, self.reads() if reads is None else reads)

    def torn(self, reads: Sequence[Read]) -> list[str]:
        """Return where the reader that polled has seen a part of a batch."""
        if self._poller is None:
            return []
        self._poller.stop()
        return self._poller.torn(reads)

    @property
    def passes(self) -> int:
        """How often the topic was read meanwhile."""
        return 0 if self._poller is None else self._poller.passes

    @property
    def transactional_id(self) -> str:
        """Of the transaction that is struck."""
        return f"{self.sink_id}.{'batch' if self.writer == 'batch' else f'p{self.partition}'}"

    @property
    def ledger_group(self) -> str:
        """The group of its ledger."""
        return f"__txn.{self.transactional_id}"


def _write_files(folder: Path, batches: Sequence[Sequence[str]]) -> None:
    folder.mkdir()
    for number, lines in enumerate(batches):
        path = folder / f"{number}.txt"
        path.write_text("\n".join(lines), "utf-8")
        # Spark takes files by their time.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def executor_of(who: Arrival) -> int:
    """Return the executor of a Python worker: its daemon's parent."""
    return parent_of(who.parent)
