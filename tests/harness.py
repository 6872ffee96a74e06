"""The whole core under a test's hand: a real `ProducerCore`, a scripted client, a still clock.

    harness = CoreHarness()
    harness.init_transactions()
    harness.begin_transaction()
    future = harness.send("topic", b"value")
    harness.client.prepare_produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(future.done)

`step` is what the I/O thread does in one turn: events that are due, one `run_once`, delivery
callbacks, compression. `run_until` takes steps, and moves the clock to the next thing due when
nothing is left to do now. Nothing here sleeps; a producer that would wait for ever fails the test
with what it still waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.scripted_client import PRODUCER_EPOCH, PRODUCER_ID, ScriptedClient
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.ports import DoneCallbacks
from txnproducer._core.producer_core import AppendBlocked, ProducerCore
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey, ProduceRequest
from txnproducer._record import BatchHeader, DecodedRecord, read_batches
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)

TP0 = TopicPartition("topic", 0)
TP1 = TopicPartition("topic", 1)
GROUP = ConsumerGroupMetadata("group", 5, "member")

# More steps than this at one moment mean that the core asks to be called again without doing
# anything.
_BUSY_STEPS = 200


class BusyError(AssertionError):
    """The core asks for one step after the other and nothing changes."""


class StuckError(AssertionError):
    """Nothing is due and the condition does not hold: a real producer would wait for ever."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """One batch as it went on the wire."""

    topic_partition: TopicPartition
    node_id: int
    header: BatchHeader
    records: tuple[DecodedRecord, ...]

    @property
    def values(self) -> list[bytes | None]:
        """The records' values."""
        return [record.value for record in self.records]


class CoreHarness:
    """The whole core of a producer, with a scripted client and a still clock.

    Args:
        transactional_id: None for an idempotent producer.
        transaction_version: the cluster's finalized `transaction.version`.
        node_count: how many brokers there are; partition p is led by broker p modulo this.
        topics: partition counts by topic.
        seed: of the core's rng.
        settings: of `ProducerConfig`; linger is 0 unless given.

    Attributes:
        deliveries: what the callbacks of `send(..., is_watched=True)` were called with, in order.
        logged: nothing of the core; free for a test's own notes.
    """

    def __init__(
        self,
        *,
        transactional_id: str | None = "txn",
        transaction_version: int | None = 2,
        node_count: int = 1,
        topics: dict[str, int] | None = None,
        seed: int = 1,
        **settings: Any,
    ) -> None:
        self.client = ScriptedClient(node_count=node_count, topics=topics)
        self.client.set_transaction_version(transaction_version)
        settings.setdefault("linger_ms", 0)
        given = {"bootstrap_servers": "boot:9092", "transactional_id": transactional_id}
        self.config = ProducerConfig.build(**given | settings)
        self.client.max_in_flight = self.config.max_in_flight_requests_per_connection
        self.rng = random.Random(seed)
        self.core = ProducerCore(self.config, self.client, self, self.rng, 0)
        self.deliveries: list[tuple[RecordMetadata, KafkaError | None]] = []
        self.is_running_callbacks = True
        self._due_ms = 0

    # --- the clock and the loop -----------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.client.now_ms

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self.client.now_ms = value

    def step(self) -> int:
        """Take one turn of the loop, and return the result of `run_once`."""
        for event in self.client.take_due_events():
            self.core.handle(event, self.now_ms)
        self.core.needs_wakeup = False
        delay_ms = self.core.run_once(self.now_ms)
        self._due_ms = self.now_ms + delay_ms
        if self.is_running_callbacks:
            self.run_callbacks()
        for full in self.core.take_full_batches():
            full.compress()
            self._due_ms = self.now_ms
        return delay_ms

    def run_callbacks(self) -> int:
        """Run the delivery callbacks that are due. Return how many batches of them there were."""
        batches = self.core.take_callbacks()
        for batch in batches:
            batch.run()
            batch.on_finished()
        if batches:
            self._due_ms = self.now_ms
        return len(batches)

    def settle(self) -> None:
        """Take steps until nothing is left to do at this moment. The clock stands still."""
        for _ in range(_BUSY_STEPS):
            self.step()
            if not self._is_something_due():
                return
        raise BusyError(f"still busy at {self.now_ms} ms: {self.describe()}")

    def _is_something_due(self) -> bool:
        next_event_ms = self.client.next_event_ms()
        is_event_due = next_event_ms is not None and next_event_ms <= self.now_ms
        return is_event_due or self._due_ms <= self.now_ms or self.core.needs_wakeup

    def run_until(
        self,
        condition: Callable[[], Any],
        max_steps: int = 2_000,
        until_ms: int | None = None,
    ) -> None:
        """Take steps, moving the clock on where nothing is left to do, until a condition holds.

        Args:
            condition: cheap, without side effects.
            max_steps: that it may take.
            until_ms: the clock is not moved beyond this; being there is no failure.

        Raises:
            StuckError: nothing is due any more.
            BusyError: the core spins.
            AssertionError: not within `max_steps`.
        """
        steps_at_this_moment = 0
        for _ in range(max_steps):
            if condition():
                return
            self.step()
            if condition():
                return
            steps_at_this_moment += 1
            if self._is_something_due():
                if steps_at_this_moment > _BUSY_STEPS:
                    raise BusyError(f"spinning at {self.now_ms} ms: {self.describe()}")
                continue
            if until_ms is not None and self.now_ms >= until_ms:
                return
            self._advance(until_ms)
            steps_at_this_moment = 0
        raise AssertionError(f"not within {max_steps} steps: {self.describe()}")

    def _advance(self, until_ms: int | None) -> None:
        times = (self.client.next_event_ms(), self._due_ms, until_ms)
        at_ms = min(t for t in times if t is not None)
        if at_ms > self.now_ms + (1 << 40):
            raise StuckError(
                f"nothing will happen any more at {self.now_ms} ms: {self.describe()}"
            )
        self.now_ms = at_ms

    def run_for(self, duration_ms: int) -> None:
        """Let an amount of time pass, doing all that falls due in it."""
        end_ms = self.now_ms + duration_ms
        self.settle()
        while True:
            times = [t for t in (self.client.next_event_ms(), self._due_ms) if t is not None]
            at_ms = min(times)
            if at_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, at_ms)
            self.settle()
        self.now_ms = end_ms
        self.settle()

    def run_until_sent(self, api_key: ApiKey, count: int = 1) -> Any:
        """Run until this many requests of a kind were sent in all. Return the last one's body."""
        self.run_until(lambda: len(self.client.sent(api_key)) >= count)
        return self.client.sent(api_key)[count - 1]

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Run in virtual time, so that `future.result()` works in tests (the core's `Waiter`)."""
        end_ms = None if timeout_s is None else self.now_ms + int(timeout_s * 1000)
        self.run_until(is_done, until_ms=end_ms)
        return is_done()

    def refuse_in_fork(self) -> None:
        """Refuse nothing: this is no fork."""

    @property
    def done_callbacks(self) -> DoneCallbacks:
        """Refuse: no listener is added here, since that is the shell's part."""
        raise NotImplementedError

    # --- the application's calls ----------------------------------------------------------------

    @property
    def manager(self) -> TransactionManager:
        """The transaction manager."""
        manager = self.core.transaction_manager
        if manager is None:
            raise AssertionError("the producer has no transaction manager: idempotence is off")
        return manager

    @property
    def state(self) -> TransactionState:
        """The transaction state."""
        return self.manager.machine.state

    def complete(self, result: TransactionalRequestResult, timeout_ms: int | None = None) -> None:
        """Wait, acknowledge, and raise the operation's own error, as a blocking call does.

        Raises:
            KafkaTimeoutError: not completed in time (`max_block_ms` unless given); not
            acknowledged.
        """
        limit_ms = self.config.max_block_ms if timeout_ms is None else timeout_ms
        if not self.wait_until(lambda: result.is_completed, limit_ms / 1000):
            raise KafkaTimeoutError(f"{result.operation} did not finish within {limit_ms} ms")
        result.acknowledge()
        if result.error is not None:
            raise result.error

    def init_transactions(
        self, producer_id: int = PRODUCER_ID, producer_epoch: int = PRODUCER_EPOCH
    ) -> None:
        """Prepare the answers, initialize, and wait for it."""
        self.client.prepare_find_coordinator()
        self.client.prepare_init_producer_id(
            producer_id=producer_id, producer_epoch=producer_epoch
        )
        self.complete(self.core.init_transactions())

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self.core.begin_transaction()

    def commit(self, **prepared: Any) -> None:
        """Prepare EndTxn (`prepared` as for `prepare_end_txn`), commit, and wait for it."""
        self.client.prepare_end_txn(**prepared)
        self.complete(self.core.begin_commit())

    def abort(self, **prepared: Any) -> None:
        """Prepare EndTxn (`prepared` as for `prepare_end_txn`), abort, and wait for it."""
        self.client.prepare_end_txn(**prepared)
        self.complete(self.core.begin_abort())

    def start_transaction(self, transaction_version: int | None = None) -> None:
        """Initialize and begin: where most tests start."""
        if transaction_version is not None:
            self.client.set_transaction_version(transaction_version)
        self.init_transactions()
        self.be_known()
        self.begin_transaction()

    def start_idempotent(self, producer_id: int = PRODUCER_ID, producer_epoch: int = 0) -> None:
        """Let an idempotent producer get its id, and know its topics."""
        self.client.prepare_init_producer_id(
            producer_id=producer_id, producer_epoch=producer_epoch
        )
        self.run_until(lambda: self.manager.identity.has_producer_id)
        self.be_known()
        self.know_topics()

    def know_topics(self) -> None:
        """Learn all topics of the scripted cluster, so that the next send is not held up."""
        for topic in self.client.topics:
            self.core.partitions_for(topic, self.now_ms)
            self.run_until(partial(self.core.is_topic_decided, topic))

    def be_known(self) -> None:
        """Count as known to every partition, so that a first batch is not sent alone."""
        producer_id = self.manager.identity.producer_id_and_epoch.producer_id
        for topic, partition_count in self.client.topics.items():
            for partition in range(partition_count):
                place = TopicPartition(topic, partition)
                self.manager.sequences._known_as[place] = producer_id

    def try_send(
        self,
        topic: str = "topic",
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int | None = 0,
        *,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
        is_watched: bool = False,
        on_delivery: Callable[[RecordMetadata, KafkaError | None], object] | None = None,
        blocked: AppendBlocked | None = None,
    ) -> FutureRecordMetadata | AppendBlocked:
        """Append a record once, without waiting for metadata or memory."""
        if is_watched:
            on_delivery = self._watch
        stamp = self.now_ms if timestamp_ms is None else timestamp_ms
        outcome = self.core.append(
            topic, value, key, headers, partition, stamp, on_delivery, self.now_ms, blocked
        )
        self.core.claim_append(outcome)
        return outcome

    def _watch(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        self.deliveries.append((metadata, error))

    def send(
        self,
        topic: str = "topic",
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int | None = 0,
        **more: Any,
    ) -> FutureRecordMetadata:
        """Append, and wait up to `max_block_ms` for the room, as a blocking send does."""
        start_ms = self.now_ms
        outcome = self.try_send(topic, value, key, partition, **more)
        while isinstance(outcome, AppendBlocked):
            blocked = outcome
            left_s = (start_ms + self.config.max_block_ms - self.now_ms) / 1000
            can_proceed = partial(self.core.append_can_proceed, blocked)
            if not self.wait_until(can_proceed, left_s):
                callback = self._watch if more.get("is_watched") else more.get("on_delivery")
                waited_ms = self.now_ms - start_ms
                return self.core.time_out_append(
                    blocked, topic, partition, callback, waited_ms, self.now_ms
                )
            outcome = self.try_send(topic, value, key, partition, blocked=blocked, **more)
        return outcome

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: ConsumerGroupMetadata = GROUP,
    ) -> TransactionalRequestResult:
        """Begin to send offsets, by default partition 0 at offset 1."""
        wanted = {TP0: 1} if offsets is None else offsets
        values = {tp: OffsetAndMetadata(offset) for tp, offset in wanted.items()}
        return self.core.send_offsets_to_transaction(values, group)

    # --- what was sent --------------------------------------------------------------------------

    def sent_batches(self, topic_partition: TopicPartition | None = None) -> list[SentBatch]:
        """Return every batch that went on the wire, in order, decoded from its bytes."""
        sent = []
        for request in self.client.requests:
            if not isinstance(request.body, ProduceRequest):
                continue
            for partition in request.body.partitions:
                for batch in read_batches(partition.records):
                    node_id = request.connection.node_id
                    place = partition.topic_partition
                    sent.append(SentBatch(place, node_id, batch.header, tuple(batch)))
        return [b for b in sent if topic_partition in (None, b.topic_partition)]

    def sequences_sent(self, topic_partition: TopicPartition = TP0) -> list[int]:
        """Return the base sequences of a partition's batches, in the order of sending."""
        return [b.header.base_sequence for b in self.sent_batches(topic_partition)]

    def describe(self) -> str:
        """Describe the conditions that the producer waits for, for a failing test."""
        manager = self.core.transaction_manager
        state = "no transaction manager"
        if manager is not None:
            state = f"{manager.machine.state.name}, last error {manager.machine.last_error!r}"
        waiting = [type(r.body).__name__ for r in self.client.outstanding.values()]
        sent = [kind.name for kind in self.client.sent_kinds()[-10:]]
        return f"{state}; unanswered: {waiting}; last sent: {sent}"
