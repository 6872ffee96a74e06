"""The records of a ledger's topic are decided by the markers between them, key by key."""

from __future__ import annotations

import itertools
import os
import signal
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnproducer.admin import LogBatch, LogRecord, ReadTo, TopicReplacedError
from txnproducer.errors import CorruptRecordError, DisconnectError, UnstableOffsetCommitError
from txnproducer.ledger import topic_log
from txnproducer.ledger.errors import LedgerError
from txnproducer.ledger.topic_log import LogState, Snapshot, Stored, TopicLog
from txnproducer.spark.ledger.topic_ledger import unreadable


def rows(offset, producer, *pairs):
    """Return a batch of a transaction's records."""
    newest = {
        key.encode(): LogRecord(offset + n, 1000 + offset + n, key.encode(), value)
        for n, (key, value) in enumerate(pairs)
    }
    return LogBatch(offset + len(pairs), producer, True, None, offset, 1000 + offset, newest)


def marker(offset, producer, *, is_commit, at_ms=0):
    return LogBatch(offset + 1, producer, True, is_commit, offset, at_ms, {})


def values(state):
    return {key: one.value for key, one in state.found.items()}


def test_a_record_counts_when_its_transaction_is_committed():
    state = LogState()
    state.take(rows(0, 7, ("p0", b"a")))
    assert values(state) == {}
    assert state.undecided(["p1", "p0"]) == ["p0"]
    assert state.undecided(["p1"]) == []
    state.take(rows(1, 8, ("p1", b"b")))
    state.take(marker(2, 8, is_commit=False))
    assert values(state) == {}
    state.take(marker(3, 7, is_commit=True))
    assert values(state) == {"p0": b"a"}
    assert state.undecided(["p0", "p1"]) == []
    assert state.position == 4


def test_a_record_has_the_time_of_its_commit_which_no_writers_clock_sets():
    state = LogState()
    state.take(rows(0, 7, ("p0", b"a"), ("p1", b"b")))
    state.take(rows(2, 8, ("p1", b"c")))
    state.take(marker(3, 7, is_commit=True, at_ms=60))
    assert {key: one.at_ms for key, one in state.found.items()} == {"p0": 60, "p1": 60}
    state.take(marker(4, 8, is_commit=True, at_ms=50))
    state.take(rows(5, -1, ("p2", b"d"))._replace(is_transactional=False))
    found = {key: one.at_ms for key, one in state.found.items()}
    assert found == {"p0": 60, "p1": 50, "p2": 1005}


def test_the_later_record_counts_also_if_the_earlier_transaction_ends_last():
    state = LogState()
    state.take(rows(0, 7, ("p0", b"earlier")))
    state.take(rows(1, 8, ("p0", b"later")))
    state.take(marker(2, 8, is_commit=True))
    state.take(marker(3, 7, is_commit=True))
    assert values(state) == {"p0": b"later"}


@pytest.mark.parametrize("order", list(itertools.permutations([7, 8, 9])))
def test_the_last_record_counts_in_whichever_order_transactions_end(order):
    state = LogState()
    for offset, producer in enumerate([7, 8, 9]):
        key = "p1" if producer == 9 else "p0"
        state.take(rows(offset, producer, (key, b"%d" % producer)))
    for offset, producer in enumerate(order, 3):
        state.take(marker(offset, producer, is_commit=True))
    assert values(state) == {"p0": b"8", "p1": b"9"}


# Of a producer: the keys of a batch of records, or how its transaction ends. None is a look.
_turns = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.integers(1, 3),
            st.one_of(st.booleans(), st.lists(st.sampled_from(["p0", "p1", "p2"]), max_size=4)),
        ),
    ),
    max_size=30,
)


@given(_turns)
def test_however_transactions_cross_the_highest_committed_offset_of_a_key_counts(turns):
    state, offset = LogState(), 0
    open_records: dict[int, list[tuple[str, bytes]]] = {}
    committed: list[tuple[str, bytes]] = []
    for turn in turns:
        if turn is None:
            assert values(state) == dict(sorted(committed, key=lambda one: int(one[1])))
            continue
        producer, content = turn
        if isinstance(content, bool):
            state.take(marker(offset, producer, is_commit=content))
            committed += open_records.pop(producer, []) if content else []
            open_records.pop(producer, None)
            offset += 1
            continue
        written = [(key, b"%d" % (offset + n)) for n, key in enumerate(content)]
        state.take(rows(offset, producer, *written))
        open_records.setdefault(producer, []).extend(written)
        offset += len(written)
    assert values(state) == dict(sorted(committed, key=lambda one: int(one[1])))


class Undecodable(dict):
    """The records of a batch of which one breaks the format."""

    def __getitem__(self, key):
        raise CorruptRecordError("partition 0 of the topic t, offset 0: a malformed record")


UNREADABLE = (
    "^the ledger cannot be read: partition 0 of the topic t, offset 0: a malformed record"
    ".*Ways out: "
)


def test_an_entry_that_cannot_be_decoded_is_refused_by_each_question(log):
    reader, batches = log
    whole = rows(0, 7, ("p0", b"a"))
    batches += [whole._replace(newest=Undecodable(whole.newest)), marker(1, 7, is_commit=True)]
    for _ in range(2):
        with pytest.raises(LedgerError, match=UNREADABLE) as found:
            read(reader, "p0")
        assert found.value.recovery == "fix"
        with pytest.raises(LedgerError, match=UNREADABLE):
            reader.snapshot()


def test_a_log_that_cannot_be_read_is_named_with_the_ways_out(log, monkeypatch):
    reader, _ = log

    def read_log(*_, **__):
        raise CorruptRecordError("partition 0 of the topic t, offset 0: a malformed record")

    monkeypatch.setattr(topic_log, "read_log", read_log)
    with pytest.raises(LedgerError, match=UNREADABLE):
        read(reader, "p0")


def test_a_batch_that_compaction_has_emptied_holds_no_task_back():
    state = LogState()
    emptied = LogBatch(5, 7, True, None, 0, 0, {})
    for batch in [emptied, rows(5, 8, ("p0", b"a")), marker(6, 8, is_commit=True)]:
        state.take(batch)
    assert state.snapshot().offset == 7


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
    """Return a reader of a topic, and the batches of the topic. Its brokers have no ids."""
    batches: list[LogBatch] = []
    return TopicLog("nowhere:9092", "t", unreadable), topic_of(batches, monkeypatch)


def topic_of(batches, monkeypatch):
    """Let readers find batches in a topic of the id that is set on the returned list."""
    batches = Topic(batches)

    def read(servers, topic, offset, take, timeout, *, topic_id, **_):
        if None not in (topic_id, batches.topic_id) and topic_id != batches.topic_id:
            raise TopicReplacedError
        end = batches[-1].next_offset if batches else 0
        for batch in batches:
            if batch.next_offset > offset or end < offset:
                take(batch)
                if batches.breaks_off:
                    raise DisconnectError
        return ReadTo(end, batches.topic_id)

    monkeypatch.setattr(topic_log, "read_log", read)
    monkeypatch.setattr(topic_log, "_POLL_S", 0.001)
    return batches


class Topic(list):
    """The batches of a topic.

    Attributes:
        topic_id: of it; None if the brokers do not say.
        breaks_off: whether each reading loses its connection after the first batch.
    """

    topic_id: UUID | None = None
    breaks_off = False


def read(reader, *keys, waits=True, timeout_s=0.01):
    found = reader.read(keys, None, {}, timeout_s, waits_for_undecided=waits)
    return values(found)


def test_open_transactions_are_read_again_after_a_rest(log, monkeypatch):
    # Compaction may have taken the marker of an abort away meanwhile, and its records.
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True), rows(2, 7, ("X", b"x"))]
    assert read(reader, "p0") == {"p0": b"a"}
    batches[2:] = [rows(50, 7, ("Y", b"y")), marker(51, 7, is_commit=True)]
    later_s = time.monotonic() + 30.0
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert read(reader, "X", "Y") == {"p0": b"a", "Y": b"y"}


def test_a_key_that_is_not_decided_is_waited_for_and_others_are_not(log):
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True), rows(2, 8, ("p1", b"b"))]
    assert read(reader, "p0") == {"p0": b"a"}
    assert read(reader, "p1", waits=False) == {"p0": b"a"}
    with pytest.raises(UnstableOffsetCommitError, match=r"^the topic t has .* in 0\.01 s: p1 \("):
        read(reader, "p0", "p1")
    batches.append(marker(3, 8, is_commit=True))
    assert read(reader, "p1") == {"p0": b"a", "p1": b"b"}


def test_a_topic_that_was_made_again_is_read_from_its_beginning(log):
    reader, batches = log
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True)]
    batches += [rows(2, 7, ("p1", b"a")), marker(3, 7, is_commit=True)]
    read(reader)
    batches[:] = [rows(0, 9, ("p2", b"c")), marker(1, 9, is_commit=True)]
    assert read(reader) == {"p2": b"c"}


OLD, NEW = UUID(int=7), UUID(int=8)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_topic_that_was_made_again_and_has_grown_is_read_from_its_beginning(log, length, caplog):
    reader, batches = log
    batches.topic_id = OLD
    batches += [rows(0, 7, ("p0", b"a"), ("p1", b"a")), marker(2, 7, is_commit=True)]
    assert read(reader) == {"p0": b"a", "p1": b"a"}
    batches.topic_id = NEW
    new = [rows(n, 9, (f"p{n}", b"c")) for n in range(1, length + 1)]
    batches[:] = [*new, marker(length + 1, 9, is_commit=True)]
    assert read(reader) == {f"p{n}": b"c" for n in range(1, length + 1)}
    assert "the topic t was deleted and created again" in caplog.text
    caplog.clear()
    read(reader)
    assert caplog.text == ""
    assert reader.snapshot().topic_id == NEW


def test_after_a_failure_nothing_of_a_topic_that_was_made_again_counts(log):
    reader, batches = log
    batches.topic_id = OLD
    batches += [rows(0, 7, ("p0", b"a")), marker(1, 7, is_commit=True)]
    read(reader)
    batches.topic_id, batches.breaks_off = NEW, True
    batches[:] = [rows(0, 9, ("p1", b"b")), marker(1, 9, is_commit=True)]
    with pytest.raises(DisconnectError):
        read(reader)
    assert reader.snapshot().found == {}
    # Made once more, while nothing is known of the one before.
    batches.topic_id, batches.breaks_off = UUID(int=9), False
    batches[:] = [rows(0, 9, ("p2", b"c")), marker(1, 9, is_commit=True)]
    assert read(reader) == {"p2": b"c"}


def test_a_task_takes_the_drivers_snapshot_if_its_process_has_read_an_earlier_topic(log):
    reader, batches = log
    batches.topic_id = OLD
    batches += [rows(0, 7, ("p0", b"a"), ("p1", b"a")), marker(2, 7, is_commit=True)]
    read(reader)
    known = Snapshot(1, {"p9": Stored(0, 0, b"z")}, NEW)
    reader.go_on_from(known)
    assert reader.snapshot() == known
    # And a topic that was made again since then is noticed by the task as well.
    assert read(reader) == {"p0": b"a", "p1": b"a"}


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


def test_a_fork_while_another_thread_reads_does_not_wait_for_that_thread():
    before = topic_log.log_of("localhost:9092", "ledger")
    with topic_log._LOCK, before._lock:
        child = os.fork()
        if child == 0:
            # An exit code is all that the parent sees; a wait for a lock would be for ever.
            signal.alarm(10)
            after = topic_log.log_of("localhost:9092", "ledger")
            os._exit(0 if after is not before and not after.snapshot().found else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    topic_log.forget_logs()
