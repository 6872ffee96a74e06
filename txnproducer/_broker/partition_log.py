"""One partition's log: batches, control records, the last stable offset, aborted ranges.

Why it exists: a producer is judged by the records that consumers read at both isolation levels.
Owns: `PartitionLog`, `LogEntry`. Must not know: leaders, requests, coordinators.

Simplifications: the whole cluster has one log for a partition. Replication is not modelled:
appended records are never lost, as with `acks=all` and enough in-sync replicas. Records are never
deleted. The time since a producer's last request decides when it is forgotten, not the timestamps
of its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from txnproducer._broker.append_time import stamped
from txnproducer._broker.producer_state import BatchSeen, ProducerStates
from txnproducer._record import BatchHeader, RecordBatch
from txnproducer.errors import ErrorCode


class LogEntry(NamedTuple):
    """A batch, or a marker (`batch` is None).

    Attributes:
        base_offset: the offset of its first record.
        record_count: the number of its offsets.
        producer_id: the id of its producer, or -1 without one.
        producer_epoch: the epoch of its producer.
        is_transactional: whether read_committed consumers wait for the end of its transaction.
        batch: the records, or None for a marker.
        is_commit: whether a marker commits its transaction.
    """

    base_offset: int
    record_count: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    batch: RecordBatch | None
    is_commit: bool = False


class AbortedRange(NamedTuple):
    """An aborted transaction: the range from its first offset to its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Appended(NamedTuple):
    """The result of appending a batch.

    Attributes:
        error_code: the reason for a refusal.
        base_offset: the offset of its first record, or -1 if it was refused.
        append_time_ms: the time as the answer has it. For a duplicate it is the newest timestamp
            of the batch, whether a client or a broker set it.
    """

    error_code: ErrorCode
    base_offset: int = -1
    append_time_ms: int = -1


class ReadRecord(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None


class PartitionLog:
    """The log of one partition.

    Args:
        is_before_2_5: see `ProducerStates`.
        is_log_append_time: whether the broker's clock sets the timestamps.

    Attributes:
        entries: batches and markers, by offset.
        aborted: the aborted ranges, by the offsets of their markers.
        states: the state of each producer.
        log_start_offset: the offset of the first record. Retention raises it, but the entries stay
            for the judges of a run.
        log_end_offset: the offset of the next record.
    """

    __slots__ = (
        "_is_log_append_time",
        "aborted",
        "entries",
        "log_end_offset",
        "log_start_offset",
        "states",
    )

    def __init__(self, *, is_before_2_5: bool = False, is_log_append_time: bool = False) -> None:
        self._is_log_append_time = is_log_append_time
        self.entries: list[LogEntry] = []
        self.aborted: list[AbortedRange] = []
        self.states = ProducerStates(is_before_2_5=is_before_2_5)
        self.log_start_offset = self.log_end_offset = 0

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction has ended."""
        firsts = [
            state.first_offset
            for state in self.states.producers.values()
            if state.first_offset is not None
        ]
        # Without replication every record is below the high watermark, so only transactions count.
        return min(firsts, default=self.log_end_offset)

    def append(self, batch: RecordBatch, now_ms: int) -> Appended:
        """Append a client's batch unless it is a duplicate."""
        append_time_ms = -1
        if self._is_log_append_time:
            batch, append_time_ms = stamped(batch, now_ms), now_ms
        header = batch.header
        if not header.has_producer_id:
            return Appended(ErrorCode.NONE, self._append(header, batch), append_time_ms)
        states, producer_id, epoch = self.states, header.producer_id, header.producer_epoch
        # Before the checks, as in `UnifiedLog.analyzeAndValidateProducerState`: to them a repeated
        # batch is out of order.
        duplicate = states.find_duplicate(
            producer_id, epoch, header.base_sequence, header.last_sequence
        )
        if duplicate is not None:
            return Appended(ErrorCode.NONE, duplicate.base_offset, duplicate.timestamp_ms)
        code = states.check(producer_id, epoch, header.base_sequence)
        if code:
            return Appended(code)
        # Last, as in `ProducerAppendInfo.appendDataBatch`: for a batch that is also out of order,
        # the error is the one about the order.
        if not header.is_transactional and states.has_open_transaction(producer_id, epoch):
            return Appended(ErrorCode.INVALID_TXN_STATE)
        offset = self._append(header, batch)
        seen = BatchSeen(
            header.base_sequence, header.last_sequence, offset, header.max_timestamp_ms
        )
        opens_at = offset if header.is_transactional else None
        states.append(producer_id, epoch, seen, now_ms, opens_at=opens_at)
        return Appended(ErrorCode.NONE, offset, append_time_ms)

    def _append(self, header: BatchHeader, batch: RecordBatch) -> int:
        offset = self.log_end_offset
        self.entries.append(
            LogEntry(
                offset,
                header.record_count,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                batch,
            )
        )
        # By offsets, as a broker does, and not by records.
        self.log_end_offset += header.last_offset_delta + 1
        return offset

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        now_ms: int,
        *,
        is_commit: bool,
        is_v2: bool,
    ) -> ErrorCode:
        """Append a coordinator's marker."""
        code = self.states.check_marker(producer_id, epoch, coordinator_epoch, is_v2=is_v2)
        if code:
            return code
        offset = self.log_end_offset
        # Written even if no transaction is open here: its epoch fences older batches that come
        # late.
        first = self.states.append_marker(producer_id, epoch, coordinator_epoch, now_ms)
        self.entries.append(LogEntry(offset, 1, producer_id, epoch, True, None, is_commit))
        self.log_end_offset += 1
        # Kafka notes no transaction without records either: its marker changes nothing that a
        # reader sees.
        if first is not None and not is_commit:
            self.aborted.append(AbortedRange(producer_id, first, offset))
        return ErrorCode.NONE

    def visible_entries(self, *, read_committed: bool, from_offset: int = 0) -> Iterator[LogEntry]:
        """Yield the whole batches that a consumer gets at an isolation level."""
        end = self.last_stable_offset if read_committed else self.log_end_offset
        for entry in self.entries[self._index_of(from_offset) :]:
            if entry.base_offset >= end:
                return
            # A marker has an offset, and consumers skip it.
            if entry.batch is None:
                continue
            if read_committed and entry.is_transactional and self._is_aborted(entry):
                continue
            yield entry

    def entries_from(self, offset: int) -> Iterator[LogEntry]:
        """Yield every batch and marker from an offset on."""
        yield from self.entries[self._index_of(offset) :]

    def is_committed(self, entry: LogEntry) -> bool:
        """Return whether a transactional batch is visible to read_committed consumers."""
        return entry.base_offset < self.last_stable_offset and not self._is_aborted(entry)

    def _index_of(self, offset: int) -> int:
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].base_offset + self.entries[middle].record_count <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_aborted(self, entry: LogEntry) -> bool:
        return any(
            aborted.producer_id == entry.producer_id
            # By range and not only by producer: with v1 the same id and epoch may have committed
            # before and after.
            and aborted.first_offset <= entry.base_offset < aborted.marker_offset
            for aborted in self.aborted
        )

    def read(self, *, read_committed: bool, from_offset: int = 0) -> list[ReadRecord]:
        """Return the records that a consumer gets from an offset on."""
        return [
            ReadRecord(entry.base_offset + record.offset_delta, record.key, record.value)
            for entry in self.visible_entries(
                read_committed=read_committed, from_offset=from_offset
            )
            for record in (entry.batch or ())
            # A broker sends whole batches, and the consumer skips the records before its position.
            if entry.base_offset + record.offset_delta >= from_offset
        ]
