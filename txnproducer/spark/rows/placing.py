"""The shuffle before a whole batch. Each row goes to the one task that writes its Kafka partition.

Owns: which Kafka partition a row belongs to, as the producer would choose it; how Spark sends the
row to the task of that number; whether a frame has to be shuffled at all. Must not know:
transactions, tasks that write.

Rules:
* A row with a key, or with a partition, has its place. Frames with one of these columns are
  shuffled: task i gets the rows of partition i. Rows of one key keep the order that they have in
  one partition of the frame; a shuffle promises no more.
* Frames with neither column are not shuffled row by row. Task i writes partition i, and there are
  at most as many tasks as partitions. (Spark Connect cannot count tasks, so there these are
  shuffled too.)
* Where such a frame has more partitions than the topic, and Spark runs more tasks at once, whole
  partitions of the frame are sent to the task that writes them. That is a boundary of a stage: the
  frame's own work is not done by the few tasks that write.
* Spark before 4.1 shuffles only by a hash. So a row carries a number whose hash is its partition,
  and a task knows its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from txnproducer._record.rows import NO_PARTITION
from txnproducer._shell.columns.blocks import arrow_blocks
from txnproducer.spark.errors import SinkError
from txnproducer.spark.interpreters import carried
from txnproducer.spark.rows.planned_frame import planned
from txnproducer.spark.rows.spark_hash import numbers_by_hash
from txnproducer.spark.session import is_connect, most_tasks_at_once

PLACE: Final = "__txnproducer_place"
_PLACING: Final = ("key", "partition")

# Adds the column `PLACE` to a frame. It takes the place of each partition; none: its number.
_AddPlaces: TypeAlias = Callable[[Any, tuple[int, ...]], Any]


@dataclass(frozen=True)
class Placed:
    """A frame that is cut so that task i writes partition i.

    Attributes:
        frame: has the column `PLACE` if its rows have places.
        count: how many partitions it has; None if they have to be counted.
        places: the value of `PLACE` in the rows of each task; empty if there is no such column.
    """

    frame: Any
    count: int | None
    places: tuple[int, ...] = ()


def placed(frame: Any, partitions: int) -> Placed:
    """Return a frame cut so that task i writes partition i.

    Args:
        frame: of Spark's.
        partitions: how many the topic has.
    """
    # A row with a key or a partition has one place, and two tasks that write to one Kafka
    # partition would mix the order of a key.
    if set(_PLACING) & set(frame.columns):
        return _shuffled(
            frame, partitions, lambda rows, at: _with_place(rows, PlaceFinder(partitions, at))
        )
    if is_connect(frame):
        # Connect cannot count the partitions of a frame, and `coalesce` only says how many there
        # are at most. A shuffle gives exactly that number.
        return Placed(frame.repartition(partitions), partitions)
    # No shuffle: rows without a key and a partition may go to any partition.
    found = planned(frame) if most_tasks_at_once(frame) > partitions else None
    if found is None:
        return Placed(frame.coalesce(partitions), None)
    frame, count = found
    if count <= partitions:
        return Placed(frame, None)
    # Not `coalesce`: it is no boundary of a stage, so the frame's last stage would run in as few
    # tasks. With one partition, 8 parts of 1 s each took 8.3 s, and 1.9 s with atomicity
    # "partition".
    return _shuffled(frame, partitions, lambda rows, at: _with_number(rows, partitions, at))


def _shuffled(frame: Any, partitions: int, add_places: _AddPlaces) -> Placed:
    if _takes_ids(frame):
        frame = add_places(frame, ()).repartitionById(partitions, PLACE)
        return Placed(frame, partitions, tuple(range(partitions)))
    # Not the numbers of the partitions: `repartition(8, p)` sent the rows of 0 to 7 to five tasks.
    places = numbers_by_hash(partitions)
    frame = add_places(frame, places).repartition(partitions, PLACE)
    return Placed(frame, partitions, places)


def _takes_ids(frame: Any) -> bool:
    """Return whether Spark can shuffle rows by the number of a task, as it can since 4.1."""
    return hasattr(frame, "repartitionById")


def _with_number(frame: Any, partitions: int, places: tuple[int, ...]) -> Any:
    """Return a frame in which all rows of one of its partitions have the same `PLACE`.

    If Spark computes a partition of the frame once more, for a lost shuffle file, one task alone
    reads its rows. So rows of a frame that is not repeatable are neither lost nor doubled.
    """
    from pyspark.sql import functions

    place = functions.spark_partition_id() % partitions
    if places:
        place = functions.array(*map(functions.lit, places))[place]
    return frame.withColumn(PLACE, place)


def _with_place(frame: Any, finder: PlaceFinder) -> Any:
    """Return a frame with the column `PLACE`."""
    from pyspark.sql import functions
    from pyspark.sql.types import IntegerType, StructType

    columns = set(frame.columns)
    find_places = carried(finder.find)
    arrow_udf = getattr(functions, "arrow_udf", None)
    if arrow_udf is None:  # Spark 4.0: the other columns have to come along

        def add_places(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                given = [batch.column(name) if name in columns else None for name in _PLACING]
                yield batch.append_column(PLACE, find_places(*given))

        schema = StructType([*frame.schema.fields]).add(PLACE, IntegerType())
        return frame.mapInArrow(add_places, schema)

    import pyarrow as pa

    def find(key: Any, partition: Any) -> Any:
        return find_places(key, partition)

    # Spark reads the kind of the function from its annotations.
    find.__annotations__ = dict.fromkeys((*_PLACING, "return"), pa.Array)
    nulls = zip(_PLACING, ("binary", "int"), strict=True)
    given = [
        functions.col(name) if name in columns else functions.lit(None).cast(kind)
        for name, kind in nulls
    ]
    return frame.withColumn(PLACE, arrow_udf(find, "int")(*given))


@dataclass(frozen=True)
class PlaceFinder:
    """The search for the places of rows.

    Attributes:
        partitions: how many the topic has.
        places: the place of each partition; empty if that is its number.
    """

    partitions: int
    places: tuple[int, ...] = ()

    def find(self, key: Any, partition: Any) -> Any:
        """Return the place of each row, by its partition, or its key, or the task it is in.

        Args:
            key: pyarrow's array of strings or bytes; None stands for nulls.
            partition: pyarrow's array of integers; None stands for nulls.

        Raises:
            SinkError: a row is for a partition that the topic does not have.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pa.nulls(len(key if key is not None else partition), pa.int32())
        if partition is not None:
            self._check(pc.min_max(partition).as_py())
            # The row's partition wins over its key, as in Kafka's producer.
            found = partition.cast(pa.int32())
        if key is not None:
            found = pc.coalesce(found, self._by_key(key))
        # Any partition will do; that of the task needs no memory, and differs between tasks.
        found = pc.fill_null(found, pa.scalar(_task_number() % self.partitions, pa.int32()))
        return pc.take(pa.array(self.places, pa.int32()), found) if self.places else found

    def _by_key(self, key: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        # Blocks are made of batches with a value. None is needed for the place of a key.
        columns = pa.RecordBatch.from_arrays([pa.nulls(len(key)), key], ["value", "key"])
        places = [block.rows.places(self.partitions) for block in arrow_blocks(columns, 0)]
        data = pa.py_buffer(b"".join(place.tobytes() for place in places))
        numbers = pa.Array.from_buffers(pa.int32(), len(key), [None, data])
        # A null key decides nothing, so the row may go to any partition.
        return pc.if_else(pc.equal(numbers, NO_PARTITION), None, numbers)

    def _check(self, bounds: dict[str, int | None]) -> None:
        for place in bounds.values():
            if place is not None and not 0 <= place < self.partitions:
                raise SinkError(
                    f"a row is for partition {place}; the topic has partitions 0 to"
                    f" {self.partitions - 1}. Filter such rows out. If partitions were added while"
                    " the query ran, start it again"
                )


def own_batches(own: int, places: tuple[int, ...], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a task, if all rows belong to it.

    Args:
        own: the task's number.
        places: see `Placed`.
        batches: pyarrow's, with the column `PLACE`.

    Raises:
        SinkError: a row belongs to another task.
    """
    import pyarrow.compute as pc

    for batch in batches:
        bounds = pc.min_max(batch.column(PLACE)).as_py()
        for place in bounds.values():
            if batch.num_rows and place != places[own]:
                theirs = places.index(place) if place in places else place
                raise SinkError(
                    f"a row for partition {theirs} is in task {own}: Spark has shuffled the rows"
                    " in another way than this sink expects. The task commits nothing. Report it"
                    " with the version of Spark"
                )
        yield batch.drop_columns([PLACE])


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
