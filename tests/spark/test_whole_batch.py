"""Atomicity "batch" without Spark and without a broker: digests, rules, runs."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from txnproducer._protocol.messages import TransactionDescription
from txnproducer.errors import (
    InvalidConfigurationError,
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
)
from txnproducer.lease import TransactionLease, TransactionReceipt
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark import LedgerError
from txnproducer.spark.driver import batch_retries
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.errors import (
    BatchFailedError,
    BatchTimedOutError,
    ReplayMismatchError,
    StaleRunError,
    StoppedError,
)
from txnproducer.spark.ledger import lost_transactions
from txnproducer.spark.ledger.digest import Digest, total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.rules import LedgerRules, check_whole_replay
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.options import check_batch_atomicity
from txnproducer.spark.tasks.participant import Part, _is_users

BATCH = LedgerBatch(3, "query", 2)
SETTINGS = {"transaction.timeout.ms": "60000"}
ENTRY = LedgerEntry(3, "query", 2, 7, "0" * 32)


# --- digests, rules, options --------------------------------------------------------------------


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


def test_what_does_not_go_with_whole_batches():
    check_batch_atomicity("topic", None)
    with pytest.raises(InvalidConfigurationError, match="topic is needed"):
        check_batch_atomicity(None, None)
    with pytest.raises(InvalidConfigurationError, match="writers=3"):
        check_batch_atomicity("topic", 3)


# --- runs ---------------------------------------------------------------------------------------


class FakeProducer:
    """A producer that notes its calls. Its commits and aborts end as a test says."""

    def __init__(self, log, commits, aborts, begins):
        self.log, self.commits, self.aborts, self.begins = log, commits, aborts, begins

    def begin_transaction(self):
        self._end("begin", self.begins)

    def lease(self, claims):
        self.log.append(f"lease {claims}")
        return SimpleNamespace(
            claims=claims, producer=ProducerIdAndEpoch(1, 5), is_transaction_v2=True
        )

    def adopt(self, receipts):
        self.log.append(f"adopt {len(list(receipts))}")

    def commit_transaction(self):
        self._end("commit", self.commits)

    def abort_transaction(self):
        self._end("abort", self.aborts)

    def _end(self, call, outcomes):
        self.log.append(call)
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    def close(self, timeout=None):
        self.log.append("close")


class FakeLedger(Ledger):
    """Holds the entries that are found, one after the other."""

    log: list[str]
    found: list[LedgerEntry | LedgerView | BaseException | None]

    def __init__(self, log, found):
        super().__init__("nowhere:9092", "sink", "topic", {})
        self.__dict__.update(log=log, found=found)

    def look(self, partitions=(), *, asks_for_plan=True, waits_for_undecided=True):
        assert list(partitions) == [0]
        self.log.append("look" if waits_for_undecided else "glance")
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found if isinstance(found, LedgerView) else LedgerView(None, {}, found)

    def write_whole(self, producer, entry):
        self.log.append(f"entry of {entry.rows} rows")


@pytest.fixture
def whole(monkeypatch):
    """Return a maker of `BatchTransactions` with fakes, and the log of all that happens."""
    log: list[str] = []
    monkeypatch.setattr(batch_retries, "wait_exponential", lambda **_: lambda _: 0)
    monkeypatch.setattr(lost_transactions, "describe_transaction", lambda *_, **__: None)

    def make(found=(None,), commits=(), aborts=(), begins=(), tell=None, foreign="stop"):
        commits, aborts, begins = list(commits), list(aborts), list(begins)
        batches = BatchTransactions(
            FakeLedger(log, list(found)),
            LedgerRules("write", foreign),
            tell or (lambda *_: log.append("tell")),
        )

        def take():
            log.append("take")
            return FakeProducer(log, commits, aborts, begins)

        monkeypatch.setattr(batches, "_take", take)
        return batches

    return make, log


def part(failure="", recovery="abort", *, is_lost=False, seconds=1.0):
    identity = ProducerIdAndEpoch(1, 1)
    receipt = None if failure else TransactionReceipt("sink.batch", identity, 0, identity, ())
    return Part(receipt, 5, 50, "0" * 32, failure, recovery, {"write": seconds}, is_lost)


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


def test_a_query_that_has_to_stop_harms_nobody(whole):
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


def test_what_the_user_has_to_mend_is_not_tried_again(whole):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchFailedError, match="too large") as caught:
        batches.write(BATCH, lambda *_: [part("too large", "fix")])
    assert str(caught.value.recovery) == "fix"
    assert log.count("abort") == 1


class SparkError(Exception):
    """As Spark raises it on the driver."""

    __module__ = "pyspark.errors"


def test_what_spark_raises_is_raised_in_the_end(whole):
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
def test_what_would_fail_alike_is_not_run_again(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)

    def run(*_):
        raise error

    with pytest.raises(type(error)):
        batches.write(BATCH, run)
    assert log.count("abort") == 1


# --- stops --------------------------------------------------------------------------------------

INTERRUPTED = SparkError(
    "An error occurred while calling o5.collectToPython.\n: java.lang.InterruptedException"
)
STOPS = [
    INTERRUPTED,
    SparkError(
        "... calling o7.collect.\n: java.io.UncheckedIOException: lost\nCaused by: "
        "java.nio.channels.ClosedByInterruptException"
    ),
    SparkError("java.io.InterruptedIOException: interrupted"),
    SparkError("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group q"),
    SparkError("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"),
    SparkError("Job 7 cancelled because SparkContext was shut down"),
    StoppedError("Spark was stopped"),
]


class Stopping:
    """Raises from the n-th question on, as Spark does to a query that was stopped."""

    def __init__(self, after, error=INTERRUPTED):
        self.left, self.error = after, error

    def __call__(self, *_):
        self.left -= 1
        if self.left < 0:
            raise self.error


@pytest.mark.parametrize("error", STOPS, ids=lambda error: str(error)[:30])
def test_a_batch_that_is_stopped_in_its_tasks_is_aborted_and_not_run_again(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(type(error)):
        batches.write(BATCH, Stopping(0, error))
    assert log.count("begin") == 1
    assert log[-1] == "close", "which aborts"


@pytest.mark.parametrize("error", [STOPS[0], STOPS[-1]])
def test_a_batch_that_is_stopped_before_its_commit_is_not_committed(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(type(error)):
        batches.write(BATCH, lambda *_: [part(), part()], Stopping(0, error))
    assert log.count("begin") == 1
    assert "commit" not in log
    batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("commit") == 1, "a later batch takes the id again"


def test_a_batch_that_is_stopped_between_two_runs_is_not_run_again(whole, monkeypatch):
    make, log = whole
    monkeypatch.setattr(batch_retries, "wait_exponential", lambda **_: lambda _: 60)
    batches, began_s = make(), time.monotonic()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(SparkError, match="InterruptedException"):
        batches.write(BATCH, lambda *_: [part("lost"), part()], Stopping(1))
    assert log.count("begin") == 1
    assert time.monotonic() - began_s < 30


def test_the_interrupt_of_a_task_is_no_stop(whole):
    # An executor that is lost interrupts its tasks, and the batch is run again.
    error = SparkError(
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
        "failure: ... java.nio.channels.ClosedByInterruptException"
    )
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    tries = [error, None]

    def run(*_):
        if (failure := tries.pop(0)) is not None:
            raise failure
        return [part(), part()]

    batches.write(BATCH, run)
    assert (log.count("begin"), log.count("commit")) == (2, 1)


# --- lost transactions ---------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Make time pass as a test says, and fix the coordinator's description of the id."""
    state = SimpleNamespace(now=0.0, found=("CompleteAbort", 1, 6), questions=0)
    monkeypatch.setattr(time, "monotonic", lambda: state.now)

    def describe(*_, **__):
        state.questions += 1
        if state.found is None:
            return None
        if isinstance(state.found, BaseException):
            raise state.found
        name, producer_id, epoch = state.found
        return TransactionDescription(0, "sink.batch", name, producer_id, epoch, 60_000, -1, ())

    monkeypatch.setattr(lost_transactions, "describe_transaction", describe)
    return state


def run_for(clock, seconds, parts):
    def run(*_):
        clock.now += seconds
        return parts

    return run


def test_a_batch_that_took_longer_than_its_transaction_may_is_told_so_and_not_run_again(
    whole, clock
):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    parts = [part(), part("partition 1: 47", is_lost=True, seconds=60.5)]
    with pytest.raises(BatchTimedOutError) as caught:
        batches.write(BATCH, run_for(clock, 61, parts))
    assert log.count("abort") == 1
    told = "transactionTimeout=60000 .* 61.0 s .* slowest part was partition 1, 60.5 s"
    assert re.search(told, str(caught.value))
    assert caught.value.recovery == "fix"


def test_a_commit_behind_the_time_out_is_told_so_unless_the_ledger_has_it(whole, clock):
    make, log = whole
    batches = make(commits=[InvalidTxnStateError()])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchTimedOutError):
        batches.write(BATCH, run_for(clock, 61, [part(), part()]))
    assert log.count("commit") == 1
    batches = make(found=[None, None, ENTRY], commits=[InvalidTxnStateError()])
    batches.enter(BATCH, SETTINGS)
    assert len(batches.write(BATCH, run_for(clock, 61, [part(), part()]))[0]) == 2


@pytest.mark.parametrize(
    ("seconds", "is_lost", "found"),
    [
        (59, True, ("CompleteAbort", 1, 6)),  # too early for a time-out
        (61, False, ("CompleteAbort", 1, 6)),  # not lost, but failed
        (59, True, ("Ongoing", 1, 5)),  # still ours
    ],
)
def test_other_losses_are_run_again(whole, clock, seconds, is_lost, found):
    make, log = whole
    clock.found = found
    batches = make()
    batches.enter(BATCH, SETTINGS)
    tries = [[part("x", is_lost=is_lost), part()], [part(), part()]]
    batches.write(BATCH, lambda *told: run_for(clock, seconds, tries.pop(0))(*told))
    assert log.count("abort") == 1
    assert clock.questions == (1 if is_lost else 0)


ANOTHER_DRIVER = [
    ("CompleteAbort", 1, 7),  # it aborted its own
    ("CompleteAbort", 2, 6),
    ("Empty", 1, 7),
    ("Empty", 1, 6),  # nothing of ours had reached the coordinator yet
    ("Ongoing", 1, 7),
    ("CompleteCommit", 1, 7),
]


@pytest.mark.parametrize("seconds", [1, 61])
@pytest.mark.parametrize("found", ANOTHER_DRIVER)
def test_a_driver_that_another_one_has_fenced_stops_and_does_not_fence_it(
    whole, clock, seconds, found
):
    make, log = whole
    clock.found = found
    batches = make(aborts=[ProducerFencedError()])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(StaleRunError, match=r"another driver .* 'sink.batch' .* batch 3"):
        batches.write(BATCH, run_for(clock, seconds, [part("x", is_lost=True), part()]))
    assert log.count("take") == 1
    assert log[-3:] == ["abort", "close", "glance"]


def test_a_commit_that_another_driver_came_before_is_looked_up_and_not_taken_back(whole, clock):
    make, log = whole
    clock.found = ("Ongoing", 1, 7)
    for there, outcome in ((ENTRY, None), (None, StaleRunError)):
        batches = make(found=[None, None, there], commits=[ProducerFencedError()])
        batches.enter(BATCH, SETTINGS)
        if outcome is None:
            assert batches.write(BATCH, lambda *_: [part(), part()]) == ([], ENTRY)
        else:
            with pytest.raises(outcome):
                batches.write(BATCH, lambda *_: [part(), part()])
        assert log[-3:] == ["commit", "close", "glance"]
    assert log.count("take") == 2


@pytest.mark.parametrize("found", [None, KafkaTimeoutError("?")])
def test_a_coordinator_that_knows_nothing_shows_no_other_driver(whole, clock, found):
    make, _ = whole
    clock.found = found
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchTimedOutError):
        batches.write(BATCH, run_for(clock, 61, [part("x", is_lost=True), part()]))


@pytest.mark.parametrize("error", [InvalidPidMappingError(), InvalidProducerEpochError()])
def test_a_loss_is_found_behind_what_it_caused(whole, clock, error):
    make, _ = whole
    clock.found = ("Empty", 2, 0)
    stopped = KafkaError("cannot go on")
    stopped.__cause__ = error
    batches = make(commits=[stopped])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(StaleRunError):
        batches.write(BATCH, lambda *_: [part(), part()])


@pytest.mark.parametrize(
    ("found", "producer", "is_v2", "is_seen"),
    [
        # A commit of ours takes the next epoch with v2 alone.
        (("CompleteCommit", 1, 6), (1, 5), True, False),
        (("CompleteCommit", 1, 6), (1, 5), False, True),
        # With v2 a time-out after the last epoch aborts under the next producer id.
        (("CompleteAbort", 2, 0), (1, 2**15 - 2), True, False),
        (("CompleteAbort", 2, 0), (1, 2**15 - 2), False, True),
    ],
)
def test_whether_another_driver_is_seen_is_read_in_the_one_table_of_evidence(
    clock, found, producer, is_v2, is_seen
):
    clock.found = found
    lease = TransactionLease("sink.batch", ProducerIdAndEpoch(*producer), is_v2)
    assert lost_transactions.is_another_driver_seen(FakeLedger([], []), lease) is is_seen


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
def test_what_came_behind_the_first_look_is_not_taken_over(whole, query_id):
    make, log = whole
    foreign = replace(ENTRY, query_id="old", at_ms=1)
    later = replace(foreign, query_id=query_id, batch_id=4, at_ms=2)
    batches = make(found=[foreign, later], foreign="take_over")
    with pytest.raises(LedgerError, match="batch 4 "):
        batches.enter(BATCH, SETTINGS)
    assert log == ["glance", "take", "look", "close"]


def test_a_ledger_that_could_not_be_read_behind_a_commit_is_read_before_another_run(whole):
    make, log = whole
    found = [None, None, KafkaTimeoutError("?"), ENTRY]
    batches = make(found=found, commits=[KafkaTimeoutError("?")])
    batches.enter(BATCH, SETTINGS)
    assert batches.write(BATCH, lambda *_: [part(), part()]) == ([], ENTRY)
    assert log.count("commit") == 1


def test_a_hook_that_raises_behind_the_commit_has_nothing_written_again(whole):
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
def test_an_interrupted_end_leaves_no_producer_behind(whole, call):
    make, log = whole
    batches = make(**{call: [KeyboardInterrupt()]})
    batches.enter(BATCH, SETTINGS)
    failing = call == "aborts"
    with pytest.raises(KeyboardInterrupt):
        batches.write(BATCH, lambda *_: [part("lost" if failing else ""), part()])
    assert log[-1] == "close"
    batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("take") == 2


def test_a_records_own_error_is_the_users_whatever_followed_from_it():
    cause = RecordTooLargeError("5086 bytes", recovery="abort")
    error = KafkaError("cannot go on", recovery="abort")
    error.__cause__ = cause
    assert _is_users(error)
    assert not _is_users(KafkaTimeoutError("lost"))
