"""The transaction coordinators of a cluster: ids, their log, markers, time-outs, moves.

Why it exists: the coordinator decides transactions, writes their markers, which takes time, and
survives the failure of its broker. The requests (`handlers/`) and the partitions' logs do none of
this.
Owns: `TransactionCoordinator`, one for each partition of `__transaction_state`. Must not know:
requests.

Rules:
* Every change is written to the coordinator's log first. Memory and log can differ: a write that
  takes too long counts as failed, but the log keeps the record.
* A broker that takes a coordinator over loads the log, raises the coordinator epoch, and writes
  the markers of decided transactions again.
* Each partition gets its marker by itself, after a delay. When all are written, the transaction is
  complete. Markers of an earlier coordinator epoch may still arrive: the partitions refuse them.
* A transaction older than its time-out is aborted, and its producer is fenced.

Simplifications: a change is written and answered in one step, so that two requests for an id never
overlap (a real broker answers the second CONCURRENT_TRANSACTIONS).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

from txnproducer._broker.transaction_metadata import (
    MAX_EPOCH,
    TransactionalIdState,
    TransactionMetadata,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

_S = TransactionalIdState


class LogWrite(Enum):
    """The outcome of a write to the coordinator's log."""

    DONE = auto()
    LOST = auto()  # refused, and not in the log
    LATE = auto()  # refused as too slow, but in the log
    BROKEN = auto()  # an unexpected error before the write
    BROKEN_LATE = auto()  # an unexpected error after the write


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, to be written to one partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    is_v2: bool


@dataclass(frozen=True, slots=True)
class _Resigning:
    """The memory of a broker that does not know yet that it has resigned."""

    node_id: int
    until_ms: int
    ids: Mapping[str, TransactionMetadata]


class Surroundings(Protocol):
    """The parts of its cluster that a coordinator needs."""

    @property
    def transaction_version(self) -> int:
        """The finalized `transaction.version`."""
        ...

    @property
    def counts(self) -> Counter[str]:
        """How often each event occurred that no request caused."""
        ...

    def new_producer_id(self) -> int:
        """Return a producer id that was never used."""
        ...

    def log_write(self, changed: TransactionMetadata) -> LogWrite:
        """Decide the outcome of a write."""
        ...

    def marker_delay_ms(self) -> int:
        """Return how long a marker takes to reach its partition."""
        ...

    def call_at(self, due_ms: int, action: Callable[[int], None]) -> None:
        """Schedule an action."""
        ...

    def write_marker(self, place: TopicPartition, marker: Marker, now_ms: int) -> ErrorCode:
        """Write a marker to a partition."""
        ...


class TransactionCoordinator:
    """The coordinator of one partition of transactional ids.

    Args:
        cluster: the cluster around it.

    Attributes:
        epoch: the coordinator epoch, which each move raises.
        loading_until_ms: the time before which requests get COORDINATOR_LOAD_IN_PROGRESS.
    """

    def __init__(self, cluster: Surroundings) -> None:
        self._cluster = cluster
        self._log: dict[str, TransactionMetadata] = {}
        self._ids: dict[str, TransactionMetadata] = {}
        self._unwritten: dict[str, set[TopicPartition]] = {}
        self._resigning: _Resigning | None = None
        self.epoch = 0
        self.loading_until_ms = 0

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of an id, or None if it is unknown."""
        return self._ids.get(transactional_id)

    @property
    def ids(self) -> list[str]:
        """The ids that the coordinator knows."""
        return list(self._ids)

    @property
    def open_ids(self) -> list[str]:
        """The ids whose transaction is not complete."""
        return [
            name for name, known in self._ids.items()
            if known.state is _S.ONGOING or known.state.is_prepared
        ]  # fmt: skip

    def create(self, transactional_id: str, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """Create an id in memory. Its first change writes it to the log."""
        # As in `handleInitProducerId`, a producer id is taken before the first write, even if that
        # fails.
        created = TransactionMetadata(
            transactional_id, self._cluster.new_producer_id(), timeout_ms, last_update_ms=now_ms
        )
        self._ids[transactional_id] = created
        return created

    def preset_epoch(self, transactional_id: str, epoch: int) -> None:
        """Create an id that has used all epochs below the given one."""
        created = self.create(transactional_id, 60_000, 0)
        self._ids[transactional_id] = replace(created, producer_epoch=epoch)
        self._log[transactional_id] = self._ids[transactional_id]

    def write(self, changed: TransactionMetadata) -> ErrorCode:
        """Write a change to the log, and then update the memory."""
        name = changed.transactional_id
        result = self._cluster.log_write(changed)
        # A write that was only too slow is found again by the broker that loads the log next.
        if result not in (LogWrite.LOST, LogWrite.BROKEN):
            self._log[name] = changed
        if result in (LogWrite.BROKEN, LogWrite.BROKEN_LATE):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        # `TransactionStateManager.appendTransactionToLog` translates missing replicas and
        # time-outs so.
        if result is not LogWrite.DONE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._count_rotation(changed)
        self._ids[name] = changed
        return ErrorCode.NONE

    def _count_rotation(self, changed: TransactionMetadata) -> None:
        known = self._ids.get(changed.transactional_id)
        if known is not None and known.producer_id != changed.producer_id:
            self._cluster.counts["rotated"] += 1

    # --- the end of a transaction ---------------------------------------------------------------

    def end(
        self, known: TransactionMetadata, now_ms: int, *, is_commit: bool, is_v2: bool
    ) -> tuple[ErrorCode, TransactionMetadata]:
        """Decide a transaction and send its markers.

        Returns:
            The error code, and the id as it will be after the transaction is complete.
        """
        state = _S.PREPARE_COMMIT if is_commit else _S.PREPARE_ABORT
        # v1 keeps its epoch at an end. There InitProducerId is the only place that needs a new id.
        rotates = is_v2 and known.is_epoch_exhausted
        next_id = self._cluster.new_producer_id() if rotates else -1
        prepared = known.prepared(state, now_ms, is_v2=is_v2, next_producer_id=next_id)
        code = self.write(prepared)
        # Markers go out only for a decision that is in the log: after a crash it must be the same
        # one.
        if not code:
            self._send_markers(prepared, now_ms)
        # Kafka, too, answers before the markers are written, with the identity that follows them.
        return code, prepared.completed(now_ms)

    def fence(self, known: TransactionMetadata, now_ms: int) -> ErrorCode:
        """Abort the transaction of a producer that must not end it itself."""
        is_v2 = self._cluster.transaction_version >= 2
        # The end itself raises the epoch. Raising it before as well would skip one (KAFKA-19367).
        if is_v2:
            return self.end(known, now_ms, is_commit=False, is_v2=True)[0]
        # `prepareFenceProducerEpoch` does not raise the epoch again after a failed write: no
        # client has got it.
        is_spent = known.has_failed_fence or known.producer_epoch == MAX_EPOCH
        epoch = known.producer_epoch if is_spent else known.producer_epoch + 1
        fenced = replace(known, producer_epoch=epoch, last_producer_epoch=-1)
        code, _ = self.end(fenced, now_ms, is_commit=False, is_v2=False)
        if code:
            # In memory alone, as in Kafka: a move of the coordinator forgets it.
            self._ids[known.transactional_id] = known.with_failed_fence(epoch)
        return code

    def _send_markers(self, prepared: TransactionMetadata, now_ms: int) -> None:
        name = prepared.transactional_id
        self._unwritten[name] = set(prepared.partitions)
        marker = Marker(
            prepared.producer_id,
            prepared.producer_epoch,
            self.epoch,
            prepared.state is _S.PREPARE_COMMIT,
            prepared.is_v2,
        )
        # Each marker draws its delay, and the order of a set differs between processes.
        for place in sorted(prepared.partitions):
            self._send_marker(name, place, marker, now_ms)
        # v2 allows an abort before any partition was added: no marker would complete it.
        if not prepared.partitions:
            self._maybe_complete(name, now_ms)

    def _send_marker(self, name: str, place: TopicPartition, marker: Marker, now_ms: int) -> None:
        delay_ms = self._cluster.marker_delay_ms()
        if delay_ms:
            self._cluster.call_at(
                now_ms + delay_ms, lambda due_ms: self._arrive(name, place, marker, due_ms)
            )
        else:
            self._arrive(name, place, marker, now_ms)

    def _arrive(self, name: str, place: TopicPartition, marker: Marker, now_ms: int) -> None:
        code = self._cluster.write_marker(place, marker, now_ms)
        # The marker is written or refused, but the answer reaches a broker that is no longer the
        # coordinator.
        if marker.coordinator_epoch != self.epoch:
            return
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._cluster.call_at(
                # At least 1 ms: with a delay of 0, `advance` would repeat it without end.
                now_ms + 1 + self._cluster.marker_delay_ms(),
                lambda due_ms: self._resend(name, place, marker, due_ms),
            )
            return
        # The marker is written, or the partition has a newer one: it needs nothing more.
        self._unwritten.get(name, set()).discard(place)
        self._maybe_complete(name, now_ms)

    def _resend(self, name: str, place: TopicPartition, marker: Marker, now_ms: int) -> None:
        if marker.coordinator_epoch == self.epoch:
            self._arrive(name, place, marker, now_ms)

    def _maybe_complete(self, name: str, now_ms: int) -> None:
        known = self._ids.get(name)
        if known is None or not known.state.is_prepared or self._unwritten.get(name):
            return
        self._unwritten.pop(name, None)
        # Kafka repeats this write until it succeeds (`txnLogAppendRetryQueue`): the markers are
        # out.
        if self.write(known.completed(now_ms)):
            epoch = self.epoch
            self._cluster.call_at(
                now_ms + 1, lambda due_ms: self._complete_again(name, epoch, due_ms)
            )

    def _complete_again(self, name: str, epoch: int, now_ms: int) -> None:
        if epoch == self.epoch:
            self._maybe_complete(name, now_ms)

    # --- time -----------------------------------------------------------------------------------

    def abort_timed_out(self, now_ms: int) -> list[str]:
        """Abort the transactions that have timed out, and return their ids."""
        # Markers would be written twice: for this abort, and again when the log is loaded.
        if now_ms < self.loading_until_ms:
            return []
        late = [
            name
            for name, known in self._ids.items()
            if known.state is _S.ONGOING and known.start_ms + known.timeout_ms < now_ms
        ]
        for name in late:
            self.fence(self._ids[name], now_ms)
        return late

    def forget_idle(self, before_ms: int) -> list[str]:
        """Forget the ids that were idle since before a time, and return them."""
        idle = [
            name
            for name, known in self._ids.items()
            # As `TransactionStateManager.removeExpiredTransactionalIds`: forgetting an open
            # transaction would leave its records undecided for ever.
            if (known.state is _S.EMPTY or known.state.is_complete)
            and known.last_update_ms <= before_ms
        ]
        for name in idle:
            del self._ids[name]
            self._log.pop(name, None)
        return idle

    def resign(self, node_id: int, until_ms: int) -> None:
        """Keep the old broker's memory until it knows that it has resigned."""
        self._resigning = _Resigning(node_id, until_ms, dict(self._ids))

    def remembered_at(
        self, transactional_id: str, node_id: int, now_ms: int
    ) -> TransactionMetadata | None:
        """Return an id as a broker remembers it that does not know yet that it has resigned."""
        resigning = self._resigning
        if resigning is None or resigning.node_id != node_id or now_ms >= resigning.until_ms:
            return None
        return resigning.ids.get(transactional_id)

    def take_over(self, now_ms: int, loading_ms: int) -> None:
        """Continue on another broker with the state in the log."""
        self.epoch += 1
        self.loading_until_ms = now_ms + loading_ms
        # Memory is lost with the broker: refused writes that were kept come to light here, and
        # failed fences are forgotten.
        self._ids = {name: known.loaded() for name, known in self._log.items()}
        self._unwritten.clear()
        if loading_ms:
            epoch = self.epoch
            self._cluster.call_at(self.loading_until_ms, lambda due_ms: self._go_on(epoch, due_ms))
        else:
            self._go_on(self.epoch, now_ms)

    def _go_on(self, epoch: int, now_ms: int) -> None:
        # Another move has come while the log was being loaded: that broker writes the markers.
        if epoch != self.epoch:
            return
        for known in list(self._ids.values()):
            # A transaction that was decided at this same moment has sent its markers already.
            if known.state.is_prepared and known.transactional_id not in self._unwritten:
                self._send_markers(known, now_ms)
