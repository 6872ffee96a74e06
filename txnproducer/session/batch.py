"""The records of one poll, and the offsets after them.

Owns: `Record`, `Batch`, and the calls of a consumer that a session needs. Must not know: any
consumer's library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from txnproducer.records import TopicPartition

__all__ = ["LEAVE_S", "Batch", "Record", "SessionConsumer", "UnreadableHeaders"]

# A consumer gives up to leave its group after it: a process that ends has seconds.
LEAVE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the input.

    Attributes:
        topic, partition, offset: its place.
        key, value: as the consumer gives them: bytes, or what its deserializers make.
        headers: pairs of a name and a value. With confluent-kafka, reading them raises a
            ValueError if a name is not UTF-8.
        timestamp_ms: milliseconds since the epoch; -1 if there is none.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of its place."""
        return TopicPartition(self.topic, self.partition)


class UnreadableHeaders(Sequence[Any]):
    """The headers of a record that its consumer's library cannot read: each use of them raises.

    Args:
        place: of the record.
        error: of the library.
    """

    def __init__(self, place: str, error: Exception) -> None:
        self._place = place
        self._error = error

    def __len__(self) -> int:
        raise ValueError(
            f"the headers of {self._place} cannot be read: the name of one is not UTF-8"
        ) from self._error

    def __getitem__(self, index: Any) -> Any:
        return len(self)


@dataclass(frozen=True, slots=True)
class Batch(Sequence[Record]):
    """The records of one poll, those of a partition in their order.

    Attributes:
        records: all of them.
        group_metadata: the consumer's identity in its group when they were polled.
        number: of the assignment that they were polled under.
    """

    records: Sequence[Record]
    group_metadata: Any = field(default=None, repr=False)
    number: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read, after the last record of each partition."""
        # The last one of a partition wins. Gaps, as markers of transactions leave, do not matter.
        return {each.topic_partition: each.offset + 1 for each in self.records}

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return {each.topic_partition: each.offset for each in reversed(self.records)}


class SessionConsumer(Protocol):
    """A consumer, as a session uses it. All calls are made in the session's thread."""

    def check(self) -> None:
        """Refuse a consumer that reads uncommitted records, or commits by itself.

        Raises:
            InvalidConfigurationError: it does.
        """
        ...

    def subscribe(self, topics: Sequence[str], on_loss: Callable[[], None]) -> None:
        """Subscribe to topics.

        Args:
            topics: their names.
            on_loss: called when the consumer has lost partitions, or given them back; on any
                thread.
        """
        ...

    def poll(self, timeout_s: float, most: int) -> list[Record]:
        """Return records, as many as there are and are asked for, after a time at the latest."""
        ...

    def group_metadata(self) -> Any:
        """Return the consumer's identity in its group."""
        ...

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that it has."""
        ...

    def seek(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Read on from these offsets, in partitions that it still has.

        Returns:
            False if that is not possible now. `rewind` is the next call then.
        """
        ...

    def rewind(self, first: Mapping[TopicPartition, int]) -> bool:
        """Read on from the committed offsets, in all partitions that it has.

        Args:
            first: where to read on in partitions without a committed offset. Those that it lacks
                are read from the beginning.

        Returns:
            False if the offsets are not known yet. It is called again, after a poll of which no
            record is used.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Leave the group, and commit nothing. A second call does nothing.

        Args:
            timeout_s: when it gives up to leave.
        """
        ...
