"""Sends the batches that are ready, and settles each by its answer.

Owns: the list of batches on the wire, Produce requests and their ends, expiry, the account of each
batch's end (future, sequences, memory). Must not know: coordinators, the state of a transaction,
the clock.

Rules:
* Batches expire before the drain: a batch is never reported as failed and then sent nevertheless.
* Each partition of an answer is handled by itself: an exception in one must not strand the others.
* A batch that is answered after its end (expired, aborted) still settles its sequence and frees
  its memory.
* A numbered batch that ends without a certain verdict leaves its partition unresolved: the broker
  may have it, and no new batch may be numbered before that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from txnproducer._core.batches.partition_queues import PartitionQueue
from txnproducer._core.batches.producer_batch import ProducerBatch, place_in_line
from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.batches.results import RecordErrors
from txnproducer._core.failed_tries import FailedTries
from txnproducer._core.metadata import NEVER_MS, Metadata
from txnproducer._core.metrics import Metrics
from txnproducer._core.ports import KafkaClient
from txnproducer._core.sending.drain import check_ready, drain, lingering_ms
from txnproducer._core.sending.expiries import Expiries, known_fate
from txnproducer._core.sending.marker_gate import MarkerGate
from txnproducer._core.sending.produce_outcome import (
    BatchAction,
    ProduceOutcome,
    judge,
    only_record_error,
    record_errors,
)
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._core.sending.send_metrics import SendMetrics
from txnproducer._core.sequences.partition_map import identity_of, is_sequence_after
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._protocol.events import (
    ClientResponse,
    ConnectionId,
    ResponseFailure,
    data_connection,
)
from txnproducer._protocol.messages import (
    BrokerNode,
    LeaderIdAndEpoch,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    ErrorCode,
    KafkaError,
    OutOfOrderSequenceError,
    RetriableError,
    UnknownProducerIdError,
)
from txnproducer.records import TopicPartition

_LOG = held_logger(__name__)

# With these codes the batch may be in the log. With any other code this attempt was certainly
# refused.
_MAYBE_WRITTEN = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

_MOST_PASSES = 5  # of a step, as many as a connection usually takes requests

_CODE_OF_FAILURE = {
    ResponseFailure.DISCONNECTED: ErrorCode.NETWORK_EXCEPTION,
    ResponseFailure.TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    ResponseFailure.UNSUPPORTED_VERSION: ErrorCode.UNSUPPORTED_VERSION,
    ResponseFailure.UNENCODABLE: ErrorCode.INVALID_REQUEST,
}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The settings of sending, with names and units as in `ProducerConfig`."""

    acks: int
    retries: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_request_size: int
    is_order_guaranteed_by_muting: bool  # with one request in flight no sequence is needed


class ProduceSender:
    """Send batches and settle them.

    Args:
        options: the settings.
        client: knows which brokers can be sent to.
        requests: sends.
        metadata: knows the leaders.
        accumulator: has the batches.
        transactions: numbers the batches; None without idempotence.
        metrics: counts.
        tries: know why a broker could not be reached.
        gate: learns from answers; None without idempotence.

    Attributes:
        requests_in_flight: the number of requests without an answer.
        expiry_ms: no batch expires before. Each step asks, so it must not look at all of them.
    """

    def __init__(
        self,
        options: ProduceOptions,
        client: KafkaClient,
        requests: RequestTracker,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        transactions: TransactionManager | None,
        metrics: Metrics,
        tries: FailedTries,
        gate: MarkerGate | None = None,
    ) -> None:
        self._gate = gate
        self._options = options
        self._client = client
        self._requests = requests
        self._metadata = metadata
        self._accumulator = accumulator
        self._transactions = transactions
        self._drained = None if transactions is None else transactions.progress
        self._metrics = metrics
        self._sent = SendMetrics(metrics)
        self._expiries = Expiries(
            options.delivery_timeout_ms, client, metadata, transactions, tries
        )
        self.requests_in_flight = 0
        # Batches on the wire whose records have not ended, by partition and in the order of
        # sending.
        self._in_flight: dict[TopicPartition, list[ProducerBatch]] = {}
        self.expiry_ms = 0

    # --- the step -------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Fail the batches past their delivery time-out. Call it from `expiry_ms` on."""
        waiting, next_expiry_ms = self._accumulator.expired_batches(now_ms)
        on_the_wire, wire_expiry_ms = self._expired_on_the_wire(now_ms)
        # In the order of the appends, so that the callbacks run in it as well.
        for batch in sorted((*waiting, *on_the_wire), key=place_in_line):
            self._fail_expired(batch, now_ms)
        # Last: those that an exception leaves on the wire are found by the next step. A batch that
        # is begun later than now expires later than that.
        end_ms = now_ms + self._options.delivery_timeout_ms
        self.expiry_ms = min(next_expiry_ms, wire_expiry_ms, end_ms)

    def _expired_on_the_wire(self, now_ms: int) -> tuple[list[ProducerBatch], int]:
        """Return the batches whose time is up, and when the next one's will be."""
        timeout_ms = self._options.delivery_timeout_ms
        expired: list[ProducerBatch] = []
        next_expiry_ms = NEVER_MS
        for batches in self._in_flight.values():
            # All are checked, since the parts of a split are older than batches sent before them.
            # (Java stops at the first one that has time left.)
            for batch in batches:
                if batch.has_reached_delivery_timeout(timeout_ms, now_ms):
                    expired.append(batch)
                else:
                    next_expiry_ms = min(next_expiry_ms, batch.created_ms + timeout_ms)
        return expired, next_expiry_ms

    def _fail_expired(self, batch: ProducerBatch, now_ms: int) -> None:
        error = self._expiries.error_of(batch, now_ms)
        self.fail_batch(batch, error, lambda _: error, is_refusal_certain=False, now_ms=now_ms)

    def step(self, now_ms: int) -> int:
        """Send the ready batches. Return after how many milliseconds the next step is due."""
        delay_ms = 0
        # A request has one batch of a partition at most. A step of its own for the next one would
        # cost as much as the request. The bound is for connections that take any number (acks=0):
        # nothing reaches a socket before the step has ended.
        for _ in range(_MOST_PASSES):
            delay_ms = self._send_ready(now_ms)
            # A batch that could not be sent is in doubt. None may go behind it before its end.
            if delay_ms or self._requests.unsent:
                break
        return delay_ms

    def _send_ready(self, now_ms: int) -> int:
        """Send a request to each ready broker. Return 0 if there is more to send at once."""
        result = check_ready(self._accumulator, self._metadata, self._drained, now_ms)
        for topic in result.unknown_leader_topics:
            # The topic may have expired as idle while its records waited (as in Java).
            self._metadata.add_topic(topic, now_ms)
        if result.unknown_leader_topics:
            self._metadata.request_update()
        delay_ms = result.next_check_delay_ms
        self._accumulator.busy_nodes.clear()
        for node_id, queues in result.ready_nodes.items():
            delay_ms = min(delay_ms, self._send_to_node(node_id, queues, now_ms))
        return delay_ms

    def connect_ahead(self, now_ms: int) -> None:
        """Begin to connect to the brokers of batches that a coordinator request keeps waiting.

        (Java connects when the data may go, so that a first transaction waits for both in turn.)
        """
        nodes = self._metadata.nodes
        # First, since a producer may have thousands of partitions with data, and each step asks.
        if all(self._client.is_connected(data_connection(node_id)) for node_id in nodes):
            return
        leaders = {self._metadata.leader_of(place)[0] for place in self._accumulator.active}
        for node_id in sorted(leaders & nodes.keys()):
            self._client.is_ready(data_connection(node_id), now_ms)

    def _send_to_node(self, node_id: int, queues: Sequence[PartitionQueue], now_ms: int) -> int:
        connection = data_connection(node_id)
        if not self._client.is_ready(connection, now_ms):
            return self._wait_for(connection, now_ms)
        self._accumulator.update_node_latency(node_id, now_ms, can_drain=True)
        drained = drain(self._accumulator, queues, self._drained, self._options.max_request_size)
        for batch, reason in drained.unfinished:
            self._fail_unfinished(batch, reason, now_ms)
        # Noted before they are sent: from here on they are in no queue, and must still expire.
        for batch in drained.batches:
            self._in_flight.setdefault(batch.topic_partition, []).append(batch)
            if self._options.is_order_guaranteed_by_muting:
                self._accumulator.mute_partition(batch.topic_partition)
        if drained.batches:
            self._send_produce_request(connection, drained.batches, now_ms)
        if not drained.has_more:
            return NEVER_MS
        # Both are asked here, since a pass that finds them out looks at all partitions first.
        if not self._client.is_ready(connection, now_ms):
            return self._wait_for(connection, now_ms)
        return lingering_ms(self._accumulator, queues, self._drained, now_ms)

    def _wait_for(self, connection: ConnectionId, now_ms: int) -> int:
        """Note that a broker takes no more. Return when to look again without an event."""
        self._accumulator.update_node_latency(connection.node_id, now_ms, can_drain=False)
        # Only a broker that owes an answer wakes the sender by one. One that is being connected to
        # does not.
        if self._client.in_flight_count(connection):
            self._accumulator.busy_nodes.add(connection.node_id)
        return max(1, self._client.ready_delay_ms(connection, now_ms))

    def _fail_unfinished(self, batch: ProducerBatch, reason: Exception, now_ms: int) -> None:
        topic, partition = batch.topic_partition
        error = KafkaError(
            f"the bytes of {batch.record_count} record(s) for {topic}-{partition} could not be "
            f"made: {reason!r}; {known_fate(batch)}"
        )
        error.__cause__ = reason
        _LOG.error("%s", error, exc_info=reason)
        self.fail_batch(batch, error, _same_error(error), is_refusal_certain=False, now_ms=now_ms)

    def _send_produce_request(
        self, connection: ConnectionId, batches: Sequence[ProducerBatch], now_ms: int
    ) -> None:
        transactions = self._transactions
        is_transactional = transactions is not None and transactions.is_transactional
        request = ProduceRequest(
            transactions.transactional_id if transactions is not None else None,
            self._options.acks,
            self._options.request_timeout_ms,
            self._produce_partitions(batches),
            # Only transactions v1 cap the version of Produce; see `is_transaction_v2_enabled`.
            not is_transactional
            or (transactions is not None and transactions.identity.is_transaction_v2_enabled),
        )
        # Before the request is sent, so that an exception leaves no batch on the wire as unsent.
        for batch in batches:
            batch.sent(now_ms)
        self._sent.sent(batches, now_ms)
        self._requests.send(connection, request, partial(self._on_produce_end, batches), now_ms)
        self.requests_in_flight += 1

    def _produce_partitions(
        self, batches: Sequence[ProducerBatch]
    ) -> tuple[ProducePartition, ...]:
        topics = self._metadata.topics
        partitions: list[ProducePartition] = []
        for batch in batches:
            place = batch.topic_partition
            snapshot = topics.get(place.topic)
            # For topics with an id, Produce v13 names the topic by it (KIP-516).
            topic_id = None if snapshot is None else snapshot.topic_id
            partitions.append(ProducePartition(place, batch.builder.build(), topic_id))
        return tuple(partitions)

    # --- the end of a request -------------------------------------------------------------------

    def _on_produce_end(
        self, batches: Sequence[ProducerBatch], response: ClientResponse, now_ms: int
    ) -> None:
        self.requests_in_flight -= 1
        try:
            self._settle_batches(batches, response, now_ms)
        finally:
            if self._gate is not None and self._gate.is_going:
                _note_end(self._gate, response, now_ms)

    def _settle_batches(
        self, batches: Sequence[ProducerBatch], response: ClientResponse, now_ms: int
    ) -> None:
        if response.failure is not None:
            if self._transactions is not None and response.failure.was_sent:
                # A copy may still be on its way, and arrive in a later transaction.
                self._transactions.progress.request_lost(may_begin_transaction=False)
                for batch in batches:
                    batch.attempt_lost()
            reason = str(response.error) if response.error is not None else None
            self._complete_all(batches, _CODE_OF_FAILURE[response.failure], reason, now_ms)
            return
        body = response.body
        # With acks=0 the broker sends no answer: that the request went out is all that is known.
        if self._options.acks == 0 and not (isinstance(body, ProduceResponse) and body.partitions):
            self._complete_all(batches, ErrorCode.NONE, None, now_ms)
            return
        if not isinstance(body, ProduceResponse):
            # The broker may have written the records or not. But it has answered the request,
            # which therefore cannot arrive late, as a lost one can.
            reason = f"not the answer to Produce: {body!r}"
            self._complete_all(batches, ErrorCode.NETWORK_EXCEPTION, reason, now_ms)
            return
        latency_ms = now_ms - response.request.created_ms
        self._sent.answered(latency_ms, body.throttle_time_ms, now_ms)
        self._handle_produce_response(batches, body, response.request.connection.node_id, now_ms)

    def _handle_produce_response(
        self, batches: Sequence[ProducerBatch], body: ProduceResponse, node_id: int, now_ms: int
    ) -> None:
        unanswered = {batch.topic_partition: batch for batch in batches}
        new_leaders: dict[TopicPartition, LeaderIdAndEpoch] = {}
        for partition in body.partitions:
            batch = unanswered.pop(partition.topic_partition, None)
            if batch is None:
                _LOG.error(
                    "the broker answered for %s, which was not in the request",
                    partition.topic_partition,
                )
                continue
            outcome = self._complete_safely(batch, partition, now_ms)
            if outcome is None:
                continue
            if outcome.action is BatchAction.RETRY:
                batch.refused(node_id, partition.error_code, now_ms)
            if outcome.new_leader is not None:
                new_leaders[partition.topic_partition] = outcome.new_leader
        # A partition without an answer is in doubt, as after a lost connection: it may be written.
        if unanswered:
            reason = "the broker's answer left the partition out"
            self._complete_all(
                list(unanswered.values()), ErrorCode.NETWORK_EXCEPTION, reason, now_ms
            )
        if new_leaders:
            self._take_new_leaders(new_leaders, body.nodes)

    def _take_new_leaders(
        self, leaders: dict[TopicPartition, LeaderIdAndEpoch], nodes: Sequence[BrokerNode]
    ) -> None:
        if self._metadata.update_leaders(leaders, nodes):
            self._client.update_nodes(nodes)

    def _complete_all(
        self, batches: Iterable[ProducerBatch], code: int, message: str | None, now_ms: int
    ) -> None:
        for batch in batches:
            response = ProducePartitionResponse(batch.topic_partition, code, error_message=message)
            self._complete_safely(batch, response, now_ms)

    def _complete_safely(
        self, batch: ProducerBatch, response: ProducePartitionResponse, now_ms: int
    ) -> ProduceOutcome | None:
        try:
            return self._handle_partition(batch, response, now_ms)
        except Exception:  # noqa: BLE001 - one partition must not strand the others
            # An illegal state, which has poisoned the manager, or a bug. If the batch has not
            # ended, it ends by its delivery time-out.
            _LOG.exception("could not handle the answer for %s", batch)
            return None
        finally:
            if self._options.is_order_guaranteed_by_muting:
                self._accumulator.unmute_partition(batch.topic_partition)

    def fail_batches_that_cannot_be_renumbered(
        self, partitions: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """Fail the waiting batches of partitions that may be written, or were overtaken.

        Called before an idempotent producer's batches get new numbers. The broker recognizes a
        batch by its number alone, and would write a renumbered one a second time. It would write
        an overtaken one after records that were sent later. (Java lets it do either.)
        """
        for place in partitions:
            for batch in self._in_flight.get(place, ()):
                # Noted now: a bump that comes later clears the numbers that show it.
                if self._is_overtaken(batch):
                    batch.overtaken()
            for batch in self._accumulator.take_out(place, self._must_keep_its_number):
                error = OutOfOrderSequenceError(
                    f"{batch.record_count} record(s) for {place.topic}-{place.partition}: the"
                    " broker has lost track of this producer's sequence, and "
                    + ("may have them or not" if batch.may_be_written else "has later ones")
                )
                self.fail_batch(
                    batch, error, _same_error(error), is_refusal_certain=False, now_ms=now_ms
                )

    def _fail_batches_renumbered_with(self, written: ProducerBatch, now_ms: int) -> None:
        """Fail the batches that were renumbered with one that is written under its old number.

        That number belongs to one of them now: the broker would take it for a duplicate, and
        answer with the other's offset. Their transaction has to be aborted anyway, since an
        earlier batch failed. (Java sends them.)
        """
        transactions = self._transactions
        if transactions is None or not written.is_transactional:
            return
        if identity_of(written) != transactions.identity.producer_id_and_epoch:
            return
        place = written.topic_partition
        for batch in self._in_flight.get(place, ()):
            if batch.is_reset:
                batch.overtaken()
        first = written.base_sequence
        for batch in self._accumulator.take_out(
            place, lambda b: b.has_sequence and is_sequence_after(b.base_sequence, first)
        ):
            error = OutOfOrderSequenceError(
                f"{batch.record_count} record(s) for {place.topic}-{place.partition}: an earlier"
                " batch failed, and this one's new sequence number is taken"
            )
            self.fail_batch(
                batch, error, _same_error(error), is_refusal_certain=False, now_ms=now_ms
            )

    def _fail_batches_of_reset_partition(self, place: TopicPartition, now_ms: int) -> None:
        """Fail the waiting batches of a partition whose numbers were reset (before Kafka 2.5).

        The partition begins at 0 again, and one of these may have that number: the broker would
        write it, and take the next transaction's first batch for a duplicate. (Java sends them.)
        """
        transactions = self._transactions
        if transactions is None or not transactions.is_transactional:
            return
        sequences = transactions.sequences
        for batch in self._accumulator.take_out(
            place, lambda b: b.has_sequence and not sequences.is_in_flight(b)
        ):
            error = OutOfOrderSequenceError(
                f"{batch.record_count} record(s) for {place.topic}-{place.partition}: the broker"
                " does not know this producer any more, and their sequence numbers are void"
            )
            self.fail_batch(
                batch, error, _same_error(error), is_refusal_certain=False, now_ms=now_ms
            )

    def _must_keep_its_number(self, batch: ProducerBatch) -> bool:
        return batch.may_be_written or self._is_overtaken(batch)

    def _is_overtaken(self, batch: ProducerBatch) -> bool:
        return self._transactions is not None and self._transactions.sequences.is_overtaken(batch)

    # --- the end of a batch ---------------------------------------------------------------------

    def _handle_partition(
        self, batch: ProducerBatch, response: ProducePartitionResponse, now_ms: int
    ) -> ProduceOutcome | None:
        """Settle a batch. Return the judgement on a refusal, or None after a success."""
        batch.attempt_ended()
        if not response.error_code:
            self._complete_batch(batch, response, now_ms)
            return None
        # Settled before the judgement, which asks whether the batch may be written.
        if response.error_code in _MAYBE_WRITTEN:
            batch.attempt_in_doubt()
        elif response.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch.attempt_out_of_order()
        outcome = judge(
            response,
            can_split=self._can_split(batch),
            is_done=batch.is_done,
            has_attempts_left=batch.attempts < self._options.retries,
            can_retry=lambda error: self._can_retry(batch, response, error, now_ms),
        )
        error = outcome.error
        _LOG.debug("%s: %s, so %s", batch, error, outcome.action.name)
        if outcome.action is BatchAction.COMPLETE:
            self._complete_batch(batch, response, now_ms)
        elif outcome.action is BatchAction.RETRY:
            self._reenqueue_batch(batch, error, now_ms)
        elif outcome.action is BatchAction.SPLIT:
            self._split_batch(batch, error, now_ms)
        else:
            if batch.record_count == 1:
                error = only_record_error(response, error, batch.estimated_size_bytes)
            errors = record_errors(response, error)
            # An earlier attempt may have been written. If its numbers were used again, the broker
            # would take later records for duplicates, and not write them.
            is_certain = outcome.is_refusal_certain and not batch.may_be_written
            is_certain = is_certain and self._may_give_numbers_away(batch)
            self.fail_batch(batch, error, errors, is_refusal_certain=is_certain, now_ms=now_ms)
        if outcome.needs_metadata:
            self._metadata.request_update()
        return outcome

    def _may_give_numbers_away(self, batch: ProducerBatch) -> bool:
        transactions = self._transactions
        return transactions is None or transactions.sequences.may_give_numbers_away(batch)

    def _can_retry(
        self,
        batch: ProducerBatch,
        response: ProducePartitionResponse,
        error: KafkaError,
        now_ms: int,
    ) -> bool:
        # Past the deadline a retry would expire at once, and hide the broker's reason.
        if batch.has_reached_delivery_timeout(self._options.delivery_timeout_ms, now_ms):
            return False
        if self._transactions is None:
            return isinstance(error, RetriableError)
        if _has_lost_its_number(batch):
            return False
        return self._transactions.sequences.can_retry(response, error, batch)

    def _can_split(self, batch: ProducerBatch) -> bool:
        """Return whether a batch can be split, and its numbers are still its own."""
        # A single record's batch cannot shrink. The records of an ended one have their errors
        # already.
        if batch.record_count == 1 or batch.is_done or _has_lost_its_number(batch):
            return False
        # An earlier batch's failure may have reset the partition's numbers. Then this one fails,
        # too.
        return self._transactions is None or self._transactions.sequences.is_in_flight(batch)

    def _complete_batch(
        self, batch: ProducerBatch, response: ProducePartitionResponse, now_ms: int
    ) -> None:
        # The numbers first: the end of the batch may let a commit go on.
        if self._transactions is not None:
            self._transactions.progress.handle_completed_batch(batch, response)
        is_mine = batch.complete(response.base_offset, response.log_append_time_ms)
        self._let_go(batch, is_mine)
        if batch.is_reset:
            self._fail_batches_renumbered_with(batch, now_ms)

    def _let_go(self, batch: ProducerBatch, is_mine: bool) -> None:
        """Free a batch's memory, and its place if its records end now (`is_mine`)."""
        # A batch that expired on the wire keeps its memory until its answer comes.
        if not batch.is_in_flight:
            self._accumulator.deallocate(batch)
        if is_mine:
            self._remove_from_in_flight(batch)
            self._accumulator.complete_batch(batch)

    def fail_batch(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        errors: RecordErrors,
        *,
        is_refusal_certain: bool,
        now_ms: int,
    ) -> None:
        """End a batch with errors and settle its sequence.

        Args:
            batch: the batch.
            error: of the batch as a whole: the transaction's error.
            errors: of each record, by its index.
            is_refusal_certain: whether the broker certainly does not have it, so that its numbers
                may be used again.
            now_ms: the time.
        """
        is_mine = batch.complete_exceptionally(errors)
        if is_mine:
            self._metrics.count("record-error", batch.record_count, now_ms)
            try:
                self._settle_failed_sequence(batch, error, is_refusal_certain)
            except KafkaError:
                # An illegal transition has poisoned the manager, but the batch must still end.
                _LOG.debug("the failure of %s met an illegal state", batch, exc_info=True)
        self._let_go(batch, is_mine)
        if is_mine and batch.is_reset and (batch.may_be_written or batch.is_in_flight):
            self._fail_batches_renumbered_with(batch, now_ms)
        if isinstance(error, UnknownProducerIdError):
            self._fail_batches_of_reset_partition(batch.topic_partition, now_ms)

    def _settle_failed_sequence(
        self, batch: ProducerBatch, error: KafkaError, is_refusal_certain: bool
    ) -> None:
        transactions = self._transactions
        if transactions is None:
            return
        transactions.progress.handle_failed_batch(batch, error, is_refusal_certain)
        # After it: a reset of the partition's numbers would clear the mark again.
        if batch.has_sequence and not is_refusal_certain:
            transactions.sequences.mark_sequence_unresolved(batch)

    def _reenqueue_batch(self, batch: ProducerBatch, error: KafkaError, now_ms: int) -> None:
        batch.attempt_failed(error)
        self._accumulator.reenqueue(batch, now_ms)
        self._remove_from_in_flight(batch)
        self._metrics.count("record-retry", batch.record_count, now_ms)

    def _split_batch(self, batch: ProducerBatch, error: KafkaError, now_ms: int) -> None:
        batch.attempt_failed(error)
        sequences = None if self._transactions is None else self._transactions.sequences
        # The parts take over the batch's numbers, so it may not hold them any more.
        if sequences is not None:
            sequences.remove_in_flight_batch(batch)
        for part in self._accumulator.split_and_reenqueue(batch):
            if sequences is not None and part.has_sequence:
                sequences.add_in_flight_batch(part)
        self._remove_from_in_flight(batch)
        self._accumulator.forget_split_batch(batch)
        self._metrics.count("batch-split", 1, now_ms)

    def _remove_from_in_flight(self, batch: ProducerBatch) -> None:
        batches = self._in_flight.get(batch.topic_partition)
        if batches is not None and batch in batches:
            batches.remove(batch)
            if not batches:
                del self._in_flight[batch.topic_partition]

    def abort_all(self, error: KafkaError) -> None:
        """Abort every batch, waiting or on the wire. Later answers only free memory."""
        if self._accumulator.has_incomplete:
            self._accumulator.abort_batches(error)
            self._in_flight.clear()


def _note_end(gate: MarkerGate, response: ClientResponse, now_ms: int) -> None:
    body = response.body
    is_refused = not isinstance(body, ProduceResponse) or any(
        partition.error_code for partition in body.partitions
    )
    gate.note_end(response.request.created_ms, now_ms, is_refused=is_refused)


def _has_lost_its_number(batch: ProducerBatch) -> bool:
    """Return whether a batch was renumbered on the wire and may not be sent under the new number.

    The reasons are those of `ProduceSender.fail_batches_that_cannot_be_renumbered`.
    """
    return batch.is_reset and (batch.may_be_written or batch.is_overtaken)


def _same_error(error: KafkaError) -> RecordErrors:
    """Return a function that gives each record the same error."""
    return lambda _: error
