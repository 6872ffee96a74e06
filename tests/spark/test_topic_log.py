"""The records of a ledger's topic are decided by the markers between them, key by key."""

from __future__ import annotations

import pytest

from txnproducer.admin import LogBatch, LogRecord
from txnproducer.errors import UnstableOffsetCommitError
from txnproducer.spark.ledger import topic_log
from txnproducer.spark.ledger.topic_log import LogState, TopicLog


def rows(offset, producer, *pairs):
    """Return a batch of a transaction's records."""
    records = tuple(
        LogRecord(offset + n, 1000 + offset + n, key.encode(), value)
        for n, (key, value) in enumerate(pairs)
    )
    return LogBatch(offset + len(pairs), producer, True, None, records)


def marker(offset, producer, *, is_commit):
    return LogBatch(offset + 1, producer, True, is_commit, ())


def values(state):
    return {key: one.value for key, one in state.found.items()}


def test_a_record_counts_when_its_transaction_is_committed():
    state = LogState()
    state.take(rows(0, 7, ("p0", b"a")))
    assert values(state) == {}
    assert state.is_undecided(["p0"])
    assert not state.is_undecided(["p1"])
    state.take(rows(1, 8, ("p1", b"b")))
    state.take(marker(2, 8, is_commit=False))
    assert values(state) == {}
    state.take(marker(3, 7, is_commit=True))
    assert values(state) == {"p0": b"a"}
    assert not state.is_undecided(["p0", "p1"])
    assert state.position == 4


def test_the_later_record_counts_also_if_the_earlier_transaction_ends_last():
    state = LogState()
    state.take(rows(0, 7, ("p0", b"earlier")))
    state.take(rows(1, 8, ("p0", b"later")))
    state.take(marker(2, 8, is_commit=True))
    state.take(marker(3, 7, is_commit=True))
    assert values(state) == {"p0": b"later"}


def test_a_batch_that_comes_again_changes_nothing():
    state = LogState()
    log = [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True), rows(2, 7, ("p0", b"b"))]
    for batch in [*log, *log]:
        state.take(batch)
    state.take(marker(3, 7, is_commit=False))
    assert values(state) == {"p0": b"a"}


def test_a_task_goes_on_before_the_first_open_transaction():
    state = LogState()
    log = [
        rows(0, 7, ("p0", b"a")),
        marker(1, 7, is_commit=True),
        rows(2, 8, ("p1", b"open")),
        rows(3, 7, ("p0", b"b")),
        marker(4, 7, is_commit=True),
    ]
    for batch in log:
        state.take(batch)
    snapshot = state.snapshot(["p0", "p1"])
    assert snapshot.offset == 2
    task = LogState(snapshot.offset, dict(snapshot.found))
    for batch in [*log[2:], marker(5, 8, is_commit=True)]:
        task.take(batch)
    assert values(task) == {"p0": b"b", "p1": b"open"}


@pytest.fixture
def log(monkeypatch):
    """Return a reader of a topic, and the batches of the topic."""
    batches: list[LogBatch] = []

    def read(servers, topic, offset, take, timeout, **_):
        end = batches[-1].next_offset if batches else 0
        for batch in batches:
            if batch.next_offset > offset or end < offset:
                take(batch)
        return end

    monkeypatch.setattr(topic_log, "read_log", read)
    monkeypatch.setattr(topic_log, "_POLL_S", 0.001)
    return TopicLog("nowhere:9092", "t"), batches


def read(reader, *keys, waits=True, timeout_s=0.01):
    found = reader.read(keys, None, {}, timeout_s, waits_for_undecided=waits)
    return values(found)


def test_a_key_that_is_not_decided_is_waited_for_and_others_are_not(log):
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True), rows(2, 8, ("p1", b"b"))]
    assert read(reader, "p0") == {"p0": b"a"}
    assert read(reader, "p1", waits=False) == {"p0": b"a"}
    with pytest.raises(UnstableOffsetCommitError):
        read(reader, "p1")
    batches.append(marker(3, 8, is_commit=True))
    assert read(reader, "p1") == {"p0": b"a", "p1": b"b"}


def test_a_topic_that_was_made_again_is_read_from_its_beginning(log):
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True)]
    batches += [rows(2, 7, ("p1", b"a")), marker(3, 7, is_commit=True)]
    read(reader)
    batches[:] = [rows(0, 9, ("p2", b"c")), marker(1, 9, is_commit=True)]
    assert read(reader) == {"p2": b"c"}


def test_a_reader_goes_on_from_a_snapshot_only_forwards(log):
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True)]
    read(reader)
    known = reader.snapshot()
    batches += [rows(2, 7, ("p1", b"b")), marker(3, 7, is_commit=True)]
    read(reader)
    reader.go_on_from(known)
    assert read(reader) == {"p0": b"a", "p1": b"b"}
    task = TopicLog("nowhere:9092", "t")
    task.go_on_from(known)
    assert read(task) == {"p0": b"a", "p1": b"b"}
