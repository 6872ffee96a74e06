"""A commit of a batch that does not end in time is settled by the next poll."""

from __future__ import annotations

import threading

import pytest

from tests.live_client import PATIENCE_S, SHORT_MS, commits_sent
from tests.session.consumers import (
    INPUT,
    copy,
    offsets_sent,
)
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell.refusals import timed_out as timed_out_error
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaTimeoutError,
)


def step(session):
    """Take a step of a loop by hand. Return the offsets of its batch."""
    batch = session.poll(max_records=2)
    if batch:
        with session.transaction(batch) as transaction:
            for record in batch:
                copy(record, transaction)
    return [record.offset for record in batch]


def timed_out(session, client, ready):
    """Return the error of a step in which the commit takes too long."""
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    with pytest.raises(KafkaTimeoutError) as caught:
        step(session)
    return caught.value


def test_a_commit_that_has_timed_out_is_awaited_by_the_next_polls(session, client, ready):
    errors = [timed_out(session, client, ready)]
    with pytest.raises(KafkaTimeoutError) as caught:
        session.poll()
    errors.append(caught.value)
    for error in errors:
        assert "the next poll() of the session waits for it" in str(error)
        assert "_transaction() again" not in str(error)
        assert "abort_transaction()" not in str(error)
        assert ".." not in str(error)
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    assert [step(session) for _ in range(3)] == [[2, 3], [4, 5], []]
    assert offsets_sent(client) == [{INPUT: 2}, {INPUT: 4}, {INPUT: 6}]


def test_a_batch_whose_commit_goes_on_is_not_processed_again(session, client, ready):
    timed_out(session, client, ready)
    with pytest.raises(IllegalStateError, match="poll again, which waits"):
        session.transaction(session._open)
    client.release(ApiKey.END_TXN)


def test_a_late_commit_that_fails_is_aborted_and_read_again(session, client, ready):
    timed_out(session, client, ready)
    client.prepare_end_txn(error_code=120)  # TRANSACTION_ABORTABLE
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert commits_sent(client) == [True, False]


@pytest.mark.parametrize(
    ("outcome", "read"), [("committed", [2, 3]), ("aborted", [0, 1]), ("unknown", None)]
)
def test_a_lost_outcome_is_found_out_by_the_next_poll(session, ready, monkeypatch, outcome, read):
    batch = session.poll(max_records=2)
    block = session.transaction(batch)
    lost = CommitOutcomeUnknownError("its answer is lost")

    def commit():
        block._block.outcome = "unknown"
        raise lost

    monkeypatch.setattr(ready, "commit_transaction", commit)
    with pytest.raises(CommitOutcomeUnknownError), block as transaction:
        copy(batch[0], transaction)

    def resolve():
        block._block.outcome = outcome

    monkeypatch.setattr(ready, "resolve_outcome", resolve)
    if read is None:
        for _ in range(2):
            with pytest.raises(CommitOutcomeUnknownError, match="make a new one"):
                session.poll(max_records=2)
    else:
        assert [record.offset for record in session.poll(max_records=2)] == read


def test_a_block_that_failed_is_never_committed_by_a_later_poll(
    session, consumer, client, ready, monkeypatch
):
    batch = session.poll(max_records=2)

    def abort():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ready, "abort_transaction", abort)
        with pytest.raises(KeyboardInterrupt), session.transaction(batch) as transaction:
            copy(batch[0], transaction) or batch[1 // 0]
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert True not in commits_sent(client)


def test_a_batch_whose_transaction_cannot_begin_is_read_again(session, ready, monkeypatch):
    batch = session.poll(max_records=2)
    with monkeypatch.context() as patch:
        error = timed_out_error("abort_transaction", 60)
        patch.setattr(ready._core, "begin_transaction", lambda: (_ for _ in ()).throw(error))
        with pytest.raises(
            KafkaTimeoutError, match="next poll\\(\\) of the session reads it again"
        ):
            session.transaction(batch).__enter__()
    assert step(session) == [0, 1]


def test_a_commit_that_a_run_gives_up_names_the_way_out_of_the_session(session, client, ready):
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    with pytest.raises(KafkaTimeoutError) as caught:
        session.run(copy, threading.Event(), max_records=2)
    assert "of the session" in str(caught.value)
    assert "_transaction() again" not in str(caught.value)
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    seen = [step(session) for _ in range(4)]
    assert [offset for each in seen for offset in each][-4:] == [2, 3, 4, 5]
