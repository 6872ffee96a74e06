"""The fast path of an append.

A record takes it if a batch is open for it and has room, and its partition is in the transaction.

Why it exists: of a million records all but a few thousand take it, so its cost is the cost of
sending. Owns: the way of such a record into its batch, in one call. Must not know: the reasons why
a record may need more; `append_any` deals with those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from txnproducer._core.batches.record_future import FutureRecordMetadata
from txnproducer._record.implementation import murmur2

if TYPE_CHECKING:
    from txnproducer._core.batches.append_blocked import AppendBlocked
    from txnproducer._core.batches.partition_queues import PartitionQueue, TopicQueues
    from txnproducer._core.batches.results import DeliveryCallback
    from txnproducer._core.transactions.state import TransactionState, TransactionStateMachine
    from txnproducer._record.format import Header

# Keys repeat, and to hash one in Python costs more than the rest of an append.
_cached_murmur2 = lru_cache(maxsize=8192)(murmur2)
# Long keys are rarely repeated, and the cache would keep them all alive.
_LONGEST_CACHED_KEY_BYTES: Final = 64
# Compiled, a timestamp that needs more than 64 bits would be an OverflowError here. `append_any`
# refuses it with a text, and takes the later ones that are valid.
_LATEST_FAST_MS: Final = 1 << 62

AppendAny: TypeAlias = Callable[..., "FutureRecordMetadata | AppendBlocked"]


class FastAppend:
    """Append the records that an open batch takes at once, and hand on all others.

    Args:
        topics: the queues of every topic that has any.
        machine: has the transaction state.
        fast_state: in which records are welcome, and nothing needs to be done.
        is_ignoring_keys: whether keys choose no partition.
        append_any: takes every other record, with the same arguments.
    """

    __slots__ = (
        "_append_any",
        "_fast_state",
        "_is_ignoring_keys",
        "_machine",
        "_topics",
    )

    def __init__(
        self,
        topics: dict[str, TopicQueues],
        machine: TransactionStateMachine,
        fast_state: TransactionState,
        append_any: AppendAny,
        *,
        is_ignoring_keys: bool,
    ) -> None:
        self._topics = topics
        self._machine = machine
        self._fast_state = fast_state
        self._append_any = append_any
        self._is_ignoring_keys = is_ignoring_keys

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Header, ...],
        partition: int | None,
        timestamp_ms: int,
        on_delivery: DeliveryCallback | None,
        now_ms: int,
        blocked: AppendBlocked | None = None,
    ) -> FutureRecordMetadata | AppendBlocked:
        """Append a record: see `Appender.append_any`, which takes those that need more."""
        if blocked is None and timestamp_ms < _LATEST_FAST_MS:
            future = self.try_append(
                topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
            if future is not None:
                return future
        return self._append_any(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, now_ms, blocked
        )

    def try_append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Header, ...],
        partition: int | None,
        timestamp_ms: int,
        on_delivery: DeliveryCallback | None,
    ) -> FutureRecordMetadata | None:
        """Append a record to its open batch. Return None if it needs more; nothing has changed."""
        queues = self._topics.get(topic)
        if queues is None or self._machine.state is not self._fast_state:
            return None
        queue: PartitionQueue | None
        if partition is not None:
            queue = queues.queues.get(partition)
        elif key is None or self._is_ignoring_keys:
            queue = queues.sticky_queue
        else:
            queue = self._queue_for_key(queues, key)
        batch = None if queue is None else queue.open_batch
        if batch is None:
            return None
        # Its size needs no other check if it fits after another one.
        buffer = batch.builder.records_buffer
        index = buffer.append_fast(timestamp_ms, key, value, headers)
        if index < 0:
            return None
        # Compiled, this costs a third of a call of the constructor.
        future = FutureRecordMetadata.__new__(FutureRecordMetadata)
        future._result = batch.result  # noqa: SLF001
        future._index = index  # noqa: SLF001
        future._timestamp_ms = timestamp_ms  # noqa: SLF001
        future._key_size = -1 if key is None else len(key)  # noqa: SLF001
        future._value_size = -1 if value is None else len(value)  # noqa: SLF001
        if on_delivery is not None:
            batch.add_callback(index, future, on_delivery)
        return future

    def _queue_for_key(self, queues: TopicQueues, key: bytes) -> PartitionQueue | None:
        count = queues.partition_count
        if not count:
            return None
        # The formula of `partition_for_key`, with a hash that may be known already.
        hashed = _cached_murmur2(key) if len(key) <= _LONGEST_CACHED_KEY_BYTES else murmur2(key)
        return queues.queues.get((hashed & 0x7FFFFFFF) % count)
