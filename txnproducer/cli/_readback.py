"""The count of a topic's records at both isolation levels, for `verify` and the demo.

Owns: reading with kafka-python up to a fixed end, the counting. Must not know: printing.

Rules:
* The end is fixed before reading begins, so that a live topic can be verified too.
* "Committed" are the records that a reader at read_committed gets. Of the others, those before the
  last stable offset were aborted, and those after it belong to an open transaction.
* Every read is bounded in time, and its error says how far it got.
* Memory: 16 bytes of hash and some overhead (about 100 bytes in all) per distinct identity.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import kafka
from kafka.errors import KafkaError as WireError

from txnproducer.admin._sockets import consumer_limits, owned_consumer
from txnproducer.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

Isolation = Literal["read_committed", "read_uncommitted"]
By = Literal["id", "key", "value", "none"]
ID_HEADER = "txnproducer.id"
"""The header in which `txnproducer send` gives each record an id of its own, as UTF-8."""
# Short, since the deadline is checked only between two polls.
_POLL_MS = 500
_MOST_EXAMPLES = 10


@dataclass
class PartitionCount:
    """The records of one partition, by their state."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    start_offset: int = 0
    last_stable_offset: int = 0
    end_offset: int = 0


@dataclass
class TopicCount:
    """The records of a topic, by their state.

    Attributes:
        topic: the topic's name.
        partitions: its partitions, by number.
        compared: committed records that have the value by which they are compared.
        distinct: different values among these.
        duplicates: records whose value had occurred before.
        duplicated: up to ten of the values that occur more than once.
    """

    topic: str
    partitions: dict[int, PartitionCount] = field(default_factory=dict)
    duplicates: int = 0
    duplicated: list[str] = field(default_factory=list)
    distinct: int = 0
    compared: int = 0

    def total(self, name: str) -> int:
        """Return a count, summed over the partitions."""
        return sum(getattr(count, name) for count in self.partitions.values())


def count_topic(
    bootstrap_servers: str,
    topic: str,
    *,
    by: By,
    timeout: float = 60.0,
    security: dict[str, Any] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> TopicCount:
    """Count a topic's committed, aborted and open records, and its duplicates.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topic: the topic's name.
        by: the part of a record by which duplicates are recognised. A record without this part
            is not compared.
        timeout: seconds for all of it.
        security: kafka-python's settings.
        on_progress: called with the number of read records, from time to time.

    Raises:
        KafkaTimeoutError: no broker, or not read to the end, in time.
        UnknownTopicOrPartitionError: there is no such topic.
    """
    deadline = time.monotonic() + timeout
    count = TopicCount(topic)
    seen: Counter[bytes] = Counter()
    read = 0
    # Its ends are fixed first. The other way round a transaction could commit in between, and its
    # records would count as committed without having been seen by the other pass.
    with _Reader(bootstrap_servers, topic, "read_committed", deadline, security) as committed:
        for place, end in committed.ends.items():
            count.partitions[place.partition] = PartitionCount(
                start_offset=committed.starts[place], last_stable_offset=end
            )
        with _Reader(bootstrap_servers, topic, "read_uncommitted", deadline, security) as all_:
            for place, end in all_.ends.items():
                # A partition may have been added since the first reader was made.
                one = count.partitions.setdefault(place.partition, PartitionCount())
                one.end_offset = end
            for record in all_.records():
                one = count.partitions[record.partition]
                is_open = record.offset >= one.last_stable_offset
                one.open += is_open
                one.aborted += not is_open
                read = _report(read, on_progress)
        for record in committed.records():
            one = count.partitions[record.partition]
            one.committed += 1
            # Counted as aborted by the other pass, which sees every record and not its
            # transaction's end.
            one.aborted -= 1
            identity = _IDENTITIES[by](record)
            if identity is not None:
                _note(seen, count, identity)
            read = _report(read, on_progress)
    count.distinct = len(seen)
    return count


def _id_of(record: Any) -> bytes | None:
    return next((value for name, value in record.headers if name == ID_HEADER), None)


_IDENTITIES: dict[By, Callable[[Any], bytes | None]] = {
    "id": _id_of,
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "none": lambda _: None,
}


def _note(seen: Counter[bytes], count: TopicCount, identity: bytes) -> None:
    count.compared += 1
    # A hash, since values may be large, and all identities of the topic are kept.
    digest = hashlib.blake2b(identity, digest_size=16).digest()
    seen[digest] += 1
    if seen[digest] > 1:
        count.duplicates += 1
        # At the second time only, so that a value is named once however often it occurs.
        if seen[digest] == 2 and len(count.duplicated) < _MOST_EXAMPLES:
            count.duplicated.append(identity[:60].decode("utf-8", "replace"))


def _report(read: int, on_progress: Callable[[int], None] | None) -> int:
    read += 1
    if on_progress is not None and read % 1000 == 0:
        on_progress(read)
    return read


class _Reader:
    """A consumer without a group that reads all partitions of a topic up to their current ends."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        isolation: Isolation,
        deadline: float,
        security: dict[str, Any] | None,
    ) -> None:
        self._topic = topic
        self._deadline = deadline
        self._cleanup = ExitStack()
        limits = consumer_limits(deadline - time.monotonic())
        config = {"isolation_level": isolation, **limits, **(security or {})}
        try:
            self._consumer = self._cleanup.enter_context(
                owned_consumer(bootstrap_servers, **config)
            )
        except WireError as error:
            raise KafkaTimeoutError(
                f"no broker of {bootstrap_servers} could be reached: {error}"
            ) from error
        try:
            # The caller's `with` is not entered yet, and would not close a consumer that could not
            # be assigned.
            self._assign()
        except BaseException:
            self._cleanup.close()
            raise

    def _assign(self) -> None:
        numbers = self._consumer.partitions_for_topic(self._topic)
        if not numbers:
            raise UnknownTopicOrPartitionError(f"there is no topic {self._topic!r}")
        places = [kafka.TopicPartition(self._topic, number) for number in sorted(numbers)]
        self._consumer.assign(places)
        self.starts: dict[Any, int] = self._consumer.beginning_offsets(places)
        self.ends: dict[Any, int] = self._consumer.end_offsets(places)
        self._consumer.seek_to_beginning(*places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def records(self) -> Iterator[Any]:
        """Yield the records before the ends that were fixed when this reader was made."""
        left = {place for place, end in self.ends.items() if end > self.starts[place]}
        while left:
            if time.monotonic() > self._deadline:
                raise KafkaTimeoutError(
                    f"did not reach the end of {self._topic!r} in time: "
                    + ", ".join(f"partition {place.partition}" for place in sorted(left))
                    + " is left; allow more time"
                )
            for place, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                end = self.ends[place]
                # Later records of a live topic would make the counts of the two passes differ.
                yield from (record for record in records if record.offset < end)
            # The position also passes markers and aborted records, which are never returned.
            left = {place for place in left if self._consumer.position(place) < self.ends[place]}
