"""What one producer's requests must show on the wire, whatever they are about.

Why it exists: brokers mend much by refusing it. A producer that numbers wrongly is then slow, or
fails transactions for nothing, and no record is lost; the checkers of the logs see nothing of it.
Owns: the batches that one connection set sent, by their numbers, and the last answer to each. Must
not know: the core, what was asked of it, what the application was told.

Rules of one partition under one identity (producer id and epoch):
* "numbers": the first batch that is sent has number 0. Any later number is the one behind a batch
  that was sent before and was not refused for good at once: no gap is made.
* "again": a batch is not sent over and over while the broker says that it is out of order. It can
  happen while the batches before it are sent again, a few times. Nor does a producer go on asking
  coordinators that have told it that it is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnproducer._protocol.messages import (
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TxnOffsetCommitRequest,
)
from txnproducer._record import read_header
from txnproducer.errors import (
    DuplicateSequenceError,
    ErrorCode,
    RetriableError,
    error_for_code,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

if TYPE_CHECKING:
    from txnproducer.sim.history import History

_MOST_REFUSALS = 5
_SEQUENCES = 1 << 31
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_NOT_REFUSED = (DuplicateSequenceError, RetriableError)


class _Numbers:
    """The batches sent to one partition under one identity.

    Attributes:
        ends: the number behind each batch, by the batch's own.
        attempts: how often each batch was sent.
        refused: batches that were refused for good at their first attempt.
        disorders: how often each was answered as out of order.
    """

    __slots__ = ("attempts", "disorders", "ends", "refused")

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self.refused: set[int] = set()
        self.disorders: dict[int, int] = {}


class WireRules:
    """The rules, for one producer.

    Args:
        name: of the process, for what is reported.
        history: takes violations.

    Attributes:
        member: of its group, as which it sends offsets.
    """

    def __init__(self, name: str, history: History) -> None:
        self._name = name
        self._history = history
        self._fenced = 0
        self.member = ConsumerGroupMetadata("")
        self._numbers: dict[tuple[TopicPartition, int, int], _Numbers] = {}

    def sent(self, body: Request) -> None:
        """Look at a request that goes on its way."""
        if isinstance(body, TxnOffsetCommitRequest):
            self._check_member(body)
        if not isinstance(body, ProduceRequest):
            return
        for part in body.partitions:
            header = read_header(part.records)
            if header.producer_id < 0:
                continue
            key = (part.topic_partition, header.producer_id, header.producer_epoch)
            numbers = self._numbers.get(key)
            if numbers is None:
                numbers = self._numbers[key] = _Numbers()
            base = header.base_sequence
            if base not in numbers.ends and not self._may_begin_at(numbers, base):
                self._history.violate(
                    "numbers",
                    f"{self._name}: {base} in {part.topic_partition} under"
                    f" {header.producer_id}/{header.producer_epoch}; sent: {numbers.ends},"
                    f" refused: {sorted(numbers.refused)}",
                )
            numbers.ends[base] = (base + header.record_count) % _SEQUENCES
            numbers.attempts[base] = numbers.attempts.get(base, 0) + 1
            numbers.refused.discard(base)

    def _check_member(self, body: TxnOffsetCommitRequest) -> None:
        told, member = (body.group_id, body.generation_id, body.member_id), self.member
        if told != (member.group_id, member.generation_id, member.member_id):
            self._history.violate("offsets", f"{self._name}: sent as {told}, not as {member}")

    @staticmethod
    def _may_begin_at(numbers: _Numbers, base: int) -> bool:
        if not numbers.ends:
            return base == 0
        return base == 0 or any(
            end == base and start not in numbers.refused for start, end in numbers.ends.items()
        )

    def answered(self, request: Request, response: Response) -> None:
        """Look at the answer to a request."""
        if getattr(response, "error_code", ErrorCode.NONE) in _FENCED:
            self._fenced += 1
            if self._fenced == _MOST_REFUSALS:
                self._history.violate(
                    "again", f"{self._name} is fenced, and asked {self._fenced} times"
                )
        if not isinstance(request, ProduceRequest) or not isinstance(response, ProduceResponse):
            return
        codes = {part.topic_partition: part.error_code for part in response.partitions}
        for part in request.partitions:
            code = codes.get(part.topic_partition, ErrorCode.NETWORK_EXCEPTION)
            if code == ErrorCode.NONE:
                continue
            header = read_header(part.records)
            key = (part.topic_partition, header.producer_id, header.producer_epoch)
            numbers = self._numbers.get(key)
            if numbers is not None:
                self._refused(numbers, part.topic_partition, header.base_sequence, code)

    def _refused(self, numbers: _Numbers, place: TopicPartition, base: int, code: int) -> None:
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            count = numbers.disorders[base] = numbers.disorders.get(base, 0) + 1
            if count == _MOST_REFUSALS:
                self._history.violate(
                    "again", f"{self._name}: {base} in {place} was out of order {count} times"
                )
        elif numbers.attempts[base] == 1 and not isinstance(error_for_code(code), _NOT_REFUSED):
            numbers.refused.add(base)
