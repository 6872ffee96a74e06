"""The content of a ledger's topic, as far as this process has read it.

Why it exists: the end of a topic that readers at read_committed see is the first open transaction,
whoever has it. A sink's tasks write side by side, and one that was killed may leave its
transaction open for minutes. So the markers are read, as records are: they say of each key whether
it is decided, as the coordinator of a group does of an offset.

Owns: the last committed record of each key, the records that are not decided, the place up to
which they are read. Must not know: what a key or a value means, who asks.

Rules:
* The record with the highest offset counts, as for compaction, and not the one committed last.
* An id that is taken has no open transaction: `InitProducerId` waits until the markers are
  written. So a read after it, up to the end of the log, decides the records of that id.
* A task begins where the driver's snapshot ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer.admin import Asker, LogBatch, LogRecord, read_log
from txnproducer.errors import UnstableOffsetCommitError

# Markers take milliseconds.
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class Stored:
    """The last committed record of a key.

    Attributes:
        offset: of the record.
        at_ms: the record's time, since the epoch.
        value: the record's value; None if the key was deleted.
    """

    offset: int
    at_ms: int
    value: bytes | None


@dataclass(frozen=True)
class Snapshot:
    """The records that a process has read, for another one that goes on from there.

    Attributes:
        offset: where to go on; no transaction that began before it is open.
        found: the last committed records, by key.
    """

    offset: int
    found: Mapping[str, Stored]


@dataclass
class LogState:
    """Committed records by key, and those of open transactions by producer.

    Attributes:
        position: the offset up to which the log is read.
        found: the last committed record of each key.
    """

    position: int = 0
    found: dict[str, Stored] = field(default_factory=dict)
    _open: dict[int, list[LogRecord]] = field(default_factory=dict)

    def take(self, batch: LogBatch) -> None:
        """Take the next batch of the log. One that was taken before changes nothing."""
        if batch.next_offset <= self.position:
            return
        self.position = batch.next_offset
        if batch.is_commit is None:
            if batch.is_transactional:
                self._open.setdefault(batch.producer_id, []).extend(batch.records)
            else:
                self._keep(batch.records)
            return
        records = self._open.pop(batch.producer_id, [])
        if batch.is_commit:
            self._keep(records)

    def _keep(self, records: Collection[LogRecord]) -> None:
        for record in records:
            key = (record.key or b"").decode(errors="replace")
            last = self.found.get(key)
            # By offset, as compaction does: a transaction that began earlier may end later.
            if last is None or last.offset < record.offset:
                self.found[key] = Stored(record.offset, record.timestamp_ms, record.value)

    def is_undecided(self, keys: Collection[str]) -> bool:
        """Return whether an open transaction has written one of these keys."""
        names = {key.encode() for key in keys}
        return any(record.key in names for records in self._open.values() for record in records)

    def snapshot(self, keys: Collection[str]) -> Snapshot:
        """Return a snapshot of some of the keys, with the place to go on from."""
        begins = [records[0].offset for records in self._open.values() if records]
        found = {key: self.found[key] for key in keys if key in self.found}
        return Snapshot(min([self.position, *begins]), found)


class TopicLog:
    """A reader of a ledger's topic, which goes on from where it was.

    Args:
        bootstrap_servers: of the cluster.
        topic: of one partition.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._lock = threading.Lock()
        self._state = LogState()

    def go_on_from(self, snapshot: Snapshot) -> None:
        """Begin where another process has read up to, if this one has not come that far."""
        with self._lock:
            if self._state.position < snapshot.offset:
                self._state = LogState(snapshot.offset, dict(snapshot.found))

    def read(
        self,
        keys: Collection[str],
        asker: Asker,
        security: Mapping[str, Any],
        timeout_s: float,
        *,
        waits_for_undecided: bool,
    ) -> LogState:
        """Read up to the end of the log, and return the state there. Do not change it.

        Args:
            keys: those that have to be decided.
            asker: puts the question to the cluster.
            security: kafka-python's settings.
            timeout_s: for how long the cluster is asked.
            waits_for_undecided: False to not wait for open transactions.

        Raises:
            UnstableOffsetCommitError: a key stayed undecided for all of that time.
            KafkaError: the cluster refused, or did not answer.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                state = self._read(asker, security, timeout_s)
                if not (waits_for_undecided and state.is_undecided(keys)):
                    # A copy: another thread may read on.
                    return LogState(state.position, dict(state.found))
            if time.monotonic() > deadline_s:
                raise UnstableOffsetCommitError(
                    f"the topic {self._topic} has an entry of an open transaction, which was "
                    f"neither committed nor aborted in {timeout_s:g} s"
                )
            time.sleep(_POLL_S)

    def _read(self, asker: Asker, security: Mapping[str, Any], timeout_s: float) -> LogState:
        state = self._state
        end = self._read_on(state, asker, security, timeout_s)
        # The topic was deleted and created again: what it held is not its content any more.
        if end < state.position:
            state = LogState()
            self._read_on(state, asker, security, timeout_s)
            self._state = state
        return state

    def _read_on(
        self, state: LogState, asker: Asker, security: Mapping[str, Any], timeout_s: float
    ) -> int:
        return read_log(
            self._servers,
            self._topic,
            state.position,
            state.take,
            timeout_s,
            asker=asker,
            **dict(security),
        )

    def snapshot(self, keys: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of some keys, or of all, without a question to the cluster."""
        with self._lock:
            return self._state.snapshot(list(self._state.found) if keys is None else keys)


_LOGS: dict[tuple[str, str], TopicLog] = {}
_LOCK = threading.Lock()


def log_of(bootstrap_servers: str, topic: str) -> TopicLog:
    """Return this process's reader of a topic."""
    with _LOCK:
        name = (bootstrap_servers, topic)
        # One for each process: a driver and its tasks ask again and again, and read only the tail.
        return _LOGS.setdefault(name, TopicLog(bootstrap_servers, topic))


def forget_logs() -> None:
    """Forget all that was read. The next question reads a topic from its beginning."""
    with _LOCK:
        _LOGS.clear()
