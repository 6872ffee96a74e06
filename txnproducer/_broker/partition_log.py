"""One partition's log: batches, control records, the last stable offset, aborted ranges.

Why it exists: what consumers read, at both isolation levels, is what a producer is judged by.
Owns: `PartitionLog`, `LogEntry`. Must not know: who leads it, requests, coordinators.

Simplifications: the log is one for the whole cluster (replication is not modelled: what was
appended is never lost, as with `acks=all` and enough replicas in sync); nothing is deleted. A
producer is forgotten by when it was last heard of, not by its records' timestamps.
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
        base_offset: of its first record.
        record_count: how many offsets it takes.
        producer_id: whose; -1 for nobody's.
        producer_epoch: whose.
        is_transactional: whether read_committed consumers wait for its end.
        batch: the records; None for a marker.
        is_commit: what a marker says.
    """

    base_offset: int
    record_count: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    batch: RecordBatch | None
    is_commit: bool = False


class AbortedRange(NamedTuple):
    """A transaction that was aborted: from its first offset to its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Appended(NamedTuple):
    """What became of a batch.

    Attributes:
        error_code: why it was refused.
        base_offset: where it is; -1 if it was refused.
        append_time_ms: as the answer tells it. Of a batch that was there already it is the newest
            timestamp in it, whoever gave that.
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
    """See the module.

    Args:
        is_before_2_5: see `ProducerStates`.
        is_log_append_time: whether the broker's clock gives the timestamps.

    Attributes:
        entries: batches and markers, by offset.
        aborted: the aborted ranges, by their markers' offsets.
        states: what is remembered of producers.
        log_start_offset: the first record's; retention moves it on. The entries stay, for judges.
        log_end_offset: the next record's offset.
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
        """Below this offset every transaction has ended."""
        firsts = [
            state.first_offset
            for state in self.states.producers.values()
            if state.first_offset is not None
        ]
        return min(firsts, default=self.log_end_offset)

    def append(self, batch: RecordBatch, now_ms: int) -> Appended:
        """Append a client's batch, once."""
        append_time_ms = -1
        if self._is_log_append_time:
            batch, append_time_ms = stamped(batch, now_ms), now_ms
        header = batch.header
        if not header.has_producer_id:
            return Appended(ErrorCode.NONE, self._append(header, batch), append_time_ms)
        states, producer_id, epoch = self.states, header.producer_id, header.producer_epoch
        duplicate = states.find_duplicate(
            producer_id, epoch, header.base_sequence, header.last_sequence
        )
        if duplicate is not None:
            return Appended(ErrorCode.NONE, duplicate.base_offset, duplicate.timestamp_ms)
        code = states.check(producer_id, epoch, header.base_sequence)
        if code:
            return Appended(code)
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
        first = self.states.append_marker(producer_id, epoch, coordinator_epoch, now_ms)
        self.entries.append(LogEntry(offset, 1, producer_id, epoch, True, None, is_commit))
        self.log_end_offset += 1
        if first is not None and not is_commit:
            self.aborted.append(AbortedRange(producer_id, first, offset))
        return ErrorCode.NONE

    def visible_entries(self, *, read_committed: bool, from_offset: int = 0) -> Iterator[LogEntry]:
        """Yield the batches that a consumer gets at an isolation level, whole ones."""
        end = self.last_stable_offset if read_committed else self.log_end_offset
        for entry in self.entries[self._index_of(from_offset) :]:
            if entry.base_offset >= end:
                return
            if entry.batch is None:
                continue
            if read_committed and entry.is_transactional and self._is_aborted(entry):
                continue
            yield entry

    def entries_from(self, offset: int) -> Iterator[LogEntry]:
        """Yield every batch and marker from an offset on."""
        yield from self.entries[self._index_of(offset) :]

    def is_committed(self, entry: LogEntry) -> bool:
        """Tell whether a transactional batch is visible to read_committed consumers."""
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
            if entry.base_offset + record.offset_delta >= from_offset
        ]
