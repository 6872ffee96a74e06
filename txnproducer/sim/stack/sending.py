"""The records of a service: how it sends them, and its delivery callbacks, some of them bad.

Owns: the records' contents, the faults in callbacks. Must not know: how transactions end.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from txnproducer.sim.stack.calls import InterruptError, ServiceCalls
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.options import GROUP_TOPIC, PARTITIONS, TOPIC
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt, CallbackError, SentRecord

__all__ = ["OF_HELPERS", "RecordSending", "send_stamped"]

# Each thread has partitions of its own: only the calls of one thread have a known order.
OF_HELPERS: Final = PARTITIONS - 1
_OF_CALLBACKS: Final = PARTITIONS - 2
_LONGEST_BLOCK_S: Final = 3.0
_STAMPED_BY_PRODUCER: Final = 0.3


class RecordSending:
    """The records of one producer.

    Args:
        world: of the service.
        judge: of the calls in callbacks.
        calls: makes the calls.
        rng: draws the records.
        producer: writes them.
        name: the producer's, unique in the run.

    Attributes:
        lost: the record, or the offsets, that a callback has lost in the open transaction, which
            must then fail.
    """

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        calls: ServiceCalls,
        rng: random.Random,
        producer: TransactionalProducer,
        name: str,
    ) -> None:
        # Of its own, so that these draws do not shift the others.
        self._stamps = world.new_rng(f"stamps {name}")
        self._world = world
        self._judge = judge
        self._calls = calls
        self._rng = rng
        self._producer = producer
        self._sent = 0
        self.lost: tuple[Attempt, bytes] | None = None

    def send_some(
        self, attempt: Attempt, count: int, *, is_helper: bool = False
    ) -> BaseException | None:
        """Send records. Return the error of the one that was refused.

        Args:
            attempt: their transaction.
            count: how many.
            is_helper: whether another thread sends as well. Each has partitions of its own, so
                that the order of the calls is known.
        """
        for _ in range(count):
            partition = OF_HELPERS if is_helper else self._rng.randrange(_OF_CALLBACKS)
            error = self._send(attempt, partition)
            if error is not None:
                return error
            if self._rng.random() < 0.1:
                self._calls.sleep(self._rng.random() * 0.2)
        return None

    def _send(self, attempt: Attempt, partition: int) -> BaseException | None:
        record = self._new_record(attempt, partition)
        is_given = self._is_stamp_given()

        def on_delivery(metadata: RecordMetadata, error: KafkaError | None) -> None:
            self._delivered(attempt, record, metadata, error)

        future, error = self._calls.call(
            "send",
            self._world.max_block_ms,
            lambda: send_stamped(self._producer, record, on_delivery, is_given=is_given),
        )
        if error is None:
            record.future = future
            # One that failed in its wait, while another thread ended the transaction, was not
            # taken, and the transaction lacks nothing.
            if attempt.is_commit_asked and future.done() and future.error is not None:
                record.is_sent = None
                attempt.interrupted.append(record)
            else:
                attempt.records.append(record)
            return None
        # An interrupt may come after the core has taken the record.
        record.is_sent = None if isinstance(error, InterruptError) else False
        attempt.interrupted.append(record)
        return error

    def _new_record(self, attempt: Attempt, partition: int) -> SentRecord:
        # Each value is unique, since the judge knows a record in the logs by it.
        self._sent += 1
        filling = "." * self._rng.choice((0, 0, 40, 400))
        return SentRecord(
            self._world.history,
            TopicPartition(TOPIC, partition),
            f"{attempt.name}.{self._sent}.{filling}".encode(),
            self._rng.choice((None, b"key")),
            self._rng.choice(((), (("name", b"value"),))),
            partition,
            self._world.platform.wall_clock_ms(),
        )

    def _is_stamp_given(self) -> bool:
        return self._stamps.random() >= _STAMPED_BY_PRODUCER

    # --- delivery callbacks ---------------------------------------------------------------------

    def _delivered(
        self,
        attempt: Attempt,
        record: SentRecord,
        metadata: RecordMetadata,
        error: KafkaError | None,
    ) -> None:
        strikes = self._calls.strikes
        # First, since the faults below may raise, and the judge counts the calls of each callback.
        record.on_delivery(metadata, error)
        if strikes("callback blocks"):
            self._calls.sleep(self._rng.random() * _LONGEST_BLOCK_S)
        if strikes("callback commits"):
            self._must_be_refused(self._producer.commit_transaction)
        if strikes("callback flushes"):
            self._must_be_refused(self._producer.flush)
        if strikes("callback closes"):
            # Allowed here: it ends by force and waits for nothing.
            self._producer.close()
        if strikes("callback sends"):
            self._send_in_callback(attempt)
        if strikes("callback sends offsets"):
            self._send_offsets_in_callback(attempt)
        if strikes("callback raises"):
            raise CallbackError

    def _must_be_refused(self, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaError:
            return
        name = getattr(call, "__name__", "call")
        self._judge.violate("state", f"{name} in a callback is not refused")

    def _send_in_callback(self, attempt: Attempt) -> None:
        record = self._new_record(attempt, _OF_CALLBACKS)
        # It is sent without a callback, so the judge must not expect one.
        record.is_watched = False
        # On record before the call, since a commit on another thread may follow it at once.
        record.is_sent = None
        attempt.interrupted.append(record)
        try:
            is_given = self._is_stamp_given()
            record.future = send_stamped(self._producer, record, None, is_given=is_given)
        except KafkaError:
            # It leaves the callback, so that the record is lost.
            self._lose(attempt, record.value)
            raise
        record.is_sent = True

    def _send_offsets_in_callback(self, attempt: Attempt) -> None:
        offsets = {TopicPartition(GROUP_TOPIC, 0): OffsetAndMetadata(0, attempt.name)}
        try:
            self._producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("callbacks"))
        except KafkaError:
            # The call would have to wait. So the transaction lacks what its application added.
            self._lose(attempt, b"the offsets")
            raise
        self._judge.violate("state", "send_offsets_to_transaction in a callback is not refused")

    def _lose(self, attempt: Attempt, what: bytes) -> None:
        # Another thread may have ended the transaction, and this one does not know it yet. A
        # callback of a record that waited too long comes after that end, and loses nothing of it.
        if attempt.claim == "open" and self._producer.transaction_state != "READY":
            self.lost = attempt, what


def send_stamped(
    producer: TransactionalProducer,
    record: SentRecord,
    on_delivery: Callable[[RecordMetadata, KafkaError | None], None] | None,
    *,
    is_given: bool,
) -> FutureRecordMetadata:
    """Send a record. Note the time of day that its producer read, if it has to stamp the record.

    Args:
        producer: writes it.
        record: with the time that is given.
        on_delivery: called at the record's end.
        is_given: whether the producer gets the time of the record.
    """
    stamp_ms = record.timestamp_ms if is_given else None
    partition, headers = record.place.partition, record.headers or None
    platform: Any = producer._platform  # noqa: SLF001 - the judge looks inside
    # A reading of an earlier call is not that of this one.
    platform.told_ms.pop(threading.current_thread(), None)
    try:
        return producer.send(
            TOPIC, record.value, record.key, headers, partition, stamp_ms, on_delivery
        )
    finally:
        # Also after an interrupt, since the record may be taken.
        if not is_given:
            record.timestamp_ms = platform.told_ms.get(threading.current_thread(), -1)
