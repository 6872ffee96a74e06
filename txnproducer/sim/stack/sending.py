"""The records of a service: how it sends them, and its delivery callbacks, some of them bad.

Owns: the records' contents, the faults in callbacks. Must not know: how transactions end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import RecordMetadata, TopicPartition
from txnproducer.sim.stack.calls import InterruptError, ServiceCalls
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.options import PARTITIONS, TOPIC
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt, CallbackError, SentRecord

__all__ = ["RecordSending"]

# Each thread has partitions of its own: only the calls of one thread have a known order.
_OF_HELPERS: Final = PARTITIONS - 1
_OF_CALLBACKS: Final = PARTITIONS - 2
_LONGEST_BLOCK_S: Final = 3.0


class RecordSending:
    """The records of one producer.

    Args:
        world: of the service.
        judge: of the calls in callbacks.
        calls: makes the calls.
        rng: draws the records.
        producer: writes them.

    Attributes:
        lost: the record that a callback has lost in the open transaction, which must then fail.
    """

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        calls: ServiceCalls,
        rng: random.Random,
        producer: TransactionalProducer,
    ) -> None:
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
            partition = _OF_HELPERS if is_helper else self._rng.randrange(_OF_CALLBACKS)
            error = self._send(attempt, partition)
            if error is not None:
                return error
            if self._rng.random() < 0.1:
                self._calls.sleep(self._rng.random() * 0.2)
        return None

    def _send(self, attempt: Attempt, partition: int) -> BaseException | None:
        record = self._new_record(attempt, partition)

        def on_delivery(metadata: RecordMetadata, error: KafkaError | None) -> None:
            self._delivered(attempt, record, metadata, error)

        future, error = self._calls.call(
            "send",
            self._world.max_block_ms,
            lambda: self._producer.send(
                TOPIC,
                record.value,
                record.key,
                record.headers or None,
                partition,
                record.timestamp_ms,
                on_delivery,
            ),
        )
        if error is None:
            record.future = future
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
            record.future = self._producer.send(
                TOPIC,
                record.value,
                record.key,
                record.headers or None,
                _OF_CALLBACKS,
                record.timestamp_ms,
            )
        except KafkaError:
            # It leaves the callback, so that the record is lost.
            if attempt.claim == "open":
                self.lost = attempt, record.value
            raise
        record.is_sent = True
