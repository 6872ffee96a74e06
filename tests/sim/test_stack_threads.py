"""Calls on several threads in the whole stack: which outcomes the judge allows."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._record.implementation import IMPL
from txnproducer._shell.record_writer import RecordWriter
from txnproducer.errors import IllegalStateError, KafkaTimeoutError
from txnproducer.records import TopicPartition
from txnproducer.sim.stack.calls import InterruptError
from txnproducer.sim.stack.companion import Origin, RecordsBeside, TransactionSpans
from txnproducer.sim.stack.faults import ByteFault, ByteFaults
from txnproducer.sim.stack.options import TOPIC, StackOptions
from txnproducer.sim.stack.other_thread import ANOTHER_ENDS, TimedBlock
from txnproducer.sim.stack.run import StackRun
from txnproducer.sim.world.history import Claim, SentRecord
from txnproducer.transaction import Transaction

pytestmark = pytest.mark.skipif(
    IMPL != "python", reason="virtual time runs the parts in Python (TXNPRODUCER_IMPL=python)"
)
ORIGIN = Origin("service-0", "id-0", 1)


def calm(**changes: Any) -> StackOptions:
    """Return the options of a seed without a fault, with some changes."""
    options = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    return replace(options, **changes)


def found(run: StackRun) -> list[str]:
    return [check for check, _ in run.world.history.violations]


class Beside:
    """The records of a companion in a run that does not begin."""

    def __init__(self) -> None:
        self.run = StackRun(calm())
        self.history = self.run.world.history
        self.spans = TransactionSpans()
        self.records = RecordsBeside(self.run.judge, self.history, ORIGIN, self.spans)

    def begin(self, claim: Claim) -> None:
        self.spans.begins()
        attempt = ORIGIN.new_attempt(self.history)
        attempt.claim = claim
        self.spans.begun(attempt)

    def send(self, *claims: Claim, is_sent: bool | None = True) -> SentRecord:
        """Send a record beside the begins of so many transactions, all but the first."""
        for claim in claims[:1]:
            self.begin(claim)
        record = SentRecord(self.history, TopicPartition(TOPIC, 3), b"value", is_sent=is_sent)
        sent = self.records.add(record)
        for claim in claims[1:]:
            self.begin(claim)
        self.records.returned(sent)
        self.records.enter_records()
        return record


# --- records beside the ends of transactions ----------------------------------------------------


def test_a_run_with_a_companion_has_no_violation():
    run = StackRun(calm(has_companions=True))
    assert run.run().violations == []
    companions: list[Any] = run.judge.companions
    beside = [record for companion in companions for record in companion.sent]
    assert {record.is_sent for record in beside} >= {True, False}


def test_a_record_that_was_taken_within_a_transaction_is_in_it():
    beside = Beside()
    record = beside.send("committed")
    (attempt,) = beside.history.attempts
    assert attempt.records == [record]
    assert beside.records.surely_in(attempt) == [record]


@pytest.mark.parametrize(
    ("claims", "number", "is_sent"),
    [
        (("committed", "committed"), 1, True),
        (("committed", "aborted"), 0, None),
        (("aborted", "committed"), 1, None),
        (("unknown", "aborted"), 0, None),
        (("aborted", "aborted"), 1, None),
    ],
)
def test_a_record_beside_an_end_and_a_begin_may_be_in_either(claims, number, is_sent):
    beside = Beside()
    record = beside.send(*claims)
    assert beside.history.attempts[number].interrupted == [record]
    assert record.is_sent is is_sent
    assert [beside.records.surely_in(each) for each in beside.history.attempts] == [[], []]


def test_a_record_that_was_refused_is_in_no_transaction():
    beside = Beside()
    record = beside.send("committed", is_sent=False)
    (attempt,) = beside.history.attempts
    assert (attempt.records, attempt.interrupted) == ([], [record])
    assert record.is_sent is False


def test_a_record_that_is_taken_before_the_first_transaction_is_found():
    beside = Beside()
    beside.send()
    assert found(beside.run) == ["state"]


def test_a_record_that_is_taken_between_two_transactions_is_found():
    beside = Beside()
    beside.begin("committed")
    beside.spans.ends()
    beside.spans.ends(has_returned=True)
    record = beside.send()
    assert found(beside.run) == ["state"]
    beside.begin("committed")
    beside.records.enter_records()
    assert all(record not in (*a.records, *a.interrupted) for a in beside.history.attempts)


def test_a_record_that_is_refused_between_two_transactions_is_in_none():
    beside = Beside()
    beside.begin("committed")
    beside.spans.ends(has_returned=True)
    beside.send(is_sent=False)
    beside.send(is_sent=None)
    assert found(beside.run) == []


def test_a_record_of_a_call_that_began_before_the_end_had_returned_may_be_in_it():
    beside = Beside()
    beside.begin("committed")
    beside.spans.ends()
    sent = beside.records.add(SentRecord(beside.history, TopicPartition(TOPIC, 3), b"value"))
    beside.spans.ends(has_returned=True)
    beside.records.returned(sent)
    beside.records.enter_records()
    assert found(beside.run) == []
    assert beside.history.attempts[0].records == [sent.record]


def test_a_record_of_a_call_that_began_between_two_transactions_is_in_the_second():
    beside = Beside()
    beside.begin("committed")
    beside.spans.ends(has_returned=True)
    sent = beside.records.add(SentRecord(beside.history, TopicPartition(TOPIC, 3), b"value"))
    beside.begin("committed")
    beside.records.returned(sent)
    beside.records.enter_records()
    assert beside.history.attempts[1].records == [sent.record]


def test_a_record_in_a_transaction_without_an_outcome_must_not_be_visible():
    beside = Beside()
    beside.spans.begins()  # and its begin is interrupted
    record = beside.send()
    (attempt,) = beside.history.attempts
    assert attempt.records == [record]
    assert attempt.final_claim == "aborted"


def test_a_flush_that_leaves_a_record_under_way_is_found():
    class UnderWay(FutureRecordMetadata):
        def __init__(self) -> None: ...

        def done(self) -> bool:
            return False

    beside = Beside()
    record = beside.send("committed")
    record.future = UnderWay()
    beside.run.judge.flushed("service-0", [record])
    assert found(beside.run) == ["told"]


# --- the end on another thread ------------------------------------------------------------------


def test_a_run_with_ends_on_another_thread_has_no_violation():
    run = StackRun(calm(call_rates={ANOTHER_ENDS: 0.8}))
    result = run.run()
    assert result.violations == []
    assert result.faults[ANOTHER_ENDS] > 3


# --- the begin and the end of a block -----------------------------------------------------------


class Calls:
    """A producer that takes seconds of virtual time for an end, which may fail then."""

    def __init__(self, run: StackRun, seconds: float, error: BaseException | None = None) -> None:
        self._run, self._seconds, self._error = run, seconds, error

    def begin(self, _: Transaction) -> None:
        self.commit_transaction()

    def commit_transaction(self) -> None:
        self._run.world.baton.wait(lambda: False, self._seconds)
        if self._error is not None:
            raise self._error

    abort_transaction = commit_transaction


def timed(begin: Calls, end: Calls, run: StackRun) -> TimedBlock:
    calls: Any = end  # only its ends are called
    return TimedBlock(run.world, run.judge, "service-0", Transaction(calls, begin.begin))


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"), [(0, 2, []), (0, 4, ["hangs"]), (4, 0, ["hangs"])]
)
def test_a_block_is_held_to_the_limits_of_calls(begin_s, end_s, expected):
    run = StackRun(calm(settings={**calm().settings, "max_block_ms": 30_000}))
    with timed(Calls(run, begin_s), Calls(run, end_s), run) as _:
        pass
    assert found(run) == expected


def test_a_begin_that_gives_up_before_its_time_is_found():
    run = StackRun(replace(calm(), call_rates={"wrong call": 0.1}))
    block = timed(Calls(run, 0.1, KafkaTimeoutError("no answer")), Calls(run, 0), run)
    with pytest.raises(KafkaTimeoutError), block:
        pass
    assert found(run) == ["early"]
    assert not block.is_inside


def test_an_abort_in_the_end_of_a_block_may_take_the_time_of_one_call():
    run = StackRun(
        replace(calm(), has_rival=True, settings={**calm().settings, "max_block_ms": 1_000})
    )
    block = timed(Calls(run, 0), Calls(run, 3), run)
    with pytest.raises(InterruptError), block:
        raise InterruptError
    assert found(run) == ["hangs"]


# --- names, logins and the time of day ----------------------------------------------------------


@pytest.mark.parametrize("name", ["jump of the wall clock", "move a name"])
def test_a_run_goes_on_after_each_event(name):
    result = StackRun(calm(event_s={name: 0.3})).run()
    assert result.violations == []
    assert result.faults[name] > 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_run_goes_on_after_one_broker_has_refused_logins(mechanism):
    options = calm(users=True, session_ms=500, mechanism=mechanism)
    run = StackRun(replace(options, event_s={"refuse logins of one broker": 0.5}))
    result = run.run()
    assert result.violations == []
    assert result.faults["refuse logins of one broker"] > 0
    assert run.world.network.refusals.renewals > 0


@pytest.mark.parametrize("name", ["refuse logins", "refuse logins of one broker"])
def test_an_event_that_meets_nobody_does_not_count(name):
    result = StackRun(calm(users=False, event_s={name: 0.3})).run()
    assert result.faults[name] == 0


def test_a_fault_at_the_bytes_counts_when_it_takes_effect():
    faults = ByteFaults({ByteFault.PIECES: 1.0, ByteFault.SILENT: 1.0}, random.Random(1))
    assert faults.draw().kind is ByteFault.SILENT
    assert faults.piece(1) == 1  # one byte cannot be divided
    assert not faults.counts
    while faults.piece(100) == 100:
        pass
    assert faults.counts == {"bytes in small pieces": 1}


def test_a_refusal_in_an_open_transaction_is_found(monkeypatch):
    send = RecordWriter._send_any

    def refuse(*arguments: Any) -> Any:
        if threading.current_thread().name.endswith("companion"):
            raise IllegalStateError("records cannot be sent")
        return send(*arguments)

    monkeypatch.setattr(RecordWriter, "_send_any", refuse)
    violations = StackRun(calm(has_companions=True)).run().violations
    assert {check for check, _ in violations} == {"needless", "state"}
