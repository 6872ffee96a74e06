"""Rules for one producer's requests on the wire, independent of their purpose.

Why it exists: brokers repair much by refusing it. A producer with wrong sequences is slow, or
fails transactions without need, but loses no record. So the checkers of the logs cannot notice it.
Owns: the batches sent by one producer, by their sequences, and the last answer to each. Must not
know: the core, the calls of the application and their results.

Rules of one partition under one identity (producer id and epoch):
* "numbers": the first batch has sequence 0. Any later batch follows one that was sent before and
  was not refused for good at once, so that there is no gap. A sequence that the broker has, or may
  have, belongs to that batch alone. Nothing new is sent after a batch with an unknown outcome.
  (Batches that were in flight when another one was refused for good may be renumbered, and are
  exempt.)
* "again": a batch is not sent forever while the broker answers that it is out of order. This can
  happen a few times while earlier batches are sent again. No batch is sent more often than
  `retries` allows, nor again before `retry_backoff_ms`, unless the leader has changed. A fenced
  producer stops asking coordinators.
* "identity": a transactional producer with an identity asks for another one with it (KIP-360).
  Otherwise it would fence a newer producer with its id. After the upgrade to v2, no epoch of
  transactions v1 is used any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TxnOffsetCommitRequest,
)
from txnproducer._record import BatchHeader, read_batches, read_header
from txnproducer._record.format import BATCH_OVERHEAD_BYTES
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    DuplicateSequenceError,
    ErrorCode,
    RetriableError,
    error_for_code,
)
from txnproducer.records import ConsumerGroupMetadata, ProducerIdAndEpoch, TopicPartition
from txnproducer.sim.world.world import World

_MOST_REFUSALS = 5  # a batch can be out of order while earlier ones are sent again
_SEQUENCES = 1 << 31
# The shortest wait between attempts, as a share of the backoff (KIP-580).
_LEAST_JITTER = 0.8
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_NOT_REFUSED = (DuplicateSequenceError, RetriableError)
_MAYBE_WRITTEN = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NETWORK_EXCEPTION,
)
# Errors of a coordinator that may have written the end of a transaction nevertheless.
_MAYBE_ENDED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
# Errors after which the leader, or the previous one, may have written the batch.
_DOUBTFUL = (
    *_MAYBE_WRITTEN,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
# The broker would have found a duplicate, and writes no part of a batch that is too large.
_NOT_WRITTEN = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.MESSAGE_TOO_LARGE)


class _Numbers:
    """The batches sent to one partition under one identity.

    Attributes:
        ends: the sequence after each batch, by the batch's first sequence.
        attempts: how often each batch was sent.
        refused: batches that were refused for good at their first attempt.
        disorders: how often each batch (by its checksum) was answered as out of order.
        kept: the checksums of batches that the broker has, or may have.
        broken_at: the first batch that was refused for good, until its sequence is sent again.
        written: the highest sequence that the broker has. It has all lower ones, too.
        adrift: batches above it without an answer to their last attempt.
        reach: sequences below it were sent, perhaps in a larger batch that was split later.
        parted: sequences below it were sent in a batch that was found too large.
    """

    __slots__ = (
        "adrift",
        "attempts",
        "broken_at",
        "disorders",
        "ends",
        "kept",
        "parted",
        "reach",
        "refused",
        "written",
    )

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self.refused: set[int] = set()
        self.disorders: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.broken_at: int | None = None
        self.written = -1
        self.adrift: set[int] = set()
        self.reach = 0
        self.parted = 0


def _values(records: bytes | bytearray | memoryview) -> set[bytes | None]:
    return {record.value for batch in read_batches(records) for record in batch}


class WireRules:
    """The rules for one producer.

    Args:
        name: the name of the process, for reports.
        world: has the clock, the leaders, and the history, which takes violations.
        config: the settings of the producer.

    Attributes:
        member: the member of its group as which it sends offsets.
        commits_in_doubt: how many commits were sent without a definite answer.
        claims_asked: how often it has asked for a claim.
    """

    def __init__(self, name: str, world: World, config: ProducerConfig) -> None:
        self._name = name
        self._world = world
        self._history = world.history
        self._most_attempts = 1 + config.retries
        self._least_wait_ms = int(_LEAST_JITTER * config.retry_backoff_ms)
        self._split: set[TopicPartition] = set()
        self._attempts: dict[bytes, int] = {}
        self._refused_ms: dict[bytes, int] = {}
        self._fenced, self._fenced_under = 0, -1
        self.commits_in_doubt = self.claims_asked = 0
        self._begun_at: set[int] = set()
        self._is_known = self._is_unproven = False
        self._own_id = config.transactional_id
        self._identity = ProducerIdAndEpoch.NONE
        self.member = ConsumerGroupMetadata("")
        # The identities under which it has written transactions v1.
        self._of_v1: set[ProducerIdAndEpoch] = set()
        self._numbers: dict[tuple[TopicPartition, int, int], _Numbers] = {}
        # Unacknowledged batches, by their records. `_open` has all of them, `_shifted` has those
        # that were in flight when another batch of their partition was refused for good.
        self._shifted: dict[TopicPartition, dict[bytes, bytes]] = defaultdict(dict)
        self._open: dict[TopicPartition, dict[bytes, bytes]] = defaultdict(dict)

    def take_over(self, producer: ProducerIdAndEpoch) -> None:
        """Set the identity of another process, under which this producer continues."""
        self._identity = producer

    def sent(self, body: Request) -> None:
        """Check a request that is being sent."""
        self._check_version(body)
        if isinstance(body, TxnOffsetCommitRequest):
            self._check_member(body)
        elif isinstance(body, InitProducerIdRequest):
            self._check_identity(body)
        elif isinstance(body, EndTxnRequest):
            self.commits_in_doubt += body.is_commit
        if not isinstance(body, ProduceRequest):
            return
        for part in body.partitions:
            header = read_header(part.records)
            if header.producer_id < 0 or self._is_of_a_new_topic(part):
                continue
            key = (part.topic_partition, header.producer_id, header.producer_epoch)
            numbers = self._numbers.get(key)
            if numbers is None:
                numbers = self._numbers[key] = _Numbers()
            base = header.base_sequence
            is_renumbered = self._is_renumbered(part, numbers)
            if (
                base not in numbers.ends
                and not is_renumbered
                and not self._may_begin_at(numbers, base)
            ):
                self._history.violate(
                    "numbers",
                    f"{self._name}: {base} in {part.topic_partition} under"
                    f" {header.producer_id}/{header.producer_epoch}; sent: {numbers.ends},"
                    f" refused: {sorted(numbers.refused)}",
                )
            self._check_doubts(numbers, part, header, is_renumbered=is_renumbered)
            numbers.ends[base] = (base + header.record_count) % _SEQUENCES
            numbers.reach = max(numbers.reach, base + header.record_count)
            numbers.attempts[base] = numbers.attempts.get(base, 0) + 1
            numbers.refused.discard(base)  # sent again after all: the next may follow it
            batch = bytes(part.records)
            records = batch[BATCH_OVERHEAD_BYTES:]  # the same if it is renumbered
            self._open[part.topic_partition][records] = batch
            self._check_patience(part.topic_partition, records)

    def _check_version(self, body: Request) -> None:
        """Check that transactions v2 do not begin under an epoch of v1."""
        if not isinstance(body, EndTxnRequest):
            return
        identity = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        if not body.is_transaction_v2_enabled:
            self._of_v1.add(identity)
        elif identity in self._of_v1:  # a late request of v1 could end it
            self._history.violate("identity", f"{self._name}: v2 under {identity}, which is v1's")

    def _is_of_a_new_topic(self, part: ProducePartition) -> bool:
        """Return whether a batch's topic was recreated. Sequences may begin at 0 or continue."""
        return self._world.cluster.topology.generations[part.topic_partition.topic] > 0

    def _check_patience(self, place: TopicPartition, records: bytes) -> None:
        """Check how often a batch was sent, and how soon after its refusal."""
        attempts = self._attempts[records] = self._attempts.get(records, 0) + 1
        if attempts > self._most_attempts:
            self._history.violate("again", f"{self._name}: a batch of {place}, {attempts} times")
        refused_ms = self._refused_ms.get(records)
        if refused_ms is None or self._world.cluster.leader_epochs.get(place):
            return  # the producer may try a new leader at once
        waited_ms = self._world.now_ms - refused_ms
        if waited_ms < self._least_wait_ms:
            self._history.violate(
                "again", f"{self._name}: a batch of {place} after {waited_ms} ms"
            )

    def _note_refusal(self, part: ProducePartition, code: int) -> None:
        records = bytes(part.records[BATCH_OVERHEAD_BYTES:])
        if code == ErrorCode.MESSAGE_TOO_LARGE:
            self._split.add(part.topic_partition)
            self._attempts.pop(records, None)  # a single part may have the same records
        else:
            self._refused_ms[records] = self._world.now_ms
        values = _values(part.records)
        names = {bytes(value or b"").partition(b":")[0].decode() for value in values}
        if code in _DOUBTFUL:
            self._history.doubtful |= names
            self._history.doubtful_at |= {(name, part.topic_partition) for name in names}
        elif code == ErrorCode.UNKNOWN_PRODUCER_ID:
            self._history.forgotten_at |= {(name, part.topic_partition) for name in names}

    def _shift(self, part: ProducePartition, code: int) -> None:
        """Note the batches that may be renumbered after this one was refused for good."""
        place = part.topic_partition
        if code == ErrorCode.NONE:
            records = bytes(part.records[BATCH_OVERHEAD_BYTES:])
            self._open[place].pop(records, None)
            self._shifted[place].pop(records, None)
        elif not isinstance(error_for_code(code), _NOT_REFUSED):
            self._shifted[place] |= self._open[place]  # those after it take its numbers

    def _is_renumbered(self, part: ProducePartition, numbers: _Numbers) -> bool:
        """Return whether a batch is sent again and may have another sequence than before.

        Batches after one that was refused for good are renumbered. They keep their new sequences
        even if some of them fail or expire before they are sent again. Only a broker can tell
        whether the others fit, and sending them does no harm.
        """
        base = read_header(part.records).base_sequence
        if base <= numbers.written:  # the broker has a batch of this number
            return False
        has_parts = part.topic_partition in self._split
        if base > max(numbers.reach, *numbers.ends.values(), 0) and not has_parts:
            return False  # (Some parts may have expired before they were sent.)
        return bytes(part.records[BATCH_OVERHEAD_BYTES:]) in self._shifted[part.topic_partition]

    def _is_part_of_renumbered(self, part: ProducePartition) -> bool:
        """Return whether a batch is a part of one that may have been renumbered."""
        values = _values(part.records)
        shifted = self._shifted[part.topic_partition].values()
        return any(values <= _values(batch) for batch in shifted)

    def _check_doubts(
        self,
        numbers: _Numbers,
        part: ProducePartition,
        header: BatchHeader,
        *,
        is_renumbered: bool,
    ) -> None:
        """Check that a sequence is free and that no earlier batch has an unknown outcome."""
        place, base = part.topic_partition, header.base_sequence
        if numbers.kept.get(base, header.crc) != header.crc:
            self._history.violate(
                "numbers",
                f"{self._name}: {base} in {place} is another batch's, which may be written",
            )
        numbers.adrift.discard(base)
        if base == numbers.broken_at:
            numbers.broken_at = None
        # Only earlier ones: a later batch without an answer cannot come before this one.
        before = sorted(number for number in numbers.adrift if number < base)
        is_part = base < numbers.parted
        is_known = base in numbers.ends or base < numbers.reach
        is_new = not (is_known or is_part or is_renumbered)
        if before and is_new and not self._is_part_of_renumbered(part):
            self._history.violate(
                "numbers",
                f"{self._name}: {base} in {place} behind {before}, whose fate is not known",
            )

    def lost(self, request: Request) -> None:
        """Record a request that ended without an answer."""
        if isinstance(request, InitProducerIdRequest):
            self._history.inits_in_doubt[_present_identity(request)] += 1
        elif isinstance(request, AddPartitionsToTxnRequest | AddOffsetsToTxnRequest):
            self._history.openings_in_doubt.add(_present_identity(request))
        elif isinstance(request, EndTxnRequest):
            self._fenced = 0  # the broker may have been away
        for part in request.partitions if isinstance(request, ProduceRequest) else ():
            self._note_refusal(part, ErrorCode.NETWORK_EXCEPTION)
        for numbers, header in self._batches(request, None):
            self._lost(numbers, header)

    def _batches(
        self, request: Request, places: Collection[TopicPartition] | None
    ) -> Iterator[tuple[_Numbers, BatchHeader]]:
        if not isinstance(request, ProduceRequest):
            return
        for part in request.partitions:
            if self._is_of_a_new_topic(part):
                continue
            header = read_header(part.records)
            key = (part.topic_partition, header.producer_id, header.producer_epoch)
            if key in self._numbers and (places is None or part.topic_partition in places):
                yield self._numbers[key], header

    @staticmethod
    def _lost(numbers: _Numbers, header: BatchHeader) -> None:
        base = header.base_sequence
        if numbers.broken_at is not None and base > numbers.broken_at:
            return  # it was sent after one that the broker does not have
        numbers.kept[base] = header.crc
        if base > numbers.written:  # a copy of a lower one changes nothing
            numbers.adrift.add(base)

    def _check_member(self, body: TxnOffsetCommitRequest) -> None:
        told, member = (body.group_id, body.generation_id, body.member_id), self.member
        if told != (member.group_id, member.generation_id, member.member_id):
            self._history.violate("offsets", f"{self._name}: sent as {told}, not as {member}")

    def _check_identity(self, body: InitProducerIdRequest) -> None:
        told = _present_identity(body)
        # A participant also asks under the ids of its claims, which have identities of their own.
        is_own = body.transactional_id is not None and body.transactional_id == self._own_id
        self.claims_asked += not is_own
        if is_own and told != self._identity:
            self._history.violate(
                "identity", f"{self._name}: initializes as {told}, being {self._identity}"
            )

    @staticmethod
    def _may_begin_at(numbers: _Numbers, base: int) -> bool:
        if not numbers.ends:
            return base == 0
        return any(
            end == base and start not in numbers.refused for start, end in numbers.ends.items()
        )

    def answered(self, request: Request, response: Response, node_id: int) -> None:
        """Check the answer to a request."""
        self._note_coordinator(response, node_id)
        if isinstance(response, InitProducerIdResponse | EndTxnResponse):
            self._identified(request, response)
        if getattr(response, "error_code", ErrorCode.NONE) in _FENCED:
            if isinstance(request, EndTxnRequest):
                self._begin_to_count(request)
            self._fenced += 1
            if self._fenced == _MOST_REFUSALS:
                self._history.violate("again", f"{self._name}, fenced, asked {self._fenced} times")
        if not isinstance(request, ProduceRequest) or not isinstance(response, ProduceResponse):
            return
        codes = {part.topic_partition: part.error_code for part in response.partitions}
        self._history.told[self].extend(
            (part.topic_partition, part.base_offset)
            for part in response.partitions
            if part.error_code == ErrorCode.NONE
        )
        for part in request.partitions:
            # An answer without this partition leaves it as open as no answer.
            code = codes.get(part.topic_partition, ErrorCode.NETWORK_EXCEPTION)
            self._shift(part, code)
            if code != ErrorCode.NONE:
                self._note_refusal(part, code)
            for numbers, header in self._batches(request, (part.topic_partition,)):
                if code == ErrorCode.NONE:
                    self._written(numbers, header)
                else:
                    self._refused(numbers, part.topic_partition, header, code)

    def _note_coordinator(self, response: Response, node_id: int) -> None:
        """Note which brokers have accepted a part of the transaction, as its coordinator (v1)."""
        if isinstance(response, AddPartitionsToTxnResponse):
            codes = {result.error_code for result in response.results}
        elif isinstance(response, AddOffsetsToTxnResponse):
            codes = {response.error_code}
        elif isinstance(response, InitProducerIdResponse | EndTxnResponse):
            self._is_known = node_id in self._begun_at
            is_end = self._is_known or isinstance(response, InitProducerIdResponse)
            if is_end and not response.error_code:
                self._begun_at.clear()
            if response.error_code == ErrorCode.NOT_COORDINATOR:
                self._fenced = 0  # two brokers may be named as the coordinator in turn
            return
        else:
            return
        if codes == {ErrorCode.NONE}:
            self._begun_at.add(node_id)

    def _begin_to_count(self, request: EndTxnRequest) -> None:
        """Begin again after a move: each coordinator may be asked twice about the end."""
        coordinator = self._world.cluster.transaction_coordinator(request.transactional_id)
        if coordinator.epoch != self._fenced_under:
            self._fenced_under, self._fenced = coordinator.epoch, 0

    def _identified(
        self, request: Request, response: InitProducerIdResponse | EndTxnResponse
    ) -> None:
        if isinstance(request, EndTxnRequest) and request.is_commit:
            # Counted when sent, and taken back only by an answer that leaves no doubt. With v1 a
            # broker that has not answered for this transaction may repeat the end before.
            is_proven = request.is_transaction_v2_enabled or self._is_known
            is_answered = response.error_code not in _MAYBE_ENDED
            self._is_unproven = not (is_proven or response.error_code)
            self.commits_in_doubt -= is_answered and not self._is_unproven
        elif self._is_unproven and isinstance(request, InitProducerIdRequest):
            is_proof = request.producer_id >= 0 and not response.error_code
            self.commits_in_doubt -= is_proof
            self._is_unproven &= not is_proof
        is_claim = getattr(request, "transactional_id", self._own_id) != self._own_id
        if isinstance(request, InitProducerIdRequest) and response.error_code in _MAYBE_ENDED:
            self._history.inits_in_doubt[_present_identity(request)] += 1
        if not response.error_code and response.producer_id >= 0 and not is_claim:
            self._identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    @staticmethod
    def _written(numbers: _Numbers, header: BatchHeader) -> None:
        base = header.base_sequence
        numbers.kept[base] = header.crc
        # A broker accepts no sequence without the one before it.
        numbers.written = max(numbers.written, base)
        numbers.adrift = {number for number in numbers.adrift if number > base}

    def _settle(self, numbers: _Numbers, header: BatchHeader, code: int) -> None:
        """Update the batches that the broker has, or may have, after a refusal."""
        base = header.base_sequence
        if code in _MAYBE_WRITTEN:
            self._lost(numbers, header)
        elif code in _NOT_WRITTEN:
            numbers.kept.pop(base, None)
            if code == ErrorCode.MESSAGE_TOO_LARGE:
                numbers.parted = max(numbers.parted, base + header.record_count)
        elif code == ErrorCode.UNKNOWN_PRODUCER_ID:
            numbers.kept.clear()  # the sequences begin at 0 again
            numbers.adrift.clear()
            numbers.written = -1

    def _refused(
        self, numbers: _Numbers, place: TopicPartition, header: BatchHeader, code: int
    ) -> None:
        base = header.base_sequence
        numbers.adrift.discard(base)
        self._settle(numbers, header, code)
        if not isinstance(error_for_code(code), _NOT_REFUSED):
            # The broker does not have the later batches either.
            numbers.kept = {n: crc for n, crc in numbers.kept.items() if n <= base}
            numbers.adrift = {n for n in numbers.adrift if n < base}
            if numbers.broken_at is None or base < numbers.broken_at:  # nothing fits after a gap
                numbers.broken_at = base
            if code != ErrorCode.MESSAGE_TOO_LARGE:  # its parts use the numbers again
                numbers.reach = min(numbers.reach, base)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Batches are counted, not sequences: the batch after a failed one gets its sequence
            # again.
            count = numbers.disorders[header.crc] = numbers.disorders.get(header.crc, 0) + 1
            if count == _MOST_REFUSALS:
                self._history.violate(
                    "again", f"{self._name}: {base} in {place} was out of order {count} times"
                )
        elif (
            numbers.attempts[base] == 1
            # The part of a split batch may have been written with the whole. If so, the next part,
            # which had its sequence meanwhile, keeps it.
            and base >= numbers.parted
            and not isinstance(error_for_code(code), _NOT_REFUSED)
        ):
            numbers.refused.add(base)


def _present_identity(
    body: InitProducerIdRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest,
) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
