"""The content of a ledger's topic, as far as this process has read it.

Why it exists: the end of a topic that readers at read_committed see is the first open transaction,
of any producer. A sink's tasks write side by side, and one that was killed may leave its
transaction open for minutes. So the markers are read, as records are: they say of each key whether
it is decided, as the coordinator of a group does of an offset.

Owns: the last committed record of each key, the records that are not decided, the place up to
which they are read. Must not know: what a key or a value means, who asks.

Rules:
* The record with the highest offset counts, as for compaction, and not the one committed last.
* An id that is taken has no open transaction: `InitProducerId` waits until the markers are
  written. So a read after it, up to the end of the log, decides the records of that id.
* A task begins where the driver's snapshot ends.
* A topic that was deleted and created again is another one, whatever its length: nothing that was
  read of the old one counts. Its id shows that. Brokers before 2.8 have no ids, and then it shows
  only while the new one is shorter.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from txnproducer.admin import Asker, LogBatch, TopicReplacedError, read_log, some
from txnproducer.errors import (
    CorruptRecordError,
    KafkaError,
    UnstableOffsetCommitError,
    UnsupportedCompressionTypeError,
)
from txnproducer.ledger.errors import LedgerError

_LOG = logging.getLogger(__name__)
# Markers take milliseconds.
_POLL_S: Final = 0.02
_OPEN_S: Final = 20.0
# Makes the error of a ledger that cannot be read, with the ways out that its owner has.
Refusal: TypeAlias = Callable[[str], KafkaError]


@contextmanager
def readable(refusal: Refusal) -> Iterator[None]:
    """Turn the errors of bytes that cannot be read, in a block, into one of the ledger."""
    try:
        yield
    except (CorruptRecordError, UnsupportedCompressionTypeError) as error:
        raise refusal(f"the ledger cannot be read: {error}") from error


@dataclass(frozen=True)
class Stored:
    """The last committed record of a key.

    Attributes:
        offset: of the record.
        at_ms: the time of its commit, since the epoch, by the clock of the broker that wrote the
            marker. A record outside of a transaction has its batch's own time.
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
        topic_id: of the topic that they are in; None if the brokers do not say.
    """

    offset: int
    found: Mapping[str, Stored]
    topic_id: UUID | None = None


class LogState:
    """Committed records by key, and those of open transactions by producer.

    Args:
        position: the offset up to which the log is read.
        found: the last committed record of each key.
        topic_id: of the topic; None if it is not known.

    Attributes:
        position: see above.
        topic_id: see above.
    """

    def __init__(
        self,
        position: int = 0,
        found: Mapping[str, Stored] | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        self.position = position
        self.topic_id = topic_id
        self._found = dict(found or {})
        # Of each key, the batch with its last committed record, and the time of its commit. A log
        # has many records of a key, and only the one that is the last when somebody asks is
        # decoded.
        self._newest: dict[bytes | None, tuple[LogBatch, int]] = {}
        self._kept_to = 0
        self._open: dict[int, list[LogBatch]] = {}

    @property
    def found(self) -> dict[str, Stored]:
        """The last committed record of each key."""
        for key, (batch, at_ms) in self._newest.items():
            record = batch.newest[key]
            name = (key or b"").decode(errors="replace")
            last = self._found.get(name)
            # By offset, as compaction does: a transaction that began earlier may end later.
            if last is None or last.offset < record.offset:
                self._found[name] = Stored(record.offset, at_ms, record.value)
        # Only now: if one of them cannot be decoded, each question has to say so.
        self._newest.clear()
        return self._found

    def take(self, batch: LogBatch) -> None:
        """Take the next batch of the log. One that was taken before changes nothing."""
        if batch.next_offset <= self.position:
            return
        self.position = batch.next_offset
        if batch.is_commit is None:
            if not batch.is_transactional:
                self._keep(batch, batch.at_ms)
            elif batch.newest:
                self._open.setdefault(batch.producer_id, []).append(batch)
            return
        batches = self._open.pop(batch.producer_id, [])
        if batch.is_commit:
            for each in batches:
                self._keep(each, batch.at_ms)

    def _keep(self, batch: LogBatch, at_ms: int) -> None:
        # Batches do not overlap, so the later one has the later record of a key.
        if batch.first_offset >= self._kept_to:  # as with a single writer, a million times
            self._newest.update(dict.fromkeys(batch.newest, (batch, at_ms)))
            self._kept_to = batch.next_offset
            return
        for key in batch.newest:
            if self._newest.setdefault(key, (batch, at_ms))[0].next_offset < batch.next_offset:
                self._newest[key] = batch, at_ms

    def undecided(self, keys: Collection[str]) -> list[str]:
        """Return those of some keys that an open transaction has written, in order."""
        names = {key.encode(): key for key in keys}
        batches = [batch for each in self._open.values() for batch in each]
        return sorted({names[key] for batch in batches for key in names if key in batch.newest})

    def snapshot(self, keys: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of some of the keys, or of all, with the place to go on from."""
        begins = [batches[0].first_offset for batches in self._open.values()]
        found = self.found
        chosen = found if keys is None else {key: found[key] for key in keys if key in found}
        return Snapshot(min([self.position, *begins]), dict(chosen), self.topic_id)


class TopicLog:
    """A reader of a ledger's topic, which goes on from where it was.

    Args:
        bootstrap_servers: of the cluster.
        topic: of one partition.
        refusal: makes the error of bytes that cannot be read.
    """

    def __init__(self, bootstrap_servers: str, topic: str, refusal: Refusal = LedgerError) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._refusal = refusal
        self._lock = threading.Lock()
        self._state = LogState()
        self._read_at_s = -math.inf

    def go_on_from(self, snapshot: Snapshot) -> None:
        """Begin where another process has read up to, if this one has not come that far."""
        with self._lock:
            state, topic_id = self._state, snapshot.topic_id
            is_other = topic_id is not None and state.topic_id not in (None, topic_id)
            if is_other or state.position < snapshot.offset:
                self._state = LogState(snapshot.offset, snapshot.found, topic_id)

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
            KafkaError: the cluster refused, or did not answer; or the log has bytes that cannot
                be read, then it is the one that `refusal` makes.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock, readable(self._refusal):
                state = self._read(asker, security, timeout_s)
                open_keys = state.undecided(keys) if waits_for_undecided else []
                if not open_keys:
                    # A copy: another thread may read on.
                    return LogState(state.position, state.found, state.topic_id)
            if time.monotonic() > deadline_s:
                raise UnstableOffsetCommitError(
                    f"the topic {self._topic} has entries of open transactions, which were neither"
                    f" committed nor aborted in {timeout_s:g} s: {some(open_keys)} (a key is the"
                    " end of a transactional id). They end by their time-out, or when the id is"
                    " taken"
                )
            time.sleep(_POLL_S)

    def _read(self, asker: Asker, security: Mapping[str, Any], timeout_s: float) -> LogState:
        # Compaction takes the marker of an aborted transaction away after a minute, and a later
        # commit of its producer would then count for it: so open ones are kept for less.
        now_s = time.monotonic()
        if now_s - self._read_at_s > _OPEN_S:
            whole = self._state.snapshot()
            self._state = LogState(whole.offset, whole.found, whole.topic_id)
        self._read_at_s = now_s
        state = self._state
        try:
            is_same = self._read_on(state, asker, security, timeout_s)
        except TopicReplacedError:
            is_same = False
        if not is_same:
            _LOG.warning(
                "the topic %s was deleted and created again, or has lost records: the entries "
                "read before do not count, and it is read from its beginning",
                self._topic,
            )
            self._state = state = LogState()
            self._read_on(state, asker, security, timeout_s)
        return state

    def _read_on(
        self, state: LogState, asker: Asker, security: Mapping[str, Any], timeout_s: float
    ) -> bool:
        """Read on, and return whether the log still reaches as far as the state."""
        try:
            read = read_log(
                self._servers,
                self._topic,
                state.position,
                state.take,
                timeout_s,
                topic_id=state.topic_id,
                asker=asker,
                **dict(security),
            )
        except BaseException:
            # Of which topic a part was read is not known, so the next question cannot go on there.
            if state.topic_id is None:
                self._state = LogState()
            raise
        if read.offset < state.position:
            return False
        state.topic_id = read.topic_id or state.topic_id
        return True

    def snapshot(self, keys: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of some keys, or of all, without a question to the cluster.

        Raises:
            KafkaError: an entry that was read cannot be decoded. `refusal` makes it.
        """
        with self._lock, readable(self._refusal):
            return self._state.snapshot(keys)


_LOGS: dict[tuple[str, str], TopicLog] = {}
_LOCK = threading.Lock()


def _begin_in_child() -> None:
    # Another thread of the parent may have held a lock at the fork, for ever in the child.
    global _LOCK
    _LOCK = threading.Lock()
    _LOGS.clear()


os.register_at_fork(after_in_child=_begin_in_child)


def log_of(bootstrap_servers: str, topic: str, refusal: Refusal = LedgerError) -> TopicLog:
    """Return this process's reader of a topic."""
    with _LOCK:
        name = (bootstrap_servers, topic)
        # One for each process: a driver and its tasks ask again and again, and read only the tail.
        found = _LOGS.get(name)
        if found is None:
            found = _LOGS[name] = TopicLog(bootstrap_servers, topic, refusal)
        return found


def forget_logs() -> None:
    """Forget all that was read. The next question reads a topic from its beginning."""
    with _LOCK:
        _LOGS.clear()
