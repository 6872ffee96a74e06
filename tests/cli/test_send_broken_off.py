"""`txnproducer send` that is broken off: counts, advice and exit code are true."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from typing import Any

import pytest
from click.testing import CliRunner

from tests.live_client import LiveClient, use_live_clients
from tests.waiting import becomes_true
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer.cli import _send_transactions, main, send
from txnproducer.errors import RecordTooLargeError

SHORT_MS = "200"
LONG_MS = "20000"


@pytest.fixture
def client(monkeypatch):
    """Hold back the answer to the second commit."""
    client = LiveClient(topics={"t": 1})
    use_live_clients(monkeypatch, lambda: client)
    monkeypatch.setattr(send, "reach", lambda _: None)
    monkeypatch.setattr(send, "_partition_count", lambda *_: 1)
    commit = TransactionalProducer.commit_transaction

    def hold_the_second(self):
        if client.sent(ApiKey.END_TXN):
            client.held.add(ApiKey.END_TXN)
        commit(self)

    monkeypatch.setattr(TransactionalProducer, "commit_transaction", hold_the_second)
    return client


def release_in(monkeypatch, client, call):
    """Let the commit's answer come when a call is made."""
    inner = getattr(TransactionalProducer, call)

    def released(self, *arguments, **keywords):
        client.release(ApiKey.END_TXN)
        return inner(self, *arguments, **keywords)

    monkeypatch.setattr(TransactionalProducer, call, released)


def interrupt_the_second_commit(client):
    def run():
        # If it never comes, the interrupt ends the command all the same, and the test fails.
        becomes_true(lambda: len(client.sent(ApiKey.END_TXN)) >= 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=run, daemon=True).start()


def run(max_block_ms: str) -> tuple[int, dict[str, Any], str]:
    """Send six lines, two a transaction, and return exit code, JSON line and the other output."""
    limit = f"max.block.ms={max_block_ms}"
    arguments = ["send", "-b", "x:1", "-t", "t", "--transaction-size", "2", "-X", limit]
    done = CliRunner().invoke(main, arguments, input="a\nb\nc\nd\ne\nf\n")
    return done.exit_code, json.loads(done.stdout), done.stderr


def test_records_that_an_interrupted_commit_got_in_are_left_out_when_going_on(monkeypatch, client):
    release_in(monkeypatch, client, "close")
    interrupt_the_second_commit(client)
    code, line, told = run(LONG_MS)
    assert (code, line["records"], line["transactions"]["committed"]) == (130, 4, 2)
    assert f"--skip 4 --run-id {line['run_id']}" in told
    assert "no transaction was open" not in told


@pytest.mark.parametrize("call", ["abort_transaction", "close"])
def test_records_that_a_commit_got_in_after_its_time_out_are_left_out_too(
    monkeypatch, client, call
):
    release_in(monkeypatch, client, call)
    code, line, told = run(SHORT_MS)
    assert (code, line["records"], line["transactions"]["committed"]) == (3, 4, 2)
    assert line["transactions"]["open"] == 0
    assert f"--skip 4 --run-id {line['run_id']}" in told
    assert "committed all the same" in told


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_commit_whose_end_is_not_seen_ends_with_5_and_no_advice_that_may_double(
    monkeypatch, client, is_interrupted
):
    monkeypatch.setattr(_send_transactions, "_CLOSE_S", 0.1)
    if is_interrupted:
        interrupt_the_second_commit(client)
    code, line, told = run(LONG_MS if is_interrupted else SHORT_MS)
    assert (code, line["records"], line["transactions"]["unknown"]) == (5, 2, 1)
    assert line["transactions"]["committed"] == 1
    assert line["error"] == "CommitOutcomeUnknownError"
    assert "records 3 to 4 are committed is not known" in told
    assert "dealt with" not in told


def fail_at_the_fourth_record(monkeypatch, client, error, *, is_answered):
    """Raise an error in the second transaction. Its abort gets an answer if asked for."""
    sent = itertools.count(1)
    send_record = TransactionalProducer.send

    def failing_send(self, *arguments):
        if next(sent) == 4:
            self.flush()
            if not is_answered:
                client.held.add(ApiKey.END_TXN)
            raise error
        return send_record(self, *arguments)

    monkeypatch.setattr(TransactionalProducer, "send", failing_send)


def interrupt_the_close(monkeypatch):
    close = TransactionalProducer.close

    def interrupted_close(self, timeout):
        if timeout:
            raise KeyboardInterrupt
        close(self, timeout)

    monkeypatch.setattr(TransactionalProducer, "close", interrupted_close)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_aborts_by_the_close_alone_and_says_so_at_once(monkeypatch, client, error):
    monkeypatch.delattr(TransactionalProducer, "abort_transaction")
    fail_at_the_fourth_record(monkeypatch, client, error, is_answered=True)
    code, line, told = run(LONG_MS)
    assert code in (130, 143)
    assert (line["transactions"]["aborted"], line["transactions"]["open"]) == (1, 0)
    assert "takes 10 s at most; a second Ctrl-C does not wait" in told
    assert "the open transaction was aborted" in told


@pytest.mark.parametrize("is_interrupted_again", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RecordTooLargeError("too large")])
def test_a_transaction_whose_abort_was_not_answered_is_open(
    monkeypatch, client, error, is_interrupted_again
):
    monkeypatch.setattr(_send_transactions, "_CLOSE_S", 0.1)
    fail_at_the_fourth_record(monkeypatch, client, error, is_answered=False)
    if is_interrupted_again:
        interrupt_the_close(monkeypatch)
    _, line, told = run(SHORT_MS)
    assert (line["transactions"]["aborted"], line["transactions"]["open"]) == (0, 1)
    assert "could not be aborted" in told
    assert "was aborted" not in told
