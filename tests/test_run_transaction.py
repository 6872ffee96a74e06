"""A function in a transaction, run again where the failure allows it and nowhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tests.live_client import SHORT_MS, commits_sent
from txnproducer import errors
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import transaction_runs
from txnproducer._shell.refusals import timed_out
from txnproducer._shell.runs_in_threads import as_kinds, run_in_thread
from txnproducer._shell.transaction_runs import NEXT, Attempt, Bounds, Next
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    Recovery,
    TransactionAbortableError,
)

ABORT = TransactionAbortableError("abort")
TIMED_OUT = KafkaTimeoutError("not yet")
UNKNOWN = CommitOutcomeUnknownError("lost")
FENCED = ProducerFencedError("fenced")
TAKEN = ProducerFencedError(
    "the transaction is lost: a newer producer of this id, epoch 7, has taken over (id 'x')"
)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)


class Producer:
    """Its commits, aborts and resolutions end as a test says, one after the other."""

    def __init__(self, commits=(), aborts=(), resolved=()):
        self.commits, self.aborts, self.resolved = list(commits), list(aborts), list(resolved)
        self.log: list[str] = []
        self.outcome = "open"
        self.transaction_state = "READY"

    def transaction(self):
        self.log.append("begin")
        self.outcome = "open"
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.abort_transaction()
            return
        try:
            self.commit_transaction()
        except KafkaError as failure:
            if failure.recovery == "abort":
                self.abort_transaction()
            raise

    def commit_transaction(self):
        self.log.append("commit")
        error = self.commits.pop(0) if self.commits else None
        if isinstance(error, CommitOutcomeUnknownError):
            self.outcome = "unknown"
        if error is not None:
            raise error
        self.outcome = "committed"

    def abort_transaction(self):
        self.log.append("abort")
        error = self.aborts.pop(0) if self.aborts else None
        if isinstance(error, IllegalStateError):
            self.outcome = "committed"  # the commit was faster
        elif isinstance(error, CommitOutcomeUnknownError):
            self.outcome = "unknown"
        if error is not None:
            raise error
        self.outcome = "aborted"

    def resolve_outcome(self):
        self.log.append("resolve")
        self.outcome = self.resolved.pop(0)
        return self.outcome


def run(producer, fn=lambda transaction: "value", is_written=None, **bounds):
    return run_in_thread(producer, fn, Bounds(**bounds), is_written)


# --- the table -----------------------------------------------------------------------------------


def test_every_recovery_has_a_next_step():
    assert set(NEXT) == set(get_args(Recovery))
    assert set(NEXT.values()) == set(Next)


def kinds(parent: type[KafkaError] = KafkaError) -> Iterator[type[KafkaError]]:
    yield parent
    for kind in parent.__subclasses__():
        if kind.__module__.startswith("txnproducer.errors"):
            yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=lambda kind: str(kind)))
def test_a_commit_that_fails_with_any_error_is_followed_by_the_step_of_its_recovery(kind):
    error = kind("of the cluster")
    producer = Producer(commits=[error], resolved=["aborted"])
    following = NEXT[error.recovery]
    if following is Next.RUN_AGAIN:
        assert run(producer) == "value"
        assert producer.log == ["begin", "commit", "abort", "begin", "commit"]
    elif following is Next.GO_ON:
        assert run(producer) == "value"
        assert producer.log == ["begin", "commit", "commit"]
    elif kind is CommitOutcomeUnknownError:
        assert run(producer) == "value"
        assert producer.log == ["begin", "commit", "resolve", "begin", "commit"]
    else:
        with pytest.raises(kind):
            run(producer)
        assert producer.log == ["begin", "commit"]


# --- aborted transactions ------------------------------------------------------------------------


def test_the_value_is_that_of_the_run_that_was_committed():
    producer, values = Producer(commits=[ABORT, ABORT]), iter(range(9))
    assert run(producer, lambda _: next(values)) == 2
    assert producer.log.count("begin") == 3


def test_the_last_error_is_raised_when_all_attempts_have_failed():
    last = TransactionAbortableError("the last one")
    producer = Producer(commits=[ABORT, last])
    seen: list[Attempt] = []
    with pytest.raises(TransactionAbortableError) as found:
        run(producer, attempts=2, on_retry=seen.append)
    assert found.value is last
    assert [(each.number, each.error) for each in seen] == [(1, ABORT)]
    assert isinstance(seen[0], Attempt)


def test_no_run_begins_after_the_time():
    producer = Producer(commits=[ABORT] * 9)

    def slow(_):
        time.sleep(0.02)  # longer than the time for all runs

    with pytest.raises(TransactionAbortableError):
        run(producer, slow, timeout_s=0.01)
    assert producer.log.count("begin") == 1


def test_the_functions_own_exception_is_raised_unless_it_is_named():
    class Mine(Exception):  # noqa: N818 - any exception
        pass

    failures = [Mine("once")]

    def fail_once(_):
        if failures:
            raise failures.pop()
        return "value"

    producer = Producer()
    with pytest.raises(Mine):
        run(producer, fail_once)
    assert producer.log == ["begin", "abort"]
    failures.append(Mine("once"))
    assert run(producer, fail_once, retry_on=(Mine,)) == "value"


def test_a_time_out_in_the_function_aborts_and_runs_again():
    failures: list[KafkaError] = [KafkaTimeoutError("of a flush")]

    def fail_once(_):
        if failures:
            raise failures.pop()

    producer = Producer()
    run(producer, fail_once)
    assert producer.log == ["begin", "abort", "begin", "commit"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_runs(stop):
    def interrupt(_):
        raise stop

    producer = Producer()
    with pytest.raises(stop):
        run(producer, interrupt, retry_on=(BaseException,))
    assert producer.log == ["begin", "abort"]


def test_an_id_that_another_producer_has_taken_is_not_taken_back():
    error = TransactionAbortableError(str(TAKEN))
    producer = Producer(commits=[error])
    with pytest.raises(TransactionAbortableError):
        run(producer)
    assert producer.log == ["begin", "commit", "abort"]


# --- commits that time out -----------------------------------------------------------------------


def test_a_commit_that_does_not_end_is_aborted_at_the_end():
    producer = Producer(commits=[timed_out("commit_transaction", 100) for _ in range(9)])
    with pytest.raises(KafkaTimeoutError, match="aborted then, and nothing of it") as given_up:
        run(producer, attempts=3)
    assert "call commit_transaction() again" not in str(given_up.value)
    assert producer.log == ["begin", *["commit"] * 4, "abort"]
    assert producer.outcome == "aborted"


@pytest.mark.parametrize(
    ("aborts", "resolved", "raises"),
    [
        ([IllegalStateError("it was committed")], [], None),
        ([UNKNOWN], ["committed"], None),
        ([UNKNOWN], ["unknown"], CommitOutcomeUnknownError),
        ([TIMED_OUT], [], KafkaTimeoutError),
        ([FENCED], [], ProducerFencedError),
    ],
)
def test_an_abort_after_it_ends_in_its_four_ways(aborts, resolved, raises):
    producer = Producer(commits=[TIMED_OUT] * 2, aborts=aborts, resolved=resolved)
    if raises is None:
        assert run(producer, attempts=1) == "value"
    else:
        with pytest.raises(raises):
            run(producer, attempts=1)
    assert producer.log.count("begin") == 1


def test_a_late_commit_that_is_refused_is_aborted_and_run_again():
    producer = Producer(commits=[TIMED_OUT, ABORT])
    assert run(producer) == "value"
    assert producer.log == ["begin", "commit", "commit", "abort", "begin", "commit"]


# --- commits in doubt ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolved", "written", "runs"),
    [("committed", None, 1), ("aborted", None, 2), ("unknown", True, 1)],
)
def test_a_commit_in_doubt_is_resolved_before_anything_is_written_again(resolved, written, runs):
    producer = Producer(commits=[UNKNOWN], resolved=[resolved])
    looks = None if written is None else lambda: written
    assert run(producer, is_written=looks) == "value"
    assert producer.log.count("begin") == runs


@pytest.mark.parametrize("failing", ["resolve", "look"])
def test_a_failure_to_find_out_leaves_the_doubt(failing):
    producer = Producer(commits=[UNKNOWN], resolved=["unknown"])

    def fail(*_):
        raise TIMED_OUT

    if failing == "resolve":
        producer.resolve_outcome = fail  # type: ignore[method-assign]
    with pytest.raises(CommitOutcomeUnknownError) as found:
        run(producer, is_written=fail)
    assert found.value.__cause__ is TIMED_OUT
    assert "could not be found out" in found.value.__notes__[-1]


def test_nothing_is_run_again_by_a_producer_that_has_failed():
    producer = Producer(commits=[UNKNOWN], resolved=["aborted"])
    producer.transaction_state = "FATAL_ERROR"
    with pytest.raises(CommitOutcomeUnknownError) as found:
        run(producer)
    assert "says that it is aborted" in found.value.__notes__[-1]
    assert producer.log.count("begin") == 1


def test_a_function_that_commits_by_itself_and_fails_is_not_run_again():
    producer = Producer()

    def commit(transaction):
        transaction.commit_transaction()
        raise ABORT

    producer.abort_transaction = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TransactionAbortableError) as found:
        run(producer, commit)
    assert "committed all the same" in found.value.__notes__[-1]


@pytest.mark.parametrize("written", [None, False])
def test_a_doubt_that_stays_is_raised_and_nothing_is_written_again(written):
    producer = Producer(commits=[UNKNOWN], resolved=["unknown"])
    looks = None if written is None else lambda: written
    with pytest.raises(CommitOutcomeUnknownError):
        run(producer, is_written=looks)
    assert producer.log.count("begin") == 1


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_that_make_no_sense_are_refused_by_name():
    async def asynchronous(_):
        raise NotImplementedError

    for bounds, told in (({"attempts": 0}, "attempts=0"), ({"timeout_s": 0}, "timeout=0")):
        with pytest.raises(ValueError, match=told):
            run(Producer(), **bounds)
    for arguments in ({"fn": asynchronous}, {"is_written": asynchronous}):
        with pytest.raises(TypeError, match="coroutine function"):
            run(Producer(), **arguments)
    for given in ({"attempts": "3"}, {"timeout_s": "3"}, {"on_retry": 5}):
        with pytest.raises(TypeError, match=rf"^{next(iter(given)).removesuffix('_s')} must be "):
            run(Producer(), **given)


def test_a_function_that_has_only_begun_is_refused_and_its_transaction_aborted():
    async def asynchronous():
        raise NotImplementedError

    async def asynchronous_generator():
        yield

    functions = (
        lambda _: asynchronous(),
        lambda _: asynchronous_generator(),
        lambda _: (number for number in range(3)),
    )
    for function in functions:
        producer = Producer()
        with pytest.raises(TypeError, match="has not run to its end"):
            run(producer, function, retry_on=(Exception,))
        assert producer.log == ["begin", "abort"], "it would not do better if it were run again"


def test_a_look_that_returns_a_coroutine_is_no_yes():
    async def look():
        raise NotImplementedError

    producer = Producer(commits=[UNKNOWN], resolved=["unknown"])
    with pytest.raises(CommitOutcomeUnknownError) as found:
        run(producer, is_written=lambda: look())
    assert "has not run to its end" in found.value.__notes__[-1]


def test_exceptions_to_retry_on_may_be_one_or_several_and_are_checked_at_once():
    assert as_kinds(ValueError) == (ValueError,)
    assert as_kinds([ValueError, OSError]) == as_kinds((ValueError, OSError))
    wrong: tuple[Any, ...] = ("ValueError", 5, [ValueError()], int)
    for given in wrong:
        with pytest.raises(TypeError, match="retry_on: give classes of exceptions"):
            as_kinds(given)


# --- the producer --------------------------------------------------------------------------------


def test_a_producer_runs_a_function_until_it_is_committed(ready, client):
    client.prepare_produce(error_code=47)  # INVALID_PRODUCER_EPOCH: the transaction is aborted
    seen: list[Attempt] = []

    def write(transaction: Any) -> str:
        transaction.send("topic", b"value", partition=0)
        return str(transaction.outcome)

    assert ready.run_transaction(write, on_retry=seen.append) == "open"
    assert commits_sent(client)[-1] is True
    assert len(seen) == 1


def test_a_function_may_return_the_future_of_its_record(ready, client):
    future = ready.run_transaction(lambda txn: txn.send("topic", b"value", partition=0))
    assert future.result(0).topic == "topic"


def test_a_producer_waits_for_the_same_commit(ready, client):
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    calls = []

    def write(transaction):
        calls.append(transaction)
        transaction.send("topic", b"value")

    waits = []
    usual = ready.commit_transaction

    def commit():
        waits.append(1)
        if len(waits) == 3:
            client.release(ApiKey.END_TXN)
        usual()

    ready.commit_transaction = commit
    ready.run_transaction(write)
    assert len(calls) == 1
    assert len(waits) >= 3
    assert commits_sent(client) == [True]


def test_a_run_in_a_run_is_refused(ready):
    def nest(_):
        ready.run_transaction(lambda _: None)

    with pytest.raises(IllegalStateError, match="transaction"):
        ready.run_transaction(nest)
    assert ready.transaction_state == "READY"


def test_the_waits_grow(monkeypatch):
    monkeypatch.undo()
    waits: list[float] = []
    bounds = Bounds(attempts=6)

    def fail():
        raise ABORT

    with pytest.raises(TransactionAbortableError):
        bounds.retrying("Retrying", lambda _: True, waits.append)(fail)
    assert waits == sorted(waits)
    assert waits[0] < 0.2 < waits[-1]


assert errors  # all classes are loaded


def test_a_function_that_prepares_its_transaction_is_refused():
    producer = Producer()

    def prepare(_):
        producer.transaction_state = "PREPARED_TRANSACTION"

    with pytest.raises(IllegalStateError, match="the function has prepared the transaction"):
        run(producer, prepare)


def group(*errors):
    return ExceptionGroup("tasks", errors)


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (group(ABORT), 2),
        (group(ABORT, TIMED_OUT), 2),
        (group(group(ABORT), ABORT), 2),
        (group(ABORT, OSError(), ConnectionError()), 2),
        (group(OSError()), 2),
        (group(ABORT, ValueError()), 1),
        (group(group(ValueError()), ABORT), 1),
        (group(ABORT, TAKEN), 1),
        (group(errors.RecordTooLargeError("large")), 1),
        (BaseExceptionGroup("tasks", [ABORT, KeyboardInterrupt()]), 1),
    ],
)
def test_a_group_of_errors_is_repeated_if_each_of_them_would_be(failure, calls):
    producer, failures = Producer(), [failure]

    def fail_once(_):
        if failures:
            raise failures.pop()

    if calls == 1:
        with pytest.raises(type(failure)):
            run(producer, fail_once, retry_on=(OSError,))
    else:
        run(producer, fail_once, retry_on=(OSError,))
    assert producer.log.count("begin") == calls


def test_a_group_is_not_repeated_by_a_producer_that_has_failed():
    producer, failures = Producer(), [group(FENCED)]

    def fail_once(_):
        producer.transaction_state = "FATAL_ERROR"
        raise failures.pop()

    with pytest.raises(ExceptionGroup):
        run(producer, fail_once)
    assert producer.log.count("begin") == 1


def test_a_group_is_not_repeated_before_its_transaction_is_aborted(monkeypatch):
    producer = Producer()
    # The abort has failed, and is only logged.
    monkeypatch.setattr(Producer, "abort_transaction", lambda _: None)

    def fail(_):
        raise group(ABORT)

    with pytest.raises(ExceptionGroup):
        run(producer, fail)
    assert producer.log.count("begin") == 1


def test_a_coroutine_function_is_refused_as_on_retry():
    async def on_retry(_):
        raise AssertionError

    with pytest.raises(TypeError, match=r"coroutine function.* on_retry is called without await"):
        Bounds(on_retry=on_retry)


def test_an_interrupted_import_leaves_no_half_made_modules(monkeypatch):
    kept = {name: each for name, each in sys.modules.items() if name.startswith("tenacity")}
    assert "tenacity.stop" in kept

    def interrupt(_self, name, *_):
        if name == "tenacity":
            raise KeyboardInterrupt

    for name, each in kept.items():
        monkeypatch.setitem(sys.modules, name, each)  # put back at the end
    del sys.modules["tenacity"]
    finder = type("Finder", (), {"find_spec": interrupt})()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        transaction_runs.waits()
    assert not [name for name in sys.modules if name.startswith("tenacity")]
