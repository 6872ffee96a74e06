"""The calls that producers and participants share: sending, flushing, waiting and closing.

Owns: these calls, their time-outs, the life of the I/O thread. Must not know: how a transaction is
begun or ended. `TransactionalProducer` does; a participant in another process's transaction
(`TransactionParticipant`) has no calls for it.
Rules:
* The core is called under the I/O thread's lock. Users' code (serializers, callbacks) never is.
* Nothing waits without a bound. A call that timed out has not failed: its operation goes on, and
  the same call made again waits for the same result.
* `send` runs once for each record, a million times more often than the rest. Its path has no calls
  of helpers, no keyword arguments and no new objects. In the compiled form it is one call.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.results import DeliveryCallback, FutureRecordMetadata
from txnproducer._core.producer_core import AppendBlocked, ProducerCore
from txnproducer._core.sending.loss_inquiry import LONGEST_MS
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._record.compression import codec_for
from txnproducer._record.format import Header
from txnproducer._record.implementation import IMPL
from txnproducer._shell import live_producers, refusals
from txnproducer._shell.arguments import Headers, check_headers, check_place, to_bytes
from txnproducer._shell.columns.blocks import Block, arrow_blocks, column_blocks
from txnproducer._shell.columns.sending import RowSender
from txnproducer._shell.io_thread import (
    IoThread,
    WaitInCallbackError,
    monotonic_ms,
    monotonic_ns,
    wall_clock_ms,
)
from txnproducer._shell.waiting import (
    BlockedCall,
    append_when_possible,
    leave_append,
    wait_for_brokers,
)
from txnproducer._sync.core_lock import new_loop_priority, refuse_reentry
from txnproducer._wire.network_client import NetworkClient
from txnproducer.config import ProducerConfig
from txnproducer.errors import ClaimRefusedError, KafkaError
from txnproducer.records import TransactionLease

__all__ = ["OnDelivery", "RecordWriter"]

_LOG = logging.getLogger(__name__)

OnDelivery = DeliveryCallback

# Names of the totals of time spent in the calls that wait.
_TIMES = {
    "init_transactions": "txn-init",
    "send_offsets_to_transaction": "txn-send-offsets",
    "commit_transaction": "txn-commit",
    "abort_transaction": "txn-abort",
    "lease": "txn-lease",
    "join": "txn-join",
}
# After an exception in its block, a producer does not get minutes to deliver.
_CLOSE_AFTER_ERROR_S = 30.0
# Added to a time-out of the core, so that its answer can reach the caller.
_MOMENT_S = 2.0
# At the interpreter's exit, for all producers together, and at least `_SHORT_S` for each: a forced
# end takes milliseconds, unless a callback blocks.
_EXIT_MOMENT_S = 1.0
_SHORT_S = 0.05
# The wait for the coordinator's answer why a transaction was lost, before a call raises its error.
_EVIDENCE_S = LONGEST_MS / 1000


if TYPE_CHECKING or IMPL != "cython":

    class _FastSender:
        """Stands for the compiled class of this name in pure Python, where no record is fast."""

        def _enable_fast_path(self, *_: object) -> None: ...

        def _disable_fast_path(self) -> None: ...

else:
    _fast_send = import_module("txnproducer._shell._fast_send")
    _FastSender = _fast_send.FastSender


class RecordWriter(_FastSender):
    """The part of a producer that writes records, which a participant has as well.

    Args:
        config: the settings, checked.
    """

    _refusal: Callable[[str], KafkaError] | None

    def __init__(self, config: ProducerConfig) -> None:
        self._open(config)

    def _open(self, config: ProducerConfig) -> None:
        self._refusal = refusals.not_open
        self._config = config
        self._value_serializer = config.value_serializer
        self._key_serializer = config.key_serializer
        self._max_block_s = config.max_block_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000 + _MOMENT_S
        # Before anything is opened and another producer fenced: is the codec's library installed?
        codec_for(
            config.compression_type, config.compression_level, config.compression_lz4_block_bytes
        )
        priority = new_loop_priority()
        client = NetworkClient(config, monotonic_ms, priority=priority)
        self._io = IoThread(client, f"txnproducer-{config.client_id}", priority)
        self._core = ProducerCore(
            config,
            client,
            self._io,
            random.Random(),  # noqa: S311 - jitter, no secret
            monotonic_ms(),
        )
        self._lock = self._io.lock
        self._append = self._core.append
        if IMPL == "cython" and (self._value_serializer, self._key_serializer) == (None, None):
            self._enable_fast_path(self._core.fast_append, self._lock, self._io.priority)
        self._rows = RowSender(self._core, self._io, config)
        # The thread starts when all attributes are set. The refusal goes last: from here on an
        # interrupted constructor leaves a producer that can be closed.
        self._io.start(self._core)
        self._refusal = None
        live_producers.remember(self)

    @property
    def transaction_state(self) -> str:
        """The name of the transaction state at this moment, for logs and tests, such as "READY".

        Raises:
            ForkedProducerError: this process is a fork; it cannot learn of a change.
        """
        if self._refusal is refusals.forked:
            raise self._refusal("read transaction_state")
        manager = self._core.transaction_manager
        return "UNINITIALIZED" if manager is None else manager.machine.state.name

    # --- records -------------------------------------------------------------------------------

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
        return self._send_any(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def _send_any(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> FutureRecordMetadata:
        """Write a record, with every check."""
        try:
            self._check_usable("send")
            if type(value) is not bytes or self._value_serializer is not None:
                value = to_bytes("value", value, self._value_serializer)
            if key is not None and (type(key) is not bytes or self._key_serializer is not None):
                key = to_bytes("key", key, self._key_serializer)
            checked = check_headers(headers) if headers is not None else ()
            if (
                not topic
                or type(topic) is not str
                or partition is not None
                or timestamp_ms is not None
            ):
                partition, timestamp_ms = check_place(topic, partition, timestamp_ms)
            if timestamp_ms is None:
                timestamp_ms = wall_clock_ms()
            core = self._core
            future = None
            try:
                with self._lock:
                    future = self._append(
                        topic,
                        value,
                        key,
                        checked,
                        partition,
                        timestamp_ms,
                        on_delivery,
                        monotonic_ms(),
                    )
                    if core.needs_wakeup:
                        self._io.poke()
                        core.needs_wakeup = False
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
        if self._refusal is refusals.not_open or not self._io.is_current:
            return
        if not isinstance(error, WaitInCallbackError):
            self._io.refused_sends.note(topic, error)
            return
        with self._lock:
            self._core.lose_record(refusals.lost_in_callback(topic))
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
        """Write many records, given by column, for half of the CPU time of `send` for each.

        Records of one partition keep their order. If buffer memory is full, the call waits up to
        `max_block_ms` for each batch.

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
        serializers = self._value_serializer, self._key_serializer
        return self._send_rows(
            "send_batch",
            topic,
            lambda now_ms: column_blocks(
                values, keys, headers, partitions, timestamps_ms, now_ms, serializers
            ),
        )

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
            return self._rows.send_blocks(topic, blocks(wall_clock_ms()), self.partitions_for)
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
        self._check_can_wait("flush")
        limit_s = self._delivery_s if timeout is None else _seconds(timeout)
        began_ns = monotonic_ns()
        with self._lock:
            ticket = self._core.begin_flush(monotonic_ms())
            self._io.poke()
        try:
            is_done = self._io.wait_until(ticket.is_done, limit_s)
        finally:
            with self._lock:
                self._core.end_flush(ticket)
                self._core.add_time("flush", monotonic_ns() - began_ns)
        if not is_done:
            raise refusals.flush_timed_out(limit_s, *self._failed_tries(began_ns // 1_000_000))

    def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Return a topic's partitions and their leaders. Ask the cluster if they are not known.

        Raises:
            KafkaTimeoutError: the topic is not known after `max_block_ms`.
            KafkaError: the cluster refused to answer.
        """
        self._check_usable("partitions_for")
        check_place(topic, None, None)
        deadline_ms = monotonic_ms() + self._config.max_block_ms
        has_asked = False
        while True:
            with self._lock:
                self._check_not_overtaken("partitions_for")
                if not self._core.knows_topic(topic):
                    self._io.refuse_in_callback()
                now_ms = monotonic_ms()
                partitions = self._core.partitions_for(topic, now_ms, has_asked=has_asked)
                self._io.poke()
            has_asked = True
            if partitions is not None:
                return partitions
            if now_ms >= deadline_ms:
                max_block_ms = self._config.max_block_ms
                tries = self._failed_tries(deadline_ms - max_block_ms)
                raise refusals.topic_unknown(topic, max_block_ms, *tries)
            left_s = (deadline_ms - now_ms) / 1000
            wait_for_brokers(
                self._io, self._core, lambda: self._core.is_topic_decided(topic), left_s
            )

    def metrics(self) -> dict[str, float]:
        """Return the counters and rates, under the Java client's names."""
        if self._refusal is refusals.forked:
            raise self._refusal("metrics")
        refuse_reentry(self._lock, "metrics")
        with self._lock:
            return self._core.metrics()

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Deliver all sent records, abort an open transaction, finish a commit under way, and end.

        A second call, on another thread or at the end of a `with`, waits for the same end with a
        time-out of its own; after that end it does nothing. In a delivery callback the first call
        acts as with a time-out of 0, and a second one does nothing. In a signal handler or a
        finalizer that has interrupted another call of this producer, `close` waits for nothing:
        the producer goes on to its end in good order, and that call ends with it.

        An interrupt (Ctrl-C, an exception out of a signal handler) ends only this call. The
        producer goes on to the same end within the same time-out; call `close` again to wait.

        Args:
            timeout: seconds after which everything that is left fails by force. None for
                `delivery_timeout_ms`, after which the outcome of each record is known; 0 for at
                once.

        Raises:
            ValueError: the time-out is negative.
        """
        self._close(self._delivery_s if timeout is None else _seconds(timeout))

    def initiate_close(self) -> None:
        """Begin to close at the interpreter's exit, without waiting.

        Several producers can then end at the same time.
        """
        if self._refusal in (None, refusals.closed) and not self._io.has_ended:
            self._refuse_as_closed()
            self._io.initiate_close_at_exit()

    def close_by(self, deadline_ms: int) -> None:
        """Close at the interpreter's exit.

        Args:
            deadline_ms: when everything that is left fails by force. A callback that still blocks
                a moment later is not waited for.
        """
        left_s = (deadline_ms - monotonic_ms()) / 1000
        self._close(max(0.0, left_s), max(_SHORT_S, left_s + _EXIT_MOMENT_S))

    def _close(self, limit_s: float, *forced_s: float) -> None:
        if self._refusal not in (None, refusals.closed):
            return
        is_first = self._refusal is None
        self._refuse_as_closed()
        # A later call waits for the end, at the latest the one at the interpreter's exit.
        if self._lock.is_mine():
            self._io.orphan()
            return
        if not is_first and not self._io.can_wait_for_end:
            return
        try:
            if not self._io.has_ended:
                self._io.close(limit_s, *forced_s)
        finally:
            # Also after an interrupt: the outcome of the transaction may be known already.
            with self._lock:
                self._settle()
            # Until then a fork and the exit still have to find the producer.
            if self._io.has_ended:
                live_producers.forget(self)

    def _refuse_as_closed(self) -> None:
        self._refusal = refusals.closed
        self._disable_fast_path()

    def __enter__(self) -> Self:
        self._check_usable("with")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if error is None else min(_CLOSE_AFTER_ERROR_S, self._delivery_s))

    def disown(self) -> None:
        """Refuse every call from now on, because this process is a fork."""
        self._refusal = refusals.forked
        self._disable_fast_path()
        self._io.disown()

    def __del__(self) -> None:
        # No name of this module is used: at the interpreter's end they may be gone. A producer
        # that is open at that time has been closed before (`live_producers`). An object whose
        # constructor failed early has no `_refusal`.
        if getattr(self, "_refusal", True) is None:
            warnings.warn(f"unclosed {self!r}: use `with`, or call close()", ResourceWarning, 2)
            manager = self._core.transaction_manager
            if manager is not None and manager.machine.has_ongoing_transaction:
                _LOG.warning(
                    "%r was dropped with a transaction open, which is aborted: use `with`, or"
                    " call close()",
                    self,
                )
        # Also if the constructor or `close` was interrupted: the thread may not know about the
        # end.
        if (io := getattr(self, "_io", None)) is not None and not io.has_ended:
            io.orphan()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: its thread and connections belong to this"
            " process. Send its settings instead, and make the producer where it is used."
        )

    def __repr__(self) -> str:
        config = self._config
        name = config.transactional_id or config.client_id
        state = "forked" if self._refusal is refusals.forked else self.transaction_state
        return f"<{type(self).__name__} {name!r} {state}>"

    # --- how calls wait ------------------------------------------------------------------------

    def _check_usable(self, call: str) -> None:
        if self._refusal is not None:
            raise self._refusal(call)
        refuse_reentry(self._lock, call)

    def _check_can_wait(self, call: str) -> None:
        """Refuse a call that would have to wait where it cannot, before it begins anything."""
        self._check_usable(call)
        self._io.refuse_in_callback()

    def _check_not_overtaken(self, call: str) -> None:
        """Refuse a call that `close()` on another thread has overtaken. Call with the lock held.

        `close()` ends in good order all work that it finds under the lock. A call that comes later
        would wait for a thread that has ended, or begin an operation without an end.
        """
        if self._refusal is not None:
            raise self._refusal(call)

    def _await(self, call: str, begin: Callable[[], TransactionalRequestResult]) -> None:
        """Begin an operation, wait for its end, and raise its error if it has one."""
        self._check_can_wait(call)
        began_ns = monotonic_ns()
        try:
            with self._lock:
                self._check_not_overtaken(call)
                try:
                    result = begin()
                finally:
                    # Also after an interrupt: an operation that has begun goes on.
                    self._io.poke()
                    self._io.notify()
        except KafkaError as refusal:
            raise self._explained(refusal) from refusal.__cause__
        if not self._wait_for_brokers(lambda: result.is_completed):
            tries = self._failed_tries(began_ns // 1_000_000)
            raise refusals.timed_out(call, self._config.max_block_ms, *tries)
        error = None if result.error is None else self._explained(result.error)
        with self._lock:
            # Until the end is acknowledged below, no other thread can begin the next transaction.
            self._settle()
            self._core.add_time(_TIMES[call], monotonic_ns() - began_ns)
        # Last, and no signal can interrupt the lines below: either the caller sees the end, or the
        # same call made again does.
        result.is_acked = True
        if error is not None:
            raise error

    def _wait_for_brokers(self, is_done: Callable[[], bool]) -> bool:
        return wait_for_brokers(self._io, self._core, is_done, self._max_block_s)

    def _failed_tries(self, began_ms: int) -> tuple[tuple[KafkaError, ...], bool]:
        with self._lock:
            tries = self._core.failed_tries
            return tries.last, tries.are_cause(began_ms)

    def _explained(self, error: KafkaError) -> KafkaError:
        """Return a call's error, with the coordinator's account of it if the transaction is lost.

        The core has already asked. This waits for the answer, for a second at most.
        """
        core = self._core
        self._io.wait_until(lambda: core.is_loss_explained, _EVIDENCE_S)
        with self._lock:
            return core.explained(error)

    def _check_cluster(self, lease: TransactionLease) -> None:
        """Refuse a lease of another cluster, where producer ids could be equal by chance."""
        core = self._core
        if lease.cluster_id is None:
            return
        began_ms = monotonic_ms()
        if not self._wait_for_brokers(lambda: core.cluster_id is not None):
            tries = self._failed_tries(began_ms)
            raise refusals.timed_out("join", self._config.max_block_ms, *tries)
        with self._lock:
            cluster_id = core.cluster_id
        if cluster_id != lease.cluster_id:
            raise ClaimRefusedError(
                f"the {lease} is of cluster {lease.cluster_id!r}, and bootstrap_servers lead to"
                f" {cluster_id!r}"
            )

    def _settle(self) -> None:
        """Note the end of a call that may know the transaction's outcome. Call with the lock."""

    def _send_later(self, record: _Record, blocked: AppendBlocked) -> FutureRecordMetadata:
        """Wait for metadata or memory, then append. One `max_block_ms` covers all the waits."""
        topic, _, _, _, partition, _, on_delivery = record
        return append_when_possible(
            self._io,
            self._core,
            BlockedCall(topic, partition, on_delivery, blocked),
            self._config.max_block_ms,
            lambda now_ms, waited: self._append(*record, now_ms, waited),
        )


if IMPL == "cython":
    # The compiled function takes the place of the method above, under its name and signature.
    RecordWriter.send = update_wrapper(_fast_send.send, RecordWriter.send)  # type: ignore

_Record: TypeAlias = tuple[
    str, bytes | None, bytes | None, tuple[Header, ...], int | None, int, DeliveryCallback | None
]


def _seconds(timeout: float) -> float:
    if not timeout >= 0:  # written like this, NaN is refused as well
        raise ValueError(
            f"timeout must not be negative: {timeout} (seconds; None for the default)"
        )
    return float(timeout)
