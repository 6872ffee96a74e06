"""Atomicity "batch" without Spark and without a broker: digests, rules, runs."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.spark.whole_batches import BATCH, ENTRY, SETTINGS, SparkError, part
from txnproducer.errors import (
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
)
from txnproducer.spark import LedgerError
from txnproducer.spark.driver.batch_retries import RunBounds
from txnproducer.spark.errors import BatchFailedError, ReplayMismatchError
from txnproducer.spark.ledger.digest import Digest, total
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.rules import LedgerRules, check_whole_replay
from txnproducer.spark.options import check_batch_atomicity
from txnproducer.spark.session import losses_of
from txnproducer.spark.tasks.participant import _is_users

# --- digests, rules, options ---------------------------------------------------------------------


def test_the_digest_of_parts_is_that_of_all_their_rows():
    parts = [Digest(), Digest()]
    together = Digest()
    for n in range(10):
        parts[n % 2].add("t", None, None, b"%d" % n)
        together.add("t", None, None, b"%d" % n)
    assert total(part.hex() for part in parts) == together.hex()
    assert total([]) == Digest().hex()


@pytest.mark.parametrize(("rows", "digest"), [(8, "0" * 32), (7, "0" * 31 + "1"), (0, "0" * 32)])
def test_a_committed_batch_that_comes_with_other_rows_is_an_error_with_the_ways_out(rows, digest):
    check_whole_replay(ENTRY, 7, "0" * 32)
    with pytest.raises(ReplayMismatchError, match="checkpoint was set back") as caught:
        check_whole_replay(ENTRY, rows, digest)
    assert f"7 rows (digest {'0' * 32}) were committed, now there are {rows} " in str(caught.value)
    assert 'on_replay_mismatch="keep"' in str(caught.value)


def test_the_ledger_of_whole_batches_is_checked_as_the_others_are():
    def check_whole(*which, missing="stop", taken=False):
        return LedgerRules(missing).check_whole(*which, is_taken_over=taken)

    assert check_whole(ENTRY, 3, "query") == ENTRY
    assert check_whole(ENTRY, 4, "query") is None
    assert check_whole(None, 0, "query") is None
    for entry, batch_id, query_id, why in (
        (ENTRY, 3, "other", "another query"),
        (ENTRY, 2, "query", "rewound"),
        (None, 1, "query", "no ledger"),
    ):
        with pytest.raises(LedgerError, match=why):
            check_whole(entry, batch_id, query_id)
    for entry, batch_id, query_id in ((ENTRY, 3, "other"), (ENTRY, 2, "query"), (None, 1, "q")):
        assert check_whole(entry, batch_id, query_id, missing="write", taken=True) is None


def test_arguments_that_do_not_go_with_whole_batches_are_refused():
    check_batch_atomicity("topic", None)
    with pytest.raises(InvalidConfigurationError, match="topic is needed"):
        check_batch_atomicity(None, None)
    with pytest.raises(InvalidConfigurationError, match="writers=3"):
        check_batch_atomicity("topic", 3)


# --- runs ----------------------------------------------------------------------------------------


def test_a_batch_is_leased_written_and_committed(whole):
    make, log = whole
    batches = make()
    assert batches.enter(BATCH, SETTINGS) is None
    parts, entry = batches.write(BATCH, lambda lease, _: [part()] * lease.claims)
    assert (len(parts), entry) == (2, None)
    assert log == [
        *("glance", "take", "look"),
        *("begin", "lease 2", "adopt 2", "entry of 10 rows", "tell", "commit", "tell"),
    ]


def test_a_batch_that_is_there_is_not_written_again(whole):
    make, log = whole
    assert make(found=[ENTRY]).enter(BATCH, SETTINGS) == ENTRY
    assert log == ["glance", "take", "look"]


def test_a_query_that_has_to_stop_takes_no_transaction(whole):
    make, log = whole
    with pytest.raises(LedgerError):
        make(found=[ENTRY]).enter(LedgerBatch(3, "other", 2), SETTINGS)
    assert log == ["glance"]


def test_a_frame_without_tasks_is_recorded_without_a_lease(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    parts, _ = batches.write(LedgerBatch(3, "query", 0), lambda *_: pytest.fail("no task"))
    assert parts == []
    assert "entry of 0 rows" in log
    assert not any("lease" in entry for entry in log)


def test_a_failed_part_has_the_batch_aborted_and_run_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    tries = [[part("lost"), part()], [part(), part()]]
    parts, _ = batches.write(BATCH, lambda *_: tries.pop(0))
    assert len(parts) == 2
    assert log.count("abort") == 1
    assert log.count("commit") == 1
    assert log.count("lease 2") == 2


def test_it_is_run_three_times_at_most(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchFailedError, match="partition 1 is lost"):
        batches.write(BATCH, lambda *_: [part(), part("partition 1 is lost")])
    assert log.count("abort") == 3
    assert "commit" not in log


def test_an_error_that_the_user_has_to_fix_is_not_retried(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchFailedError, match="too large") as caught:
        batches.write(BATCH, lambda *_: [part("too large", "fix")])
    assert str(caught.value.recovery) == "fix"
    assert log.count("abort") == 1


def test_an_error_of_spark_is_raised_in_the_end(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    seeks: list[bool] = []

    def run(_, is_last):
        seeks.append(is_last)
        raise SparkError("in the frame")

    with pytest.raises(SparkError):
        batches.write(BATCH, run)
    assert log.count("abort") == 3
    # The last time, attempts that may not write look for what failed the first.
    assert seeks == [False, False, True]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of the driver's own code"),
        SparkError("... txnproducer.spark.errors.SinkError: a row is for partition 9"),
        SparkError("... txnproducer.spark.errors.SchemaError: a row's topic is null"),
    ],
)
def test_a_batch_that_would_fail_alike_is_not_run_again(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)

    def run(*_):
        raise error

    with pytest.raises(type(error)):
        batches.write(BATCH, run)
    assert log.count("abort") == 1


# --- commits, aborts and new producers -----------------------------------------------------------


def test_an_interrupt_aborts_and_is_not_tried_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)

    def run(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batches.write(BATCH, run)
    assert log.count("abort") == 1


@pytest.mark.parametrize("error", [KafkaTimeoutError("?"), ProducerFencedError()])
def test_a_commit_without_a_clear_success_is_decided_by_the_ledger(whole, error):
    make, log = whole
    batches = make(found=[None, None, ENTRY], commits=[error])
    batches.enter(BATCH, SETTINGS)
    parts, _ = batches.write(BATCH, lambda *_: [part(), part()])
    assert len(parts) == 2
    assert log[-6:] == ["tell", "commit", "close", "take", "look", "tell"]


def test_a_commit_that_did_not_happen_is_made_again(whole):
    make, log = whole
    batches = make(commits=[KafkaTimeoutError("?"), None])
    batches.enter(BATCH, SETTINGS)
    batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("commit") == 2
    assert log.count("take") == 2


def test_a_failed_abort_asks_for_a_new_producer_which_looks_before_it_writes(whole):
    make, log = whole
    batches = make(found=[None, None, ENTRY], aborts=[ProducerFencedError()])
    batches.enter(BATCH, SETTINGS)
    parts, entry = batches.write(BATCH, lambda *_: [part("lost")])
    # Another driver has committed the batch in the meantime.
    assert (parts, entry) == ([], ENTRY)
    assert log[-4:] == ["abort", "close", "take", "look"]
    batches.close()
    assert log[-1] == "close"


def test_a_driver_that_took_over_and_wakes_late_does_not_take_its_own_query_over(whole):
    make, log = whole
    foreign, own = replace(ENTRY, query_id="old"), replace(ENTRY, batch_id=4)
    # It takes over, is paused, and fenced by a driver of its query that commits 3 and 4.
    batches = make(
        found=[foreign, foreign, own], aborts=[ProducerFencedError()], foreign="take_over"
    )
    assert batches.enter(BATCH, SETTINGS) is None
    with pytest.raises(LedgerError, match=r"batch 4 is committed already, .* another driver"):
        batches.write(BATCH, lambda *_: [part("fenced")])
    assert "commit" not in log


@pytest.mark.parametrize("query_id", ["old", "query"])
def test_entries_made_after_the_first_look_are_not_taken_over(whole, query_id):
    make, log = whole
    foreign = replace(ENTRY, query_id="old", at_ms=1)
    later = replace(foreign, query_id=query_id, batch_id=4, at_ms=2)
    batches = make(found=[foreign, later], foreign="take_over")
    with pytest.raises(LedgerError, match="batch 4 "):
        batches.enter(BATCH, SETTINGS)
    assert log == ["glance", "take", "look", "close"]


def test_a_ledger_that_could_not_be_read_after_a_commit_is_read_before_another_run(whole):
    make, log = whole
    found = [None, None, KafkaTimeoutError("?"), ENTRY]
    batches = make(found=found, commits=[KafkaTimeoutError("?")])
    batches.enter(BATCH, SETTINGS)
    assert batches.write(BATCH, lambda *_: [part(), part()]) == ([], ENTRY)
    assert log.count("commit") == 1


def test_a_hook_that_raises_after_the_commit_has_nothing_written_again(whole):
    make, log = whole

    def tell(name, *_):
        if name == "batch_after_commit":
            raise RuntimeError("of the user")

    batches = make(tell=tell)
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(RuntimeError, match="of the user"):
        batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("commit") == 1


def test_a_producer_that_cannot_begin_is_replaced(whole):
    make, log = whole
    batches = make(begins=[ProducerFencedError()], aborts=[ProducerFencedError()])
    batches.enter(BATCH, SETTINGS)
    parts, _ = batches.write(BATCH, lambda *_: [part(), part()])
    assert len(parts) == 2
    assert log.count("take") == 2


@pytest.mark.parametrize("call", ["commits", "aborts"])
def test_an_interrupted_end_leaves_no_producer(whole, call):
    make, log = whole
    batches = make(**{call: [KeyboardInterrupt()]})
    batches.enter(BATCH, SETTINGS)
    failing = call == "aborts"
    with pytest.raises(KeyboardInterrupt):
        batches.write(BATCH, lambda *_: [part("lost" if failing else ""), part()])
    assert log[-1] == "close"
    batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("take") == 2


def test_a_records_own_error_is_the_users_with_all_that_follows_from_it():
    cause = RecordTooLargeError("5086 bytes", recovery="abort")
    error = KafkaError("cannot go on", recovery="abort")
    error.__cause__ = cause
    assert _is_users(error)
    assert not _is_users(KafkaTimeoutError("lost"))


# --- the bounds of runs --------------------------------------------------------------------------


def failing(bounds):
    """Let a run begin and fail. Return whether it was the last one."""
    bounds.begin()
    return bounds.fail(SimpleNamespace(outcome=None))


def test_a_run_that_lost_an_executor_has_a_bound_of_its_own():
    bounds = RunBounds(max_runs=2, max_losses=4, has_lost=losses(True, True, False, False))
    assert not failing(bounds)
    assert not failing(bounds)
    assert (bounds.failures, bounds.losses, bounds.is_last) == (0, 2, False)
    assert not failing(bounds)
    assert (bounds.failures, bounds.losses, bounds.is_last) == (1, 2, True)
    assert failing(bounds)


def test_lost_executors_end_a_batch_at_their_bound():
    bounds = RunBounds(max_runs=2, max_losses=2, has_lost=losses(True, True))
    assert not failing(bounds)
    assert failing(bounds)
    assert bounds.failures == 0


def losses(*found):
    """Return whether an executor was lost, for one run after the other."""
    each = iter(found)
    return lambda since_s, _: abs(time.time() - since_s) < 60 and next(each)


def test_a_batch_is_tried_as_often_as_its_bounds_allow(whole):
    make, _ = whole
    batches = make()
    lasts = []

    def run_tasks(lease, is_last):
        lasts.append(is_last)
        raise SparkError("a task failed")

    bounds = RunBounds(max_runs=2, max_losses=9, has_lost=losses(True, False, False))
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(SparkError):
        batches.write(BATCH, run_tasks, bounds=bounds)
    # One lost its executor, and two failed by themselves.
    assert lasts == [False, False, True]
    assert batches.attempts == 3


class Sequence(list):
    """As Scala's."""

    def size(self):
        return len(self)

    def apply(self, number):
        return self[number]


class Option:
    """As Scala's."""

    def __init__(self, value):
        self._value = value

    def isDefined(self):  # noqa: N802 - Scala's name
        return self._value is not None

    def get(self):
        return self._value


def executor(removed_ms=None, reason=None):
    gone = None if removed_ms is None else SimpleNamespace(getTime=lambda: removed_ms)
    return SimpleNamespace(removeTime=lambda: Option(gone), removeReason=lambda: Option(reason))


@pytest.mark.parametrize(
    ("known", "is_lost"),
    [
        ([], False),
        ([executor()], False),
        ([executor(), executor(10_000, "Command exited with code 137")], True),
        ([executor(10_000)], True),
        ([executor(9_999, "worker lost")], False),
        ([executor(20_000, "Executor killed by driver.")], False),
    ],
)
def test_an_executor_that_spark_has_not_given_back_itself_is_lost(known, is_lost):
    def executors(active_only):
        return Sequence([] if active_only else known)

    store = SimpleNamespace(executorList=executors)
    scala = SimpleNamespace(statusStore=lambda: store)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    frame = SimpleNamespace(_jdf=None, sparkSession=SimpleNamespace(sparkContext=context))
    assert losses_of(frame)(10.0, SparkError("a task failed")) is is_lost
    context._jsc = None  # Spark was stopped
    assert not losses_of(frame)(10.0, None)


def test_the_error_of_a_job_may_name_the_executor_that_was_lost_but_not_under_connect():
    error = SparkError("ExecutorLostFailure (executor 3 exited)")
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=None))
    assert losses_of(frame)(10.0, error)
    of_connect = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    assert not losses_of(of_connect())(10.0, error)
