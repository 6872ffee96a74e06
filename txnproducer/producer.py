"""The producer that users hold: each call is begun in the core, the loop woken, the end awaited.

Owns: the blocking calls, their time-outs and what they say, the life of the I/O thread.
Must not know: how a transaction works; that is the core's. No call here decides anything about
one, it only remembers how the last one ended, for `Transaction.outcome`.
Rules:
* The core is called under the I/O thread's lock. Users' code (serializers, callbacks) never is.
* Nothing waits without a bound. A call that timed out has not failed: it goes on, and the same
  call made again waits for the same result.
* `send` is called a million times where the rest is called once: no helper calls, no keyword
  arguments, no objects on its usual path; where it is compiled, that call is all there is.
"""

from __future__ import annotations

import random
import warnings
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias

from txnproducer import _advice, _live_producers
from txnproducer._arguments import Headers, check_headers, check_place, to_bytes
from txnproducer._columns import Block, arrow_blocks, column_blocks
from txnproducer._core.batch_future import FutureBatchMetadata
from txnproducer._core.commit_evidence import ResolvedOutcome, SentCommit, resolve
from txnproducer._core.producer_core import AppendBlocked, ProducerCore
from txnproducer._core.results import DeliveryCallback, FutureRecordMetadata
from txnproducer._core.txn_result import TransactionalRequestResult
from txnproducer._io_thread import IoThread, monotonic_ms, monotonic_ns, wall_clock_ms
from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._record.format import Header
from txnproducer._record.implementation import IMPL
from txnproducer._row_sending import RowSender
from txnproducer._turnstile import new_turnstile
from txnproducer._wire.network_client import NetworkClient
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    UnsupportedVersionError,
)
from txnproducer.records import ProducerIdAndEpoch, as_consumer_group_metadata, as_offsets
from txnproducer.transaction import Outcome, Transaction

__all__ = ["OnDelivery", "TransactionalProducer"]

OnDelivery = DeliveryCallback

# Names of the totals of time spent in the calls that wait.
_TIMES = {
    "init_transactions": "txn-init",
    "send_offsets_to_transaction": "txn-send-offsets",
    "commit_transaction": "txn-commit",
    "abort_transaction": "txn-abort",
}
# After an exception in its block a producer is not worth waiting minutes for.
_CLOSE_AFTER_ERROR_S = 30.0
# Behind a time-out of the core, until what it says has reached the caller.
_MOMENT_S = 2.0


class TransactionalProducer:
    """Write to Kafka in transactions: all records and offsets of one become visible, or none.

    Usable from several threads, though a transaction is one for all of them. Without a
    `transactional_id` it is an idempotent producer: no record is lost or doubled by retries.

        with TransactionalProducer("localhost:9092", "my-app-1") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("topic", b"value", key=b"key")

    Args:
        bootstrap_servers: "host:port", several separated by commas, or a list of them.
        transactional_id: names this writer across restarts; a newer producer with the same id
            fences the older one. None for a plain idempotent producer.
        settings: the Java client's, in snake_case or dotted (`**{"linger.ms": 5}`); see
            `ProducerConfig`.

    Raises:
        InvalidConfigurationError: a setting is unknown or does not fit; names it.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] | None = None,
        transactional_id: str | None = None,
        **settings: Any,
    ) -> None:
        given = {"bootstrap_servers": bootstrap_servers, "transactional_id": transactional_id}
        settings.update({name: value for name, value in given.items() if value is not None})
        self._open(ProducerConfig.build(**settings))

    @classmethod
    def from_config(cls, config: ProducerConfig) -> TransactionalProducer:
        """Make a producer from a configuration that was made (and checked) before."""
        producer = cls.__new__(cls)
        producer._open(config)  # noqa: SLF001 - our own class
        return producer

    _refusal: Callable[[str], KafkaError] | None

    def _open(self, config: ProducerConfig) -> None:
        self._refusal = _advice.not_open
        self._transaction: Transaction | None = None
        self._commit: TransactionalRequestResult | None = None
        self._resolved: ResolvedOutcome = "unknown"
        self._config = config
        self._value_serializer = config.value_serializer
        self._key_serializer = config.key_serializer
        self._max_block_s = config.max_block_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000 + _MOMENT_S
        turnstile = new_turnstile()
        client = NetworkClient(config, monotonic_ms, turnstile=turnstile)
        self._io = IoThread(client, f"txnproducer-{config.client_id}", turnstile)
        self._core = ProducerCore(
            config,
            client,
            self._io,
            random.Random(),  # noqa: S311 - jitter, no secret
            monotonic_ms(),
        )
        self._lock = self._io.lock
        self._append = self._core.append
        self._be_quick()
        self._rows = RowSender(self._core, self._io, config)
        self._io.start(self._core)
        self._refusal = None
        _live_producers.remember(self)

    def _be_quick(self) -> None:
        """Let the compiled `send` stand before the other one, which takes what is not usual."""
        serializers = (self._value_serializer, self._key_serializer)
        is_overridden = type(self).send is not TransactionalProducer.send
        if IMPL != "cython" or is_overridden or serializers != (None, None):
            return
        compiled = import_module("txnproducer._usual_send")
        # Not to keep this producer alive: it has to be noticed when nobody can close it any more.
        send_any = _WeakMethod(self._send_any)
        usual = compiled.UsualSend(
            self._core.usual_records, self._lock, self._io.turnstile, send_any
        )
        self.__dict__["send"] = usual.send

    def _be_slow(self) -> None:
        """Check every record from now on, also of who has kept the compiled `send`."""
        usual_send = self.__dict__.pop("send", None)
        if usual_send is not None:
            usual_send.__self__.close()

    # --- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Get a producer id, fence older producers of this id, and end what they left open.

        Call it once, before the first transaction. Blocks up to `max_block_ms`.

        Raises:
            KafkaTimeoutError: not done in time; call again to go on waiting.
            IllegalStateError: done before, or no `transactional_id`.
            KafkaError: refused; `recovery` says what to do.
        """
        self._await("init_transactions", self._core.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction; local, nothing is sent.

        Raises:
            IllegalStateError: not initialized, or a transaction is open already.
            KafkaError: the producer failed before; `recovery` says what to do.
        """
        self._begin(None)

    def _begin(self, transaction: Transaction | None) -> None:
        self._check_usable("begin_transaction")
        with self._lock:
            self._core.begin_transaction()
            self._transaction = transaction
            self._commit = None
            self._resolved = "unknown"

    def transaction(self) -> Transaction:
        """Return a transaction to be used as a `with` block: commits at its end, or aborts."""
        return Transaction(self, self._begin)

    def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: object
    ) -> None:
        """Commit a consumer's offsets together with the transaction's records.

        Args:
            offsets: `TopicPartition` to `OffsetAndMetadata` (or an int): for each partition the
                last offset that was processed plus one. kafka-python's types fit as well.
            group_metadata: the consumer's group metadata, so that a consumer that has lost its
                partitions is refused (KIP-447).

        Raises:
            ValueError: an argument is malformed; nothing changed.
            KafkaTimeoutError: not done in time; call again, with the same offsets, to go on.
            CommitFailedError: the group has moved on: abort, and read again from its offsets.
            KafkaError: refused; `recovery` says what to do.
        """
        self._check_usable("send_offsets_to_transaction")
        group = as_consumer_group_metadata(group_metadata)
        wanted = as_offsets(offsets)
        if wanted:
            self._await(
                "send_offsets_to_transaction",
                lambda: self._core.send_offsets_to_transaction(wanted, group),
            )

    def commit_transaction(self) -> None:
        """Commit: waits for every record, then makes all of them (and the offsets) visible.

        Returns only when every record and offset of the transaction is in.

        Raises:
            KafkaTimeoutError: not done in time; call again to go on waiting, or abort.
            CommitOutcomeUnknownError: sent, and the answer is lost for good.
            IllegalStateError: no transaction is open.
            KafkaError: not committed; with `recovery == "abort"` call `abort_transaction()`.
        """
        self._end("commit_transaction", self._begin_commit)

    def _begin_commit(self) -> TransactionalRequestResult:
        self._commit = self._core.begin_commit()
        return self._commit

    def abort_transaction(self) -> None:
        """Abort: none of the transaction's records and offsets will be visible.

        Allowed after a commit that timed out, too: where the commit was sent already, the
        coordinator's answer to the abort tells what became of it. Records not sent yet are
        dropped, their futures fail with `TransactionAbortedError`.

        Raises:
            KafkaTimeoutError: not done in time; call again to go on waiting.
            CommitOutcomeUnknownError: a commit was under way; which of the two happened is open.
            IllegalStateError: no transaction is open, or the commit was carried out meanwhile.
            KafkaError: refused; `recovery` says what to do.
        """
        self._end("abort_transaction", self._core.begin_abort)

    def resolve_outcome(self) -> ResolvedOutcome:
        """Find out what became of a commit that ended with `CommitOutcomeUnknownError`.

        Asks the transaction's coordinator (DescribeTransactions, Kafka 3.0 and newer), also after
        this producer has failed or was closed. Call it before anything else initializes the
        transactional id: the next `init_transactions` of the id, by any producer, overwrites the
        evidence, and then the answer is "unknown" for ever. Bounded by `max_block_ms`.

        Returns:
            "committed": all of it is, or is about to be, visible. "aborted": nothing of it is, or
            ever will be. "unknown": it cannot be told. With transactions v1 that is so after the
            coordinator has fenced the producer (at the transaction's time-out, or for a newer
            producer), or where a delayed request may have begun another one; with both versions
            while the transaction is still open, since the commit may yet arrive. With v2 ask again
            after `transaction_timeout_ms`; with v1 that end leaves no evidence.

        Raises:
            IllegalStateError: no commit has ended; one that has timed out is repeated, or aborted.
            KafkaTimeoutError: the cluster did not answer in time.
            KafkaError: the cluster refuses to tell; the user needs Describe on the id.
        """
        if self._refusal is _advice.forked:
            raise self._refusal("resolve_outcome")
        known, commit = self._outcome(), self._last_commit()
        if known == "open" or commit is None:
            raise IllegalStateError(
                "resolve_outcome(): no commit has ended; call commit_transaction(), or"
                " abort_transaction()"
            )
        if known == "unknown":
            known = self._resolved = self._ask_for_outcome(commit)
            self._settle()
        return known

    def _last_commit(self) -> SentCommit | None:
        manager = self._core.transaction_manager
        return None if manager is None else manager.last_commit

    def _ask_for_outcome(self, commit: SentCommit) -> ResolvedOutcome:
        # Imported late: only who is in doubt needs kafka-python's admin client.
        from txnproducer import admin

        config = self._config
        security = {name: value for name, value in config.security.items() if value is not None}
        servers = ",".join(f"{host}:{port}" for host, port in config.bootstrap_addresses)
        try:
            told = admin.describe_transaction(
                servers, config.transactional_id or "", self._max_block_s, **security
            )
        except UnsupportedVersionError:
            return "unknown"
        if told is None:
            return "unknown"
        described = ProducerIdAndEpoch(told.producer_id, told.producer_epoch)
        manager = self._core.transaction_manager
        may_begin_again = manager is not None and manager.may_begin_again
        return resolve(commit, told.state, described, may_begin_again=may_begin_again)

    @property
    def transaction_state(self) -> str:
        """The name of the transaction state at this moment, for logs and tests: "READY" ..."""
        manager = self._core.transaction_manager
        return "UNINITIALIZED" if manager is None else manager.state.name

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
        """Write a record; returns at once unless metadata or memory is waited for.

        Args:
            topic: where to.
            value: bytes, or what `value_serializer` takes; None is a tombstone.
            key: bytes, or what `key_serializer` takes; equal keys go to one partition.
            headers: pairs of a name and bytes (or None).
            partition: which one; None lets key or load decide.
            timestamp_ms: milliseconds since the epoch; None for now.
            on_delivery: called with the record's metadata and None, or what is known of it (offset
                -1) and the error, on the I/O thread; keep it short, it must not block.

        Returns:
            The record's future: `.result(timeout)` gives its `RecordMetadata`. What goes wrong on
            the way (too large, unknown topic, no memory) fails the future and, in a transaction,
            the commit.

        Raises:
            TypeError, ValueError, SerializationError: an argument; nothing changed.
            IllegalStateError: no transaction is open, or the producer is closed.
            KafkaError: the transaction failed before; `recovery` says what to do.
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
        if self._refusal is not None:
            raise self._refusal("send")
        if type(value) is not bytes or self._value_serializer is not None:
            value = to_bytes("value", value, self._value_serializer)
        if key is not None and (type(key) is not bytes or self._key_serializer is not None):
            key = to_bytes("key", key, self._key_serializer)
        checked = check_headers(headers) if headers else ()
        if type(topic) is not str or partition is not None or timestamp_ms is not None:
            check_place(topic, partition, timestamp_ms)
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
                    core.needs_wakeup = False
                    self._io.poke()
            if isinstance(future, AppendBlocked):
                return self._send_later(
                    (topic, value, key, checked, partition, timestamp_ms, on_delivery), future
                )
        except BaseException:
            if isinstance(future, AppendBlocked):
                # Interrupted on the way to the wait: nobody else is served before this one.
                with self._lock:
                    core.give_up_append(future)
            raise
        return future

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partitions: Any = None,
        timestamps_ms: Any = None,
    ) -> FutureBatchMetadata:
        """Write many records, given by column; several times as fast as `send` for each.

        Records of one partition keep their order. Waits for buffer memory where there is none, up
        to `max_block_ms` for the next batch.

        Args:
            topic: where to.
            values: of each record, bytes or None (a tombstone): a list, a NumPy array of bytes, a
                pyarrow array (binary or string; chunked, sliced, dictionary, large and view types
                as well). With a `value_serializer`, whatever that takes.
            keys: likewise; equal keys go to one partition, where `send` would put them.
            headers: for each record what `send` takes, or None.
            partitions: for each record which one, or None to let key or load decide.
            timestamps_ms: for each record milliseconds since the epoch (or None for now); or one
                int for all.

        Returns:
            One future for all: `.result(timeout)` gives their partitions and offsets.

        Raises:
            TypeError, ValueError, SerializationError: a column; nothing was sent.
            RecordTooLargeError: a record, which is named; nothing was sent.
            KafkaTimeoutError: no memory or no metadata within `max_block_ms`. What was sent by
                then is in the transaction, and that can only be aborted. Without a transaction
                some of the records may be written, and nobody is told which.
            IllegalStateError: no transaction is open, or the producer is closed.
            KafkaError: the transaction failed before; `recovery` says what to do.
        """
        serializers = self._value_serializer, self._key_serializer
        return self._send_rows(
            "send_batch",
            topic,
            lambda now_ms: column_blocks(
                values, keys, headers, partitions, timestamps_ms, now_ms, serializers
            ),
        )

    def send_arrow(self, topic: str, data: Any) -> FutureBatchMetadata:
        """Write the rows of a pyarrow Table or RecordBatch.

        Its buffers are read as they lie, and must not be changed before this returns. Serializers
        are not used: Arrow's binary is bytes, its strings are UTF-8.

        Args:
            topic: where to.
            data: has a column `value`, and may have `key` (both binary or string), `headers` (a
                list of structs of a name and a value, or a map), `partition` (integers),
                `timestamp` (timestamps, or integers in milliseconds). Null stands for none.

        Returns:
            As `send_batch` does, and it raises the same.
        """
        return self._send_rows("send_arrow", topic, lambda now_ms: arrow_blocks(data, now_ms))

    def _send_rows(
        self, call: str, topic: str, blocks: Callable[[int], list[Block]]
    ) -> FutureBatchMetadata:
        self._check_usable(call)
        check_place(topic, None, None)
        return self._rows.send(topic, blocks(wall_clock_ms()), self.partitions_for)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far was delivered or has failed (see the futures).

        Args:
            timeout: seconds; None for `delivery_timeout_ms`, in which each record's fate is known
                (and a moment more, in which it is told).

        Raises:
            KafkaTimeoutError: not done in time; the records are still on their way.
        """
        self._check_usable("flush")
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
            raise _advice.flush_timed_out(limit_s)

    def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Return a topic's partitions and their leaders; asks the cluster if it must.

        Raises:
            KafkaTimeoutError: the topic is not known after `max_block_ms`.
            KafkaError: the cluster refused to tell.
        """
        self._check_usable("partitions_for")
        check_place(topic, None, None)
        deadline_ms = monotonic_ms() + self._config.max_block_ms
        has_asked = False
        while True:
            with self._lock:
                now_ms = monotonic_ms()
                partitions = self._core.partitions_for(topic, now_ms, has_asked=has_asked)
                self._io.poke()
            has_asked = True
            if partitions is not None:
                return partitions
            if now_ms >= deadline_ms:
                raise _advice.topic_unknown(topic, self._config.max_block_ms)
            left_s = (deadline_ms - now_ms) / 1000
            self._io.wait_until(lambda: self._core.is_topic_decided(topic), left_s)

    def metrics(self) -> dict[str, float]:
        """Return the counters and rates, under the Java client's names."""
        with self._lock:
            return self._core.metrics()

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent, abort an open transaction, finish a commit under way, and end.

        Closing again does nothing. In a delivery callback it acts as with a time-out of 0.

        Args:
            timeout: seconds after which what is left is failed by force; None for
                `delivery_timeout_ms`, in which each record's fate is known; 0 for at once.

        Raises:
            ValueError: the time-out is negative.
        """
        limit_s = self._delivery_s if timeout is None else _seconds(timeout)
        if self._refusal is not None:
            return
        self._refusal = _advice.closed
        self._be_slow()
        _live_producers.forget(self)
        try:
            self._io.close(limit_s)
        finally:
            self._settle()

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
        """Refuse every call from now on: this process is a fork of the one that made it."""
        self._refusal = _advice.forked
        self._be_slow()

    def __del__(self) -> None:
        if getattr(self, "_refusal", _advice.closed) is None:
            warnings.warn(f"unclosed {self!r}: use `with`, or call close()", ResourceWarning, 2)
            self._io.orphan()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a TransactionalProducer cannot be pickled: its thread and connections belong to this"
            " process. Send its settings instead, and make the producer where it is used."
        )

    def __repr__(self) -> str:
        config = self._config
        name = config.transactional_id or config.client_id
        return f"<TransactionalProducer {name!r} {self.transaction_state}>"

    # --- how calls wait ------------------------------------------------------------------------

    def _check_usable(self, call: str) -> None:
        if self._refusal is not None:
            raise self._refusal(call)

    def _await(self, call: str, begin: Callable[[], TransactionalRequestResult]) -> None:
        """Begin an operation and wait for its end; raise what it ended with."""
        self._check_usable(call)
        began_ns = monotonic_ns()
        with self._lock:
            result = begin()
            self._io.poke()
            self._io.notify()
        if not self._io.wait_until(lambda: result.is_completed, self._max_block_s):
            raise _advice.timed_out(call, self._config.max_block_ms)
        with self._lock:
            result.acknowledge()
            self._core.add_time(_TIMES[call], monotonic_ns() - began_ns)
        if result.error is not None:
            raise result.error

    def _end(self, call: str, begin: Callable[[], TransactionalRequestResult]) -> None:
        try:
            self._await(call, begin)
        except KafkaError as error:
            self._settle()
            lost = None if self._commit is None else self._commit.error
            is_other = isinstance(lost, CommitOutcomeUnknownError) and lost is not error
            if lost is not None and is_other and self._outcome() == "unknown":
                # The abort says that the producer has failed; that the commit before it may have
                # been carried out must not be lost on the way.
                raise lost from error
            raise
        self._settle()

    def _settle(self) -> None:
        """Bring the current transaction's `outcome` up to date."""
        if self._transaction is not None:
            self._transaction.outcome = self._outcome()

    def _outcome(self) -> Outcome:
        manager = self._core.transaction_manager
        if manager is None or manager.outcome is None:
            return "open"
        if manager.outcome != "open":
            return manager.outcome  # also where an abort has found out about a lost commit
        if self._commit is not None and isinstance(self._commit.error, CommitOutcomeUnknownError):
            return self._resolved
        # After a fatal error no commit is under way that could still succeed, and none can follow.
        return "aborted" if manager.has_fatal_error else "open"

    def _send_later(self, record: _Record, blocked: AppendBlocked) -> FutureRecordMetadata:
        """Wait for metadata or memory, then append; one `max_block_ms` for all of it."""
        topic, _, _, _, partition, _, on_delivery = record
        core = self._core
        began_ms = monotonic_ms()
        deadline_ms = began_ms + self._config.max_block_ms
        try:
            while True:
                left_s = max(0, deadline_ms - monotonic_ms()) / 1000
                can_proceed = self._wait_to_append(blocked, left_s)
                with self._lock:
                    now_ms = monotonic_ms()
                    if not can_proceed and now_ms >= deadline_ms:
                        waited_ms = now_ms - began_ms
                        future = core.time_out_append(
                            blocked, topic, partition, on_delivery, waited_ms, now_ms
                        )
                    else:
                        outcome = self._append(*record, now_ms, blocked)
                        if isinstance(outcome, AppendBlocked):
                            blocked = outcome
                            self._io.poke()
                            continue
                        future = outcome
                    core.needs_wakeup = False
                    self._io.poke()
                    return future
        except BaseException:
            # Refused, interrupted, or called where waiting is impossible: leave the queue for
            # memory, where nobody else is served before the first.
            with self._lock:
                core.give_up_append(blocked)
            raise

    def _wait_to_append(self, blocked: AppendBlocked, timeout_s: float) -> bool:
        return self._io.wait_until(lambda: self._core.append_can_proceed(blocked), timeout_s)


class _WeakMethod:
    """Call a method of an object, as long as somebody holds that."""

    __slots__ = ("_method",)

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *arguments: Any) -> Any:
        method = self._method()
        if method is None:
            raise _advice.closed("send")
        return method(*arguments)


_Record: TypeAlias = tuple[
    str, bytes | None, bytes | None, tuple[Header, ...], int | None, int, DeliveryCallback | None
]


def _seconds(timeout: float) -> float:
    if timeout < 0:
        raise ValueError(
            f"timeout must not be negative: {timeout} (seconds; None for the default)"
        )
    return float(timeout)
