"""The writers of a batch in a run: our sink, and the usual ways without one.

Owns: the frame, the function for `foreachBatch`. Must not know: faults, checks. Runs in the driver
and in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from integration.spark_chaos import checks, kafka_input
from integration.spark_chaos.gates import Gate, Gates, take
from integration.spark_chaos.job import Job
from txnproducer._core.transactions import manager
from txnproducer._core.transactions.leasing import TransactionLeasing
from txnproducer.spark import ExactlyOnceKafkaSink

HALF_WAY = "half-way"
_CHUNK = 50
_FLUSH_S = 60.0


def frame_of(spark: Any, job: Job) -> Any:
    """Return the stream.

    From files, a file is a batch, a line is a row, and there is a shuffle after it.
    """
    is_kafka = kafka_input.is_input(job.input)
    if is_kafka:
        lines = kafka_input.stream(spark, job.servers, job.source, job.rows_per_batch)
    else:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(job.source)
    if job.is_keyed:
        lines = lines.selectExpr("substring(value, 1, 9) AS key", "value")
    if job.has_other_rows:
        from pyspark.sql.functions import expr

        lines = lines.withColumn("value", expr(f"concat(value, '{checks.OTHER_END}', uuid())"))
    if is_kafka:
        return lines
    frame = lines.repartition(job.partitions)
    if job.halts_half_way < 0:
        return frame
    # Rows get from one Python worker to the next in chunks of this size.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _CHUNK)
    return frame.mapInPandas(HalfWay(job.gates.folder, job.halts_half_way), frame.schema)


def into(stream: Any, spark: Any, job: Job) -> tuple[Any, Callable[[], None]]:
    """Have a stream written, and return it, and a function to call at the end."""
    if job.writer == "plain":
        return stream.foreachBatch(PlainWriter(job)), lambda: None
    if job.writer == "source":
        from txnproducer.spark import KafkaExactlyOnceDataSource

        hooked: Any = type("Hooked", (KafkaExactlyOnceDataSource,), {"on_event": job.gates})
        spark.dataSource.register(hooked)
        given = {
            "kafka.bootstrap.servers": job.servers,
            "sinkId": job.sink_id,
            "topic": job.topic,
            **job.options,
        }
        return stream.format(hooked.name()).options(**given), lambda: None
    hook = job.gates if job.has_claims else WithoutClaims(job.gates)
    sink = ExactlyOnceKafkaSink(
        job.servers,
        job.sink_id,
        topic=job.topic,
        atomicity=job.writer,
        driver_rows=0,  # the faults strike tasks, and these batches are small
        on_event=hook,
        options=job.options,
    )
    return stream.foreachBatch(sink), sink.close


# --- at least once, as people write it -----------------------------------------------------------


@dataclass(frozen=True)
class PlainWriter:
    """A batch with an ordinary idempotent producer in each task: it waits for all its records."""

    job: Job

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write a batch."""
        frame.rdd.mapPartitionsWithIndex(PlainTask(self.job, batch_id)).collect()
        self.job.gates("batch_done", {"batch_id": batch_id})


@dataclass(frozen=True)
class PlainTask:
    """A writer of a partition, which passes the same points as the sink's tasks."""

    job: Job
    batch_id: int

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[int]:
        """Write the rows, and wait until Kafka has them."""
        job, info = self.job, {"batch_id": self.batch_id, "partition": partition}
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": job.servers, "enable.idempotence": True}
        )
        job.gates("task_before_claim", info)
        count = 0
        for row in rows:
            count += 1
            key = row["key"] if job.is_keyed else None
            producer.produce(job.topic, row["value"], key)
            producer.poll(0)
        job.gates("task_before_commit", info)
        if producer.flush(_FLUSH_S):
            raise RuntimeError("not all records were delivered")
        job.gates("task_after_commit", info)
        yield count


# --- the fatal schedule --------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfWay:
    """A source that halts half-way the first time, and later has another order.

    As after a shuffle, where blocks arrive in any order. All rows are of one length, so that the
    producer's batches are cut alike in any order.
    """

    folder: str
    batch_id: int

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        """Hand the frames of a partition on."""
        import pandas as pd
        from pyspark import TaskContext

        rows = pd.concat(list(frames) or [pd.DataFrame({"value": []})])
        rows = rows.sort_values("value")
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else None
        mark = f"{self.batch_id:03}-"
        is_here = partition == 0 and len(rows) > 0 and rows["value"].iloc[0].startswith(mark)
        is_first = is_here and take(Path(self.folder) / "half-way.begun")
        if is_here and not is_first:
            rows = rows.iloc[::-1]
        chunks = [rows.iloc[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK)]
        # Three full batches of the producer's, of a thousand rows of a kilobyte: brokers know the
        # last five of a partition, and refuse older ones that come again.
        sent = len(chunks) // 4
        yield from chunks[:sent]
        if is_first:
            gate = Gate(HALF_WAY, HALF_WAY, self.batch_id)
            Gates(self.folder, (gate,))(HALF_WAY, {"batch_id": self.batch_id, "partition": 0})
        yield from chunks[sent:]


class ClaimlessLeasing(TransactionLeasing):
    """A leasing that ignores the broker's answer about the claim, to show the use of claims."""

    def _join(self, result, lease, claim, claimed) -> None:
        super()._join(result, lease, claim, lease.claims[claim])


@dataclass(frozen=True)
class WithoutClaims:
    """The hook, which switches claims off in the process where a participant is about to join."""

    gates: Gates

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        """Hear of an event."""
        if event == "task_before_claim":
            setattr(manager, TransactionLeasing.__name__, ClaimlessLeasing)
        self.gates(event, info)
