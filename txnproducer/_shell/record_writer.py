"""The writing of records, by producers and participants alike: sending and flushing.

Owns: `send` and its fast path, the calls for many records, flushing. Must not know: how a producer
opens and closes (`base_producer`), how a transaction is begun or ended.
Rules: `send` runs once for each record, a million times more often than the rest. Its path has no
calls of helpers, no keyword arguments and no new objects, unless serializers make the record. In
the compiled form it is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, TypeAlias

from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.results import DeliveryCallback, FlushTicket, FutureRecordMetadata
from txnproducer._core.producer_core import AppendBlocked
from txnproducer._record.format import Header
from txnproducer._shell import refusals
from txnproducer._shell.arguments import (
    Headers,
    check_callback,
    check_headers,
    check_place,
    to_bytes,
    to_seconds,
)
from txnproducer._shell.columns.blocks import Block, Columns, arrow_blocks, column_blocks
from txnproducer._shell.columns.sending import RowSender
from txnproducer._shell.fast_sender import FastSender, compiled_send
from txnproducer._shell.refusals import WaitInCallbackError
from txnproducer._shell.serialization import RecordSerializers, within_transaction
from txnproducer._shell.topic_asker import TopicAsker
from txnproducer._shell.waiting import (
    BlockedCall,
    append_when_possible,
    end_append,
    leave_append,
)
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError

__all__ = ["OnDelivery", "RecordWriter", "SendArguments"]

OnDelivery = DeliveryCallback


class RecordWriter(TopicAsker, FastSender):
    """The part of a producer that writes records, which a participant has as well.

    Args:
        config: the settings, checked.
    """

    def _prepare(self, config: ProducerConfig) -> None:
        self._serializers = RecordSerializers.of(config)
        self._append = self._core.append
        self._enable_fast_path(self._core, self._lock, self._io.priority, self._serializers)
        self._rows = RowSender(self._core, self._io, config)

    def _refuse(self, refusal: Callable[[str], KafkaError]) -> None:
        super()._refuse(refusal)
        self._disable_fast_path()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> FutureRecordMetadata:
        """Write a record. Return at once unless it has to wait for metadata or memory.

        Args:
            topic: the topic to write to.
            value: bytes, or a value for `value_serializer`; None is a tombstone.
            key: bytes, or a key for `key_serializer`; equal keys go to one partition.
            headers: a mapping of names to values, or pairs of a name and a value; a value is
                bytes, a str (encoded as UTF-8) or None.
            partition: the partition's number; None lets key or load decide.
            timestamp_ms: milliseconds since the epoch; None for now.
            on_delivery: called on the I/O thread, with the record's metadata and None. After an
                error it gets the known part of the metadata (offset -1) and the error. Keep it
                short: it must not block.

        Returns:
            The record's future. Its `result(timeout)` returns a `RecordMetadata`. A later failure
            (too large, unknown topic, no memory) fails the future and, in a transaction, the
            commit.

        Raises:
            TypeError, ValueError, SerializationError: an argument is wrong; nothing changed.
            IllegalStateError: no transaction is open, or the producer is closed; nothing changed.
                In a delivery callback also a record that would have to wait: its transaction can
                only be aborted.
            KafkaError: the transaction failed before; its `recovery` names the next step.

        A delivery callback that does not catch an error of `send` loses the record, so the
        transaction can only be aborted.
        """
        if self._serializers is None:
            return self._send_any(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return self._serialize_and_send(
            self._serializers, topic, value, key, headers, partition, timestamp_ms, on_delivery
        )

    def _serialize_and_send(
        self,
        serializers: RecordSerializers,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> FutureRecordMetadata:
        """Write a record that serializers make, in the transaction that is open now."""
        try:
            self._check_usable("send")
            transaction = self._core.transaction_number
            key, value, headers = serializers.record(topic, key, value, headers)
            if self._refusal is refusals.closed:
                raise refusals.closed_meanwhile()
            future = self._try_serialized(
                topic, value, key, headers, partition, timestamp_ms, on_delivery, transaction
            )
        except BaseException as error:
            self._lose_in_callback(topic, error)
            raise
        if future is not None:
            return future
        return self._send_any(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, transaction
        )

    def _send_any(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
        transaction: int | None = None,
    ) -> FutureRecordMetadata:
        """Write a record of bytes, with every check; into the transaction of a number, if any."""
        try:
            self._check_usable("send")
            if type(value) is not bytes:
                value = to_bytes("value", value)
            if key is not None and type(key) is not bytes:
                key = to_bytes("key", key)
            checked = check_headers(headers) if headers is not None else ()
            check_callback(on_delivery)
            if (
                not topic
                or type(topic) is not str
                or partition is not None
                or timestamp_ms is not None
            ):
                partition, timestamp_ms = check_place(topic, partition, timestamp_ms)
            if timestamp_ms is None:
                # The wall clock, since readers compare timestamps of several machines. Waits use
                # the monotonic one.
                timestamp_ms = self._platform.wall_clock_ms()
            core = self._core
            # None for the handler below, if an interrupt ends the append before it returns.
            future = None
            try:
                with self._lock:
                    if transaction is not None:
                        core.refuse_if_ended(transaction)
                    future = self._append(
                        topic,
                        value,
                        key,
                        checked,
                        partition,
                        timestamp_ms,
                        on_delivery,
                        self._platform.monotonic_ms(),
                    )
                    if core.needs_wakeup:  # asked here, which saves a call a record
                        end_append(self._io, core, future)
                if isinstance(future, AppendBlocked):
                    return self._send_later(
                        (topic, value, key, checked, partition, timestamp_ms, on_delivery), future
                    )
            except BaseException:
                # Perhaps an interrupt, inside the core or before the wait began.
                leave_append(self._io, self._core, future)
                raise
            return future
        except BaseException as error:
            self._lose_in_callback(topic, error)
            raise

    def _lose_in_callback(self, topic: str, error: BaseException) -> None:
        """Fail the transaction if a delivery callback lost a record. Its error is only logged.

        A record that would have to wait fails the transaction at once, as its time-out does in the
        Java client. Any other refusal does so if it leaves the callback.
        """
        if not self._is_in_callback:
            return
        if not isinstance(error, WaitInCallbackError):
            self._io.callbacks.note_refused(
                partial(refusals.record_lost_in_callback, topic), error
            )
            return
        with self._lock:
            self._core.lose_record(refusals.waited_in_callback(topic, error.reason))
            self._io.poke()

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partitions: Any = None,
        timestamps_ms: Any = None,
    ) -> FutureBatchMetadata:
        """Write many records, given by column, in about half of the CPU time that `send` takes.

        Records of one partition keep their order. If buffer memory is full, the call waits up to
        `max_block_ms` for each batch. Arrow's buffers are read in place, and must not be changed
        before this returns.

        Args:
            topic: the topic to write to.
            values: bytes or None (a tombstone) for each record: a list, a NumPy array of bytes, or
                a pyarrow array (binary or string; chunked, sliced, dictionary, large and view
                types as well). With a `value_serializer`, any values that it takes.
            keys: likewise; equal keys go to one partition, where `send` would put them.
            headers: for each record its headers as `send` takes them, or None.
            partitions: a partition for each record, or None to let key or load decide; or one int
                for all.
            timestamps_ms: milliseconds since the epoch for each record (or None for now); or one
                int for all.

        Returns:
            One future for all. Its `result(timeout)` returns their partitions and offsets.

        Raises:
            TypeError, ValueError, SerializationError: a column is wrong; nothing was sent.
            RecordTooLargeError: one record is too large, the error names it; nothing was sent.
            KafkaTimeoutError: no memory or no metadata within `max_block_ms`. Records sent before
                that are in the transaction, which can only be aborted. Without a transaction an
                unknown part of the records may be written.
            IllegalStateError: no transaction is open, or the producer is closed.
            KafkaError: the transaction failed before; its `recovery` names the next step.
        """
        given = Columns(values, keys, headers, partitions, timestamps_ms)
        return self._send_rows("send_batch", topic, self._column_blocks(topic, given))

    def _column_blocks(self, topic: str, given: Columns) -> Callable[[int], list[Block]]:
        def blocks(now_ms: int) -> list[Block]:
            make = partial(column_blocks, topic, given, now_ms, self._serializers)
            return within_transaction(self._core, self._lock, make)

        return blocks

    def send_arrow(
        self, topic: str, data: Any, partition: int | None = None
    ) -> FutureBatchMetadata:
        """Write the rows of a pyarrow Table or RecordBatch.

        Its buffers are read in place, and must not be changed before this returns. Serializers
        are not used: Arrow's binary is bytes, its strings are UTF-8.

        Args:
            topic: the topic to write to.
            data: has a column `value`, and may have `key` (both binary or string), `headers` (a
                list of structs of a name and a value, or a map), `partition` (integers),
                `timestamp` (timestamps, or integers in milliseconds). Null means no value.
            partition: the partition of all rows, for a table without a column `partition`.

        Returns:
            One future for all, as `send_batch` does. It raises the same errors.
        """
        return self._send_rows(
            "send_arrow", topic, lambda now_ms: arrow_blocks(data, now_ms, partition), partition
        )

    def _send_rows(
        self,
        call: str,
        topic: str,
        blocks: Callable[[int], list[Block]],
        partition: int | None = None,
    ) -> FutureBatchMetadata:
        try:
            self._check_usable(call)
            check_place(topic, partition, None)  # `arrow_blocks` takes the partition as it is
            return self._rows.send_blocks(
                topic, blocks(self._platform.wall_clock_ms()), self.partitions_for
            )
        except BaseException as error:
            self._lose_in_callback(topic, error)
            raise

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is delivered or has failed (see the futures).

        Args:
            timeout: seconds; None for `delivery_timeout_ms`, after which the outcome of each
                record is known, and a moment more to report it.

        Raises:
            KafkaTimeoutError: not done in time; the records are still on their way.
        """
        limit_s = self._flush_limit_s(timeout)
        began_ns = self._platform.monotonic_ns()
        ticket = self._begin_flush()
        try:
            is_done = self._io.wait_until(ticket.is_done, limit_s)
        finally:
            self._end_flush(ticket, began_ns)
        if not is_done:
            raise self._flush_timed_out(limit_s, began_ns)

    # The steps of a flush, which a task of an event loop takes as well.

    def _flush_limit_s(self, timeout: float | None) -> float:
        self._check_can_wait("flush")
        return self._delivery_s if timeout is None else to_seconds(timeout)

    def _begin_flush(self) -> FlushTicket:
        with self._lock:
            ticket = self._core.begin_flush(self._platform.monotonic_ms())
            self._io.poke()
            return ticket

    def _end_flush(self, ticket: FlushTicket, began_ns: int) -> None:
        with self._lock:
            self._core.end_flush(ticket)
            self._core.add_time("flush", self._platform.monotonic_ns() - began_ns)

    def _flush_timed_out(self, limit_s: float, began_ns: int) -> KafkaError:
        causes = self._causes(began_ns // 1_000_000, of_records=True)
        return refusals.flush_timed_out(limit_s, *causes)

    def _send_later(self, record: SendArguments, blocked: AppendBlocked) -> FutureRecordMetadata:
        """Wait for metadata or memory, then append. One `max_block_ms` covers all the waits."""
        topic, _, _, _, partition, _, on_delivery = record
        return append_when_possible(
            self._io,
            self._core,
            BlockedCall(topic, partition, on_delivery, blocked),
            self._config.max_block_ms,
            lambda now_ms, waited: self._append(*record, now_ms, waited),
        )


if compiled_send is not None:
    # The compiled function takes the place of the method above, under its name and signature.
    RecordWriter.send = update_wrapper(compiled_send, RecordWriter.send)  # type: ignore

SendArguments: TypeAlias = tuple[
    str, bytes | None, bytes | None, tuple[Header, ...], int | None, int, DeliveryCallback | None
]
