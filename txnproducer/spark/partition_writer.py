"""What a task does with its partition: one transaction, with the ledger's entry in it.

Owns: the task's side of the protocol. Must not know: the driver, other partitions.

Rules:
* `InitProducerId` comes first: it fences every earlier attempt of this partition and aborts what
  it left open. Only then is the ledger read, since until then an older attempt could still commit.
* With the ledger the plan is read: a task of an earlier run of the sink writes nothing.
* A batch that the ledger holds is not written again: its rows are read and compared, by count and
  digest, with what was committed. Other rows are an error, never silence.
* An attempt that loses its transaction (fenced, timed out) looks at the ledger before it fails: a
  twin may have committed the very same rows, and then all is well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.digest import Digest
from txnproducer.spark.entries import LedgerEntry, PlanEntry
from txnproducer.spark.errors import ReplayMismatchError
from txnproducer.spark.ledger import Ledger
from txnproducer.spark.ledger_rules import LedgerRules
from txnproducer.spark.runs import check_run
from txnproducer.spark.schema import Record, RowReader

_LOG = logging.getLogger(__name__)
_CLOSE_S = 30.0

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class PartitionReport:
    """What a task did.

    Attributes:
        partition: Spark's number of it.
        rows: how many it wrote, or found written.
        size_bytes: of keys and values.
        digest: of the rows.
        is_replay: whether they were committed before.
        seconds: by phase: init, ledger, write, commit.
    """

    partition: int
    rows: int
    size_bytes: int
    digest: str
    is_replay: bool
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class BatchPlan:
    """All that a task must know; goes to the tasks in the closure.

    Attributes:
        ledger: where the entries are.
        rules: what to do about one that does not fit.
        producer: the producer's settings, by Java's names.
        topic: for all rows, or None.
        batch_id: the batch.
        query_id: whose.
        writers: how many partitions write it.
        run: of the sink; a task whose run is over writes nothing.
        on_replay_mismatch: "stop", or "keep" to leave what was committed as it is.
        on_event: told what happens, in the task's process.
        include_headers: whether the column `headers` is written.
    """

    ledger: Ledger
    rules: LedgerRules
    producer: Mapping[str, str]
    topic: str | None
    batch_id: int
    query_id: str
    writers: int
    run: int
    on_replay_mismatch: str = "stop"
    on_event: OnEvent | None = None
    include_headers: bool = True

    def write(self, partition: int, rows: Iterable[Any]) -> PartitionReport:
        """Write a partition, exactly once.

        Raises:
            SinkError: refused; nothing was written by this call.
            KafkaError: failed; nothing of this call will be visible.
        """
        return _PartitionWriter(self, partition).write(rows)

    def digest(self, rows: Iterable[Any]) -> Digest:
        """Return what a partition's rows add up to; nothing is written."""
        digest = Digest()
        self.add_to(digest, rows)
        return digest

    def add_to(self, digest: Digest, rows: Iterable[Any]) -> None:
        """Read rows to their end, and add them to a digest."""
        for topic, partition, key, value, headers in self.records(rows):
            digest.add(topic, partition, key, value, headers)

    def records(self, rows: Iterable[Any]) -> Iterator[Record]:
        """Turn rows into records."""
        return RowReader(self.topic, self.include_headers).records(rows)

    def compare(
        self, entries: Mapping[int, LedgerEntry], found: Mapping[int, tuple[int, str]]
    ) -> None:
        """Compare what partitions have committed with the rows that they have now.

        Args:
            entries: of this batch, by partition.
            found: rows and digest of each of these partitions.

        Raises:
            ReplayMismatchError: they differ, and that is not allowed.
        """
        nothing = (0, Digest().hex())
        others = [
            f"partition {partition}: {entry.rows} rows (digest {entry.digest}) were committed, "
            "now there are {} (digest {})".format(*found.get(partition, nothing))
            for partition, entry in sorted(entries.items())
            if found.get(partition, nothing) != (entry.rows, entry.digest)
        ]
        if others and self.on_replay_mismatch != "keep":
            raise ReplayMismatchError(
                f"batch {self.batch_id} comes again with other rows. {'; '.join(others)}. The "
                "source or the plan does not give the same rows again, so the rest of the batch "
                "can't be written exactly once. What was committed stays. Ways out: a source "
                'that can be read again; on_replay_mismatch="keep" to go on with what was '
                "committed; another sink id."
            )

    def tell(self, name: str, partition: int, rows: int) -> None:
        """Tell the hook of an event."""
        if self.on_event is not None:
            info = {"batch_id": self.batch_id, "partition": partition, "rows": rows}
            self.on_event(name, info)


@dataclass
class _PartitionWriter:
    plan: BatchPlan
    partition: int
    seconds: dict[str, float] = field(default_factory=dict)

    def write(self, rows: Iterable[Any]) -> PartitionReport:
        plan, rows = self.plan, iter(rows)  # one pass, however often it is taken up again
        name = plan.ledger.transactional_id(self.partition)
        config = ProducerConfig.from_properties({**plan.producer, "transactional.id": name})
        producer = TransactionalProducer.from_config(config)
        try:
            self._timed("init", producer.init_transactions)
            entry = self._timed("ledger", self._committed_in_this_run)
            if entry is not None:
                return self._compare(entry, plan.digest(rows))
            return self._write(producer, rows)
        finally:
            producer.close(_CLOSE_S)

    def _timed(self, phase: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return action()
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began

    def _committed_in_this_run(self) -> LedgerEntry | None:
        """Return what `_committed` does, if this task's run is still the one that counts."""
        run, entry = self._look()
        check_run(run, self.plan.run, self.plan.query_id)
        return entry

    def _committed(self) -> LedgerEntry | None:
        """Return this partition's entry if it is this batch's."""
        return self._look()[1]

    def _look(self) -> tuple[PlanEntry | None, LedgerEntry | None]:
        plan = self.plan
        run, entries = plan.ledger.read([self.partition])
        fitting = plan.rules.fitting(entries, plan.batch_id, plan.query_id)
        entry = fitting.get(self.partition)
        return run, entry if entry is not None and entry.batch_id == plan.batch_id else None

    def _write(self, producer: TransactionalProducer, rows: Iterable[Any]) -> PartitionReport:
        plan, digest = self.plan, Digest()
        try:
            producer.begin_transaction()
            self._timed("write", lambda: self._send(producer, rows, digest))
            entry = LedgerEntry(
                plan.batch_id, plan.query_id, plan.writers, digest.count, digest.hex()
            )
            self._timed("ledger", lambda: plan.ledger.write(producer, self.partition, entry))
            plan.tell("task_before_commit", self.partition, digest.count)
            self._timed("commit", producer.commit_transaction)
        except (ProducerFencedError, InvalidProducerEpochError, InvalidTxnStateError) as error:
            return self._after_loss(rows, digest, error)
        except KafkaError as error:
            if isinstance(error.__cause__, InvalidProducerEpochError | InvalidTxnStateError):
                return self._after_loss(rows, digest, error)
            raise
        plan.tell("task_after_commit", self.partition, digest.count)
        return self._report(digest, is_replay=False)

    def _send(self, producer: TransactionalProducer, rows: Iterable[Any], digest: Digest) -> None:
        for topic, partition, key, value, headers in self.plan.records(rows):
            digest.add(topic, partition, key, value, headers)
            producer.send(topic, value, key, headers, partition)

    def _after_loss(
        self, rows: Iterable[Any], digest: Digest, error: KafkaError
    ) -> PartitionReport:
        """The transaction was taken from us: by a twin that has committed, or by the broker."""
        entry = self._timed("ledger", self._committed)
        if entry is None:
            raise error
        _LOG.warning(
            "batch %d, partition %d: lost the transaction (%s), but another attempt committed it",
            self.plan.batch_id,
            self.partition,
            error,
        )
        # Rows of an iterator that broke off half-way are read on to its end.
        self.plan.add_to(digest, rows)
        return self._compare(entry, digest)

    def _compare(self, entry: LedgerEntry, digest: Digest) -> PartitionReport:
        plan = self.plan
        plan.compare({self.partition: entry}, {self.partition: (digest.count, digest.hex())})
        plan.tell("task_replayed", self.partition, entry.rows)
        return self._report(digest, is_replay=True)

    def _report(self, digest: Digest, *, is_replay: bool) -> PartitionReport:
        return PartitionReport(
            self.partition, digest.count, digest.size_bytes, digest.hex(), is_replay, self.seconds
        )


@dataclass(frozen=True)
class PartitionTask:
    """A `BatchPlan` as Spark's `mapPartitionsWithIndex` calls it."""

    plan: BatchPlan

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[PartitionReport]:
        """Write a partition, give its report."""
        yield self.plan.write(partition, rows)


@dataclass(frozen=True)
class DigestTask:
    """Reads some partitions, and writes nothing, as Spark's `mapPartitionsWithIndex` calls it.

    Attributes:
        plan: of the batch.
        partitions: which; the others are not even read.
    """

    plan: BatchPlan
    partitions: frozenset[int]

    def __call__(
        self, partition: int, rows: Iterable[Any]
    ) -> Iterator[tuple[int, tuple[int, str]]]:
        """Read a partition, give its number, rows and digest."""
        if partition in self.partitions:
            digest = self.plan.digest(rows)
            yield partition, (digest.count, digest.hex())


@dataclass(frozen=True)
class PartitionWriter:
    """A `BatchPlan` as Spark's `foreachPartition` calls it."""

    plan: BatchPlan

    def __call__(self, rows: Iterable[Any]) -> None:
        """Write the partition of the task that this is called in."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a partition writer works inside a Spark task only")
        self.plan.write(context.partitionId(), rows)
