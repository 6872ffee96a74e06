"""The door of the core: a whole producer without threads, locks, sockets or a clock.

Owns: the wiring of the parts, and the public calls of the shell (facade, simulator, test harness).
Must not know: how any part works.

The shell holds its lock around every call, and each call brings the time. The application's calls
begin an operation and return its result, which completes later. `run_once` and `handle` do the
work.

The acting role is set here: an illegal step of the sender (`run_once`, `handle`) may poison the
producer, a mistake of the application only raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnproducer._core.append.appender import Appender, AppendOptions
from txnproducer._core.append.row_appender import RowAppender
from txnproducer._core.append.row_placer import RowPlacer
from txnproducer._core.batches.append_blocked import AppendBlocked as AppendBlocked
from txnproducer._core.batches.append_blocked import BlockReason as BlockReason
from txnproducer._core.batches.append_blocked import reason_against
from txnproducer._core.batches.record_accumulator import AccumulatorOptions, RecordAccumulator
from txnproducer._core.batches.results import CallbackBatch, FlushTicket
from txnproducer._core.metadata import Metadata, name_error
from txnproducer._core.metrics import Metrics
from txnproducer._core.ports import KafkaClient, Waiter
from txnproducer._core.sending.coordinator_sender import CoordinatorSender
from txnproducer._core.sending.login_refusals import LoginRefusals
from txnproducer._core.sending.marker_gate import MarkerGate
from txnproducer._core.sending.metadata_refresher import MetadataRefresher
from txnproducer._core.sending.produce_sender import ProduceOptions, ProduceSender
from txnproducer._core.sending.quotas import leader_quota_error
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._core.sending.sender import Sender
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.state import Role
from txnproducer._protocol.events import (
    ClientEvent,
    ClientResponse,
    ConnectionEvent,
    ConnectionState,
)
from txnproducer._protocol.messages import BrokerNode, PartitionMetadata
from txnproducer._protocol.rng import Rng
from txnproducer._record.sealed_records import SealedRecords
from txnproducer.config import ProducerConfig
from txnproducer.errors import AuthenticationError, IllegalStateError, KafkaError
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionLease,
    TransactionReceipt,
)


class ProducerCore(Appender):
    """A whole producer without I/O.

    Args:
        config: the settings.
        client: carries requests; its events come back through `handle`.
        waiter: the means by which the records' futures wait.
        rng: for the partitioner and the jitter of retries.
        now_ms: the core's clock at the start.

    Attributes:
        rows: takes many records at once.
        row_placer: chooses for rows without key and partition that lie among others.
        needs_wakeup: whether the sender should look; the shell reads and clears it.
        transaction_manager: None if idempotence is disabled.
    """

    def __init__(
        self,
        config: ProducerConfig,
        client: KafkaClient,
        waiter: Waiter,
        rng: Rng,
        now_ms: int,
    ) -> None:
        transactions = _transaction_manager(config, client)
        metadata = _metadata(config, rng)
        metrics = Metrics(now_ms)
        accumulator = RecordAccumulator(_accumulator_options(config), waiter, rng)
        options = AppendOptions(
            config.max_request_size, config.buffer_memory, config.partitioner_ignore_keys
        )
        super().__init__(options, metadata, accumulator, transactions, metrics, waiter)
        self.rows = RowAppender(self, metadata, accumulator)
        self.row_placer = RowPlacer(metadata, accumulator)
        self._client = client
        self._now_ms = now_ms
        self._requests = RequestTracker(client, config.request_timeout_ms)
        refresher = MetadataRefresher(
            metadata,
            client,
            self._requests,
            self.failed_tries,
            self._on_metadata,
        )
        gate = None if transactions is None else MarkerGate(client, self._requests, transactions)
        producing = ProduceSender(
            _produce_options(config),
            client,
            self._requests,
            metadata,
            accumulator,
            transactions,
            metrics,
            self.failed_tries,
            gate,
        )
        self._refusals = LoginRefusals(metadata)
        self._coordinators = (
            None
            if transactions is None or gate is None  # both or neither
            else CoordinatorSender(
                transactions,
                client,
                self._requests,
                metadata,
                accumulator,
                self._refusals,
                self.failed_tries,
                gate,
                request_timeout_ms=config.request_timeout_ms,
                retry_backoff_ms=config.retry_backoff_ms,
            )
        )
        self._sender = Sender(
            transactions,
            self._coordinators,
            producing,
            refresher,
            accumulator,
        )

    # --- transactions ---------------------------------------------------------------------------

    def init_transactions(self) -> TransactionalRequestResult:
        """Begin to get the producer's identity. It fences older producers of the same id."""
        # The manager first: a refused call wakes no thread.
        manager = self._manager()
        self.ask_for_step()
        return manager.initialize_transactions()

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is sent."""
        self._manager().begin_transaction()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """Begin to commit a consumer group's offsets inside the transaction."""
        manager = self._manager()
        self.ask_for_step()
        return manager.send_offsets_to_transaction(offsets, group_metadata)

    def begin_commit(self) -> TransactionalRequestResult:
        """Begin to commit. Records appended so far go first."""
        manager = self._manager()
        self.ask_for_step()
        return manager.begin_commit()

    def begin_abort(self) -> TransactionalRequestResult:
        """Begin to abort. Records that were never sent fail at once."""
        manager = self._manager()
        self.ask_for_step()
        return manager.begin_abort()

    # --- transactions that processes share ------------------------------------------------------

    def begin_lease(self, claims: int) -> TransactionalRequestResult:
        """Begin to lease the open transaction. The manager's `lease` has it in the end."""
        manager = self._manager()
        self.ask_for_step()
        return manager.leasing.begin_lease(claims, has_incomplete=self._accumulator.has_incomplete)

    def transaction_to_prepare(self) -> TransactionManager:
        """Return the manager of an open transaction that has not failed."""
        manager = self._manager()
        manager.leasing.check_preparable()
        return manager

    def prepare_transaction(self) -> TransactionLease:
        """Prepare the open transaction. Return a lease by which any process can end it."""
        return self._manager().leasing.prepare(has_incomplete=self._accumulator.has_incomplete)

    def adopt(self, receipts: Iterable[TransactionReceipt]) -> None:
        """Take in the receipts of the lease's participants."""
        self._manager().leasing.adopt(receipts)

    def begin_join(self, lease: TransactionLease, claim: int) -> TransactionalRequestResult:
        """Begin to take part in another producer's transaction."""
        manager = self._manager()
        self.ask_for_step()
        return manager.leasing.begin_join(lease, claim)

    def give_receipt(self) -> TransactionReceipt:
        """Return the receipt of this participant's records. It can write no more."""
        return self._manager().leasing.give_receipt(
            has_incomplete=self._accumulator.has_incomplete
        )

    def resume(self, lease: TransactionLease, *, is_prepared: bool = False) -> None:
        """Take over a transaction that another producer has opened, or prepared."""
        self._manager().leasing.resume(lease, is_prepared=is_prepared)

    @property
    def lease(self) -> TransactionLease:
        """The latest lease.

        Raises:
            IllegalStateError: nothing is leased.
        """
        lease = self._manager().share.lease
        if lease is None:
            raise IllegalStateError("the transaction is not leased")
        return lease

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, or None until its metadata are known."""
        return self._metadata.cluster_id

    def _manager(self) -> TransactionManager:
        manager = self.transaction_manager
        if manager is None or not manager.is_transactional:
            raise IllegalStateError("transactions need a transactional_id in the configuration")
        if self._accumulator.is_closed:
            raise IllegalStateError("the producer is closed")
        self.finish_interrupted_call()
        return manager

    # --- the rest of the application's calls -----------------------------------------------------

    def partitions_for(
        self, topic: str, now_ms: int, *, has_asked: bool = False
    ) -> tuple[PartitionMetadata, ...] | None:
        """Return a topic's partitions, or None if they are not known yet. Then they are asked for.

        Args:
            topic: its name.
            now_ms: the time.
            has_asked: whether an earlier call asked. If not, a stored refusal may be old, and the
                cluster is asked again.

        Raises:
            KafkaError: the cluster refuses the answer.
        """
        if self.knows_topic(topic):
            self._metadata.add_topic(topic, now_ms)
            return self._metadata.topics[topic].partitions()
        # An earlier call may have left its refusal, and the topic may be repaired since.
        stored = self._metadata.take_topic_error(topic)
        error = self._metadata.fatal_error or name_error(topic) or (stored if has_asked else None)
        if error is not None:
            raise error
        self._metadata.add_topic(topic, now_ms)
        self._metadata.request_topic(topic)
        self.ask_for_step()
        return None

    def knows_topic(self, topic: str) -> bool:
        """Return whether `partitions_for` can answer without asking the cluster."""
        snapshot = self._metadata.topics.get(topic)
        # A topic may be known and have no partitions yet, as one that is being created.
        return snapshot is not None and snapshot.partition_count > 0

    def reason_against(self, topic: str, partition: int | None) -> str | None:
        """Return why a record cannot be sent to a place, as far as it is known now, or None."""
        return reason_against(self._metadata, topic, partition)

    def is_topic_decided(self, topic: str) -> bool:
        """Return whether `partitions_for`, having asked, would return or raise."""
        metadata = self._metadata
        return (
            topic in metadata.topics
            or metadata.has_topic_error(topic)
            or metadata.fatal_error is not None
        )

    def begin_flush(self, now_ms: int) -> FlushTicket:  # noqa: ARG002 - every begin takes the time
        """Make all batches ready to send. The ticket is done when they have ended."""
        self.ask_for_step()
        return self._accumulator.begin_flush()

    def end_flush(self, ticket: FlushTicket) -> None:
        """Forget a flush that no caller waits for any more."""
        self._accumulator.end_flush(ticket)

    def metrics(self) -> dict[str, float]:
        """Return the counters and rates by the Java client's names."""
        values = self._metrics.snapshot(self._now_ms)
        pool = self._accumulator.pool
        values["buffer-total-bytes"] = pool.total_bytes
        values["buffer-available-bytes"] = pool.available_bytes
        values["waiting-threads"] = len(pool.waiting)
        values["requests-in-flight"] = self._client.in_flight_count()
        last_ms = self._metadata.last_success_ms
        # In seconds, as Java's metric is.
        values["metadata-age"] = (self._now_ms - (last_ms or 0)) / 1000
        return values

    @property
    def is_loss_explained(self) -> bool:
        """Whether no inquiry is open about the reason why the latest transaction was lost."""
        manager = self.transaction_manager
        loss = None if manager is None else manager.progress.loss
        # A closed producer asks nothing any more, so a caller would wait out its time.
        return loss is None or loss.is_explained or self.is_closed

    def explained(self, error: KafkaError) -> KafkaError:
        """Return a call's error with the known reason why its transaction was lost."""
        manager = self.transaction_manager
        return error if manager is None else manager.progress.explained(error)

    def last_refusal(self, now_ms: int, *, of_records: bool) -> KafkaError | None:
        """Return the last refusal of the requests that are repeated now, or None.

        A broker that takes none for now, by its quota, has refused as well.

        Args:
            now_ms: the time.
            of_records: whether the refusals of records count.
        """
        transactions = self.transaction_manager
        tries, refusal = self.failed_tries, None
        if transactions is not None:
            refusal = tries.last_refusal(transactions.requests.refusals(), now_ms)
        # Second, since records wait for the requests to coordinators.
        if refusal is None and of_records:
            refusal = tries.last_refusal(self._accumulator.refusals(now_ms), now_ms)
        if refusal is None and self._coordinators is not None:
            refusal = self._coordinators.quota_error(now_ms)
        if refusal is None and of_records:
            waiting = self._accumulator.active
            refusal = leader_quota_error(self._client, self._metadata, waiting, now_ms)
        return refusal

    def add_time(self, name: str, duration_ns: int) -> None:
        """Add to a total of time spent waiting, such as `flush` or `txn-commit`."""
        self._metrics.add_time(name, duration_ns)

    # --- the shell's calls -----------------------------------------------------------------------

    def run_once(self, now_ms: int) -> int:
        """Take one step of the sender. Return after how many milliseconds the next is due."""
        self._act_as_sender(now_ms)
        try:
            # Before the step, which may use the memory that this frees.
            if self._accumulator.is_compressing:
                self._accumulator.settle_compressed()
            # Likewise, since it may send their batches again at once.
            if self._requests.unsent:
                self._requests.end_unsent(now_ms)
            delay_ms = self._sender.run_once(now_ms)
        finally:
            self._act_as_application()
        # A request that could not be sent ends with the next step, so that is due at once.
        delay_ms = 0 if self._requests.unsent else delay_ms
        self.note_next_step(now_ms + delay_ms)
        return delay_ms

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Take in an answer, or news of a connection."""
        self._act_as_sender(now_ms)
        try:
            if isinstance(event, ClientResponse):
                self._requests.handle(event, now_ms)
            else:
                self._handle_connection_event(event)
        finally:
            self._act_as_application()

    def _act_as_sender(self, now_ms: int) -> None:
        """Note the time, and that the sender acts from here on. No call is half-way then."""
        self._now_ms = now_ms
        manager = self.transaction_manager
        if manager is not None:
            manager.progress.set_time(now_ms)
        self.finish_interrupted_call()
        if manager is not None:
            # Last: the application's interrupted call must not poison the producer.
            manager.machine.act_for(Role.SENDER)

    def _act_as_application(self) -> None:
        # Also after an exception, or the application's next mistake would poison the producer.
        if self.transaction_manager is not None:
            self.transaction_manager.machine.act_for(Role.APPLICATION)

    def _handle_connection_event(self, event: ConnectionEvent) -> None:
        # Both take the news first, since the questions below are about its effect.
        self._refusals.handle_connection_event(event)
        self.failed_tries.handle_connection_event(event, self._now_ms)
        if event.state is ConnectionState.READY:
            return
        # No metadata can come, so calls that wait for them fail at once.
        if event.state is ConnectionState.AUTHENTICATION_FAILED and self._refusals.leave_none:
            self._metadata.fail(event.error or AuthenticationError())
        # The partitions of a lost broker get other leaders.
        self._metadata.request_update()
        if self._coordinators is not None:
            self._coordinators.handle_connection_event(event)

    @property
    def has_full_batches(self) -> bool:
        """Whether there are batches to compress."""
        # Each turn asks, and most producers have no codec.
        return self._accumulator.is_compressing and bool(self._accumulator.full_batches)

    def take_full_batches(self) -> list[SealedRecords]:
        """Return the records of full batches, for the shell to compress without its lock.

        The batches stay in their queues. No step sends one before it was taken, so the shell asks
        after each step.
        """
        return self._accumulator.full_batches.take()

    def lend_full_batch(self, now_ms: int) -> SealedRecords | None:
        """Return one batch's records likewise, for another thread than the sender's."""
        return self._accumulator.full_batches.lend(now_ms)

    @property
    def awaits_codec(self) -> bool:
        """Whether a step is due once a batch was compressed: it sends it, or frees its memory."""
        return self._accumulator.full_batches.is_awaited or bool(self._accumulator.pool.waiting)

    def take_callbacks(self) -> tuple[CallbackBatch, ...]:
        """Return the delivery callbacks that became due. The shell runs them without its lock."""
        return self._accumulator.take_callbacks()

    def initiate_close(self, now_ms: int) -> None:
        """Begin to close in good order: send all records, then end the open transaction."""
        self._now_ms = now_ms
        self.ask_for_step()
        self._sender.initiate_close()

    def force_close(self, now_ms: int) -> None:
        """Close at once. Everything that has not ended fails."""
        self.ask_for_step()
        self._act_as_sender(now_ms)
        try:
            self._sender.force_close()
        finally:
            self._act_as_application()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to do, and everything that waited was answered."""
        return self._sender.is_closed

    def _on_metadata(self) -> None:
        metadata, known = self._metadata, self._accumulator.topics
        for topic in known.keys() & (known if metadata.renewed is None else metadata.renewed):
            snapshot = metadata.topics.get(topic)
            # The fast path reads the count from the queues, and knows no metadata.
            known[topic].set_partition_count(0 if snapshot is None else snapshot.partition_count)
        if self.transaction_manager is not None:
            self.transaction_manager.sequences.forget_topics(metadata.gone)
        # An answer without brokers comes from one that has just started: no broker has left.
        if not metadata.nodes:
            return
        self.failed_tries.forget_brokers_that_left()
        if self._coordinators is not None:
            self._coordinators.forget_coordinators_not_in(set(metadata.nodes))


# --- settings --------------------------------------------------------------------------------


def _transaction_manager(config: ProducerConfig, client: KafkaClient) -> TransactionManager | None:
    if not config.enable_idempotence:
        return None
    return TransactionManager(
        transactional_id=config.transactional_id,
        transaction_timeout_ms=config.transaction_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        client=client,
    )


def _metadata(config: ProducerConfig, rng: Rng) -> Metadata:
    addresses = config.bootstrap_addresses
    return Metadata(
        # Bootstrap ids are negative, so that they are never taken for a broker's (as in Java).
        [BrokerNode(-1 - number, host, port) for number, (host, port) in enumerate(addresses)],
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        max_age_ms=config.metadata_max_age_ms,
        max_idle_ms=config.metadata_max_idle_ms,
        rng=rng,
    )


def _accumulator_options(config: ProducerConfig) -> AccumulatorOptions:
    return AccumulatorOptions(
        batch_size=config.batch_size,
        buffer_memory=config.buffer_memory,
        max_request_size=config.max_request_size,
        compression_type=config.compression_type,
        compression_level=config.compression_level,
        compression_lz4_block_bytes=config.compression_lz4_block_bytes,
        linger_ms=config.linger_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        is_adaptive_partitioning=config.partitioner_adaptive_partitioning_enable,
        partition_availability_timeout_ms=config.partitioner_availability_timeout_ms,
        is_idempotent=config.enable_idempotence,
    )


def _produce_options(config: ProducerConfig) -> ProduceOptions:
    return ProduceOptions(
        acks=config.required_acks,
        retries=config.retries,
        request_timeout_ms=config.request_timeout_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        max_request_size=config.max_request_size,
        # With one request in flight, muting keeps the order even without numbers (as in Java).
        is_order_guaranteed_by_muting=config.max_in_flight_requests_per_connection == 1,
    )
