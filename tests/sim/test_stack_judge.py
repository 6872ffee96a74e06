"""The judge of the whole stack finds planted mistakes of a producer."""

from __future__ import annotations

import functools
import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._record.implementation import IMPL
from txnproducer._shell.record_writer import RecordWriter
from txnproducer.errors import IllegalStateError, KafkaTimeoutError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack import work
from txnproducer.sim.stack.calls import ServiceCalls
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.other_thread import ANOTHER_ENDS
from txnproducer.sim.stack.run import StackRun
from txnproducer.sim.stack.sending import RecordSending
from txnproducer.sim.world.history import Attempt

pytestmark = pytest.mark.skipif(
    IMPL != "python", reason="virtual time runs the parts in Python (TXNPRODUCER_IMPL=python)"
)
SEND = RecordWriter._send_any


def calm(**changes: Any) -> StackOptions:
    """Return the options of a seed without a fault, with some changes."""
    options = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    return replace(options, **changes)


def checks(options: StackOptions) -> set[str]:
    """Run the options. Return the checks that found something."""
    return {check for check, _ in StackRun(options).run().violations}


@pytest.mark.parametrize("kind", [TypeError, ValueError, AssertionError])
@pytest.mark.parametrize("rates", [{}, {"interrupt at a call": 0.1}])
def test_a_call_that_raises_no_kafka_error_is_found(monkeypatch, kind, rates):
    rng = random.Random(1)

    def send(*arguments: Any) -> Any:
        if rng.random() < 0.05:
            raise kind("planted")
        return SEND(*arguments)

    monkeypatch.setattr(RecordWriter, "_send_any", send)
    assert "crash" in checks(calm(call_rates=rates))


def test_a_time_of_day_that_was_read_in_an_earlier_call_is_found(monkeypatch):
    read: dict[tuple[int, threading.Thread], int] = {}

    def send(producer: Any, *arguments: Any) -> Any:
        topic, value, key, headers, partition, stamp_ms, on_delivery = arguments
        if stamp_ms is None:
            caller = id(producer), threading.current_thread()
            if caller not in read:
                read[caller] = producer._platform.wall_clock_ms()
            stamp_ms = read[caller]
        return SEND(producer, topic, value, key, headers, partition, stamp_ms, on_delivery)

    monkeypatch.setattr(RecordWriter, "_send_any", send)
    assert "content" in checks(calm())


def test_an_end_after_that_of_another_thread_is_found(monkeypatch):
    abort = TransactionalProducer.abort_transaction

    @functools.wraps(abort)
    def abort_again(producer: TransactionalProducer) -> None:
        try:
            abort(producer)
        except IllegalStateError:
            if "other" in threading.current_thread().name:
                raise

    # Two aborts: a commit and an abort that both succeed are found as such.
    monkeypatch.setattr(work, "ENDS", ("abort_transaction",))
    monkeypatch.setattr(TransactionalProducer, "abort_transaction", abort_again)
    assert checks(calm(call_rates={ANOTHER_ENDS: 0.8})) == {"state"}


@pytest.mark.parametrize("answer", [None, ()])
def test_partitions_that_a_topic_does_not_have_are_found(monkeypatch, answer):
    monkeypatch.setattr(RecordWriter, "partitions_for", lambda *_: answer)
    assert checks(calm()) == {"told"}


def test_no_call_is_wrong_where_another_thread_may_have_ended_the_transaction():
    for seed in range(3):
        options = calm(seed=seed, call_rates={ANOTHER_ENDS: 0.8, "wrong call": 1.0})
        assert checks(options) == set()


def failed_future() -> FutureRecordMetadata:
    """Return the future of a record that no transaction has taken."""

    # Made here, since the compiled class has no children.
    class Failed(FutureRecordMetadata):
        error = KafkaTimeoutError("no metadata")

        def __init__(self) -> None: ...

        def done(self) -> bool:
            return True

        def __repr__(self) -> str:
            return "failed"

    return Failed()


@pytest.mark.parametrize(("is_ended_beside", "found"), [(True, []), (False, ["told"])])
def test_a_committed_transaction_lacks_no_record_that_failed_beside_its_end(
    is_ended_beside, found
):
    run = StackRun(calm())
    attempt = Attempt("service-0.1.0", "service-0", "id-0", 1, 0)

    class Producer:
        """A producer that cannot take a record while another thread commits."""

        _platform = run.world.platform

        def send(self, *_: Any) -> FutureRecordMetadata:
            attempt.is_commit_asked = is_ended_beside
            return failed_future()

    rng = random.Random(1)
    calls, producer = ServiceCalls(run.world, run.judge, "service-0", rng), Producer()
    wanted: Any = producer
    RecordSending(run.world, run.judge, calls, rng, wanted, "service-0.1").send_some(attempt, 1)
    run.judge.ended(attempt)
    assert [check for check, _ in run.world.history.violations] == found


def test_a_fifth_of_the_runs_is_undisturbed():
    drawn = [StackOptions.draw(seed) for seed in range(2_000)]
    # A tenth has no fault at all.
    assert sum(each.is_undisturbed for each in drawn) / len(drawn) > 0.1 + 0.9 * 0.2 - 0.02
