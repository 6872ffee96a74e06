"""A transaction as a `with` block: how it ends, and which exception the caller sees."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from txnproducer.transaction import Transaction


class FakeProducer:
    """A producer that keeps the outcome as the real one does. Each call can be made to fail."""

    def __init__(self, **failures):
        self.failures = failures
        self.calls = []
        self.current = transaction_of(self)

    def begin(self, transaction):
        self._do("begin")
        self.current = transaction

    def commit_transaction(self):
        self._end("commit", "committed")

    def abort_transaction(self):
        self._end("abort", "aborted")

    def send(self, *args):
        self._do("send")
        return args

    def send_offsets_to_transaction(self, offsets, group_metadata):
        self._do("send_offsets")

    def _end(self, call, outcome):
        try:
            self._do(call)
        except CommitOutcomeUnknownError:
            self.current.outcome = "unknown"
            raise
        self.current.outcome = outcome

    def _do(self, call):
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]


def transaction_of(producer):
    return Transaction(producer, producer.begin)


def test_a_block_that_ends_well_is_committed():
    producer = FakeProducer()
    with transaction_of(producer) as txn:
        assert txn.outcome == "open"
    assert txn.outcome == "committed"
    assert producer.calls == ["begin", "commit"]


@pytest.mark.parametrize(
    "leaving",
    [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit],
)
def test_any_exception_aborts_and_goes_on_to_the_caller(leaving):
    producer = FakeProducer()
    error = leaving("mine")
    with pytest.raises(leaving) as caught:
        with transaction_of(producer) as txn:
            raise error
    assert caught.value is error
    assert txn.outcome == "aborted"
    assert producer.calls == ["begin", "abort"]


def test_a_generator_that_is_dropped_aborts_its_transaction():
    producer = FakeProducer()

    def records():
        with transaction_of(producer):
            yield 1

    iterator = records()
    next(iterator)
    iterator.close()
    assert producer.calls == ["begin", "abort"]


@pytest.mark.parametrize("failure", [ProducerFencedError("fenced"), ZeroDivisionError()])
def test_the_log_of_a_failing_abort_has_a_traceback_unless_kafka_explains_it(failure, caplog):
    with pytest.raises(ValueError, match="mine"), transaction_of(FakeProducer(abort=failure)):
        raise ValueError("mine")
    assert f"could not abort the transaction after ValueError('mine'): {failure}" in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(failure, ZeroDivisionError)


def test_a_failing_abort_is_a_note_on_the_users_exception():
    producer = FakeProducer(abort=ProducerFencedError("newer producer"))
    with pytest.raises(ValueError, match="mine") as caught:
        with transaction_of(producer):
            raise ValueError("mine")
    [note] = caught.value.__notes__
    assert "Aborting the transaction failed too" in note
    assert "ProducerFencedError: newer producer" in note


def test_an_interrupt_during_the_abort_is_obeyed():
    producer = FakeProducer(abort=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        with transaction_of(producer):
            raise ValueError("mine")
    assert isinstance(caught.value.__context__, ValueError)


@pytest.mark.parametrize("is_own_end", [True, False])
def test_a_block_ends_well_after_an_abort_only_if_it_was_the_callers_own(is_own_end):
    producer = FakeProducer(commit=ProducerFencedError())
    ends = contextlib.nullcontext() if is_own_end else pytest.raises(ProducerFencedError)
    with ends, transaction_of(producer) as transaction:
        transaction.settle("aborted", is_own_end=is_own_end)
    assert transaction.outcome == "aborted"


def test_a_commit_that_asks_for_an_abort_is_aborted_and_its_error_raised():
    error = TransactionAbortableError("a record failed")
    producer = FakeProducer(commit=error)
    with pytest.raises(TransactionAbortableError) as caught:
        with transaction_of(producer) as txn:
            pass
    assert caught.value is error
    assert txn.outcome == "aborted"
    assert producer.calls == ["begin", "commit", "abort"]


def test_a_commit_that_times_out_stays_open_and_is_not_aborted():
    producer = FakeProducer(commit=KafkaTimeoutError("slow"))
    with pytest.raises(KafkaTimeoutError):
        with transaction_of(producer) as txn:
            pass
    assert txn.outcome == "open"
    assert producer.calls == ["begin", "commit"]
    producer.failures.clear()
    producer.commit_transaction()
    assert txn.outcome == "committed"


def test_a_commit_that_is_interrupted_stays_open_and_is_not_aborted():
    producer = FakeProducer(commit=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        with transaction_of(producer) as txn:
            pass
    assert txn.outcome == "open"
    assert producer.calls == ["begin", "commit"]


def test_an_unknown_outcome_is_called_unknown():
    producer = FakeProducer(commit=CommitOutcomeUnknownError())
    with pytest.raises(CommitOutcomeUnknownError):
        with transaction_of(producer) as txn:
            pass
    assert txn.outcome == "unknown"
    assert producer.calls == ["begin", "commit"]


def test_a_fatal_commit_error_is_raised_without_a_useless_abort():
    producer = FakeProducer(commit=ProducerFencedError())
    with pytest.raises(ProducerFencedError):
        with transaction_of(producer):
            pass
    assert producer.calls == ["begin", "commit"]


def test_a_commit_that_failed_in_the_block_is_followed_by_an_abort_that_may_not_know():
    producer = FakeProducer(
        commit=KafkaTimeoutError("slow"), abort=CommitOutcomeUnknownError("sent already")
    )
    with pytest.raises(KafkaTimeoutError) as caught:
        with transaction_of(producer) as txn:
            producer.commit_transaction()
    assert txn.outcome == "unknown"
    assert "outcome: unknown" in caught.value.__notes__[0]


def test_a_block_may_end_its_transaction_itself():
    producer = FakeProducer()
    with transaction_of(producer) as txn:
        producer.abort_transaction()
    assert txn.outcome == "aborted"
    assert producer.calls == ["begin", "abort"]


def test_an_exception_after_an_explicit_commit_does_not_abort():
    producer = FakeProducer()
    error = ValueError("later")

    def commit_and_fail():
        producer.commit_transaction()
        raise error

    txn = transaction_of(producer)
    with pytest.raises(ValueError, match="later"):
        with txn:
            commit_and_fail()
    assert txn.outcome == "committed"
    assert producer.calls == ["begin", "commit"]


def test_a_transaction_that_cannot_begin_runs_no_block_and_ends_nothing():
    producer = FakeProducer(begin=IllegalStateError("init first"))
    with pytest.raises(IllegalStateError, match="init first"):
        with transaction_of(producer):
            pytest.fail("the block ran")
    assert producer.calls == ["begin"]


def test_a_transaction_is_used_once():
    txn = transaction_of(FakeProducer())
    with txn:
        pass
    with pytest.raises(IllegalStateError, match="used once"):
        with txn:
            pytest.fail("the block ran")


def test_send_goes_through_while_it_is_open_only():
    producer = FakeProducer()
    txn = transaction_of(producer)
    with pytest.raises(IllegalStateError, match="not begun"):
        txn.send("t", b"v")
    with txn:
        assert txn.send("t", b"v")[:2] == ("t", b"v")
        txn.send_offsets({}, None)
    with pytest.raises(IllegalStateError, match="outcome: committed"):
        txn.send("t", b"v")
    assert producer.calls == ["begin", "send", "send_offsets", "commit"]


def test_its_repr_shows_the_outcome():
    txn = transaction_of(FakeProducer())
    assert repr(txn) == "<Transaction not begun>"
    with txn:
        assert repr(txn) == "<Transaction open>"
    assert repr(txn) == "<Transaction committed>"
