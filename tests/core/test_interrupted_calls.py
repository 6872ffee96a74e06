"""After an exception at any point of any entry of the core, the call goes on or can be aborted.

The entries are called as the shell calls them, and nothing else runs meanwhile; what the shell
itself does is tried in `tests/test_interrupted_calls.py`. Compiled parts are passed over in one
piece, as signals do. `make test` tries a part of the entries (`tests/turns.py`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from itertools import product

import pytest

from tests.core.on_cluster import OnCluster, committed, make_cluster, started
from tests.harness import TP0, TP1
from tests.interrupts import IS_THOROUGH, Interrupt, Interrupter
from tests.turns import of_this_turn
from txnproducer._core.producer_core import AppendBlocked
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import KafkaError
from txnproducer.sim.apps.interrupts import Interrupted, run_until

VERSIONS = pytest.mark.parametrize("version", [1, 2])
# The calls after the exception: whether a step of the sender comes first, and the way out.
WAYS = [
    (is_step_first, way)
    for is_step_first in (False, True)
    for way in ("repeat", "commit", "abort")
]
SETTINGS = {"buffer_memory": 60_000, "batch_size": 16_384, "max_block_ms": 5_000}


def fresh(version):
    return OnCluster(make_cluster(version), **SETTINGS)


def ready(version):
    harness = started(make_cluster(version), **SETTINGS)
    harness.know_topics()
    return harness


def in_transaction(version):
    harness = ready(version)
    harness.begin()
    return harness


def with_record(version):
    harness = in_transaction(version)
    harness.send("topic", b"before", partition=0)
    return harness


def with_timed_out_commit(version):
    harness = with_record(version)
    harness.client.hold = True
    harness.core.begin_commit()
    return harness


def with_sent_commit(version):
    """Return a producer whose commit is on its way. Its answer will be lost."""
    harness = with_record(version)
    harness.lost = [ApiKey.END_TXN]
    harness.core.begin_commit()
    harness.run_until(lambda: not harness.lost)
    return harness


def lingering(version):
    """Return a producer whose batch for partition 0 stays open."""
    harness = started(make_cluster(version), **SETTINGS, linger_ms=1_000)
    harness.know_topics()
    harness.begin()
    harness.send("topic", b"before", partition=0)
    return harness


def append(**more):
    def call(harness):
        return harness.try_send("topic", b"interrupted", **more)

    return call


def append_any(harness):
    return harness.core.append_any(
        "topic", b"interrupted", None, (), 0, harness.now_ms, None, harness.now_ms
    )


def without_memory(version):
    harness = in_transaction(version)
    for _ in range(3):
        harness.send("topic", b"x" * 16_000, partition=0)
    return harness


def append_large(harness):
    value, now_ms = b"x" * 16_000, harness.now_ms
    return harness.core.append("topic", value, None, (), 1, now_ms, None, now_ms)


def out_of_memory(harness):
    core, outcome = harness.core, None
    try:
        outcome = append_large(harness)
        core.claim_append(outcome)
        if isinstance(outcome, AppendBlocked):
            return core.time_out_append(outcome, "topic", 1, None, 5, harness.now_ms)
    except BaseException:  # as the shell does: the exception may come from anywhere in the call
        if isinstance(outcome, AppendBlocked):
            core.give_up_append(outcome)
        core.give_up_unclaimed()
        raise
    return outcome


ENTRIES = {
    "init": (fresh, lambda one: one.core.init_transactions()),
    "begin": (ready, lambda one: one.core.begin_transaction()),
    "append to a new batch": (in_transaction, append(partition=0)),
    "append by key": (in_transaction, append(key=b"key", partition=None)),
    "append anywhere": (in_transaction, append(partition=None)),
    "append to an open batch": (lingering, append_any),
    "append where there is no memory": (without_memory, out_of_memory),
    "offsets": (in_transaction, lambda one: one.send_offsets()),
    "commit": (with_record, lambda one: one.core.begin_commit()),
    "commit of nothing": (in_transaction, lambda one: one.core.begin_commit()),
    "abort": (with_record, lambda one: one.core.begin_abort()),
    "abort of nothing": (in_transaction, lambda one: one.core.begin_abort()),
    "abort of a commit": (with_timed_out_commit, lambda one: one.core.begin_abort()),
    "abort of a sent commit": (with_sent_commit, lambda one: one.core.begin_abort()),
    "lease": (in_transaction, lambda one: one.core.begin_lease(2)),
    "flush": (with_record, lambda one: one.core.begin_flush(one.now_ms)),
    "metadata": (in_transaction, lambda one: one.core.partitions_for("other", one.now_ms)),
}


def interrupted_everywhere(make, call):
    """Yield producers after an interrupted call, at one point after the other."""
    harness = make()
    call(harness)  # what is cached between calls is there
    harness = make()
    noted = Interrupter(is_by_line=not IS_THOROUGH)
    noted.run(lambda: call(harness))
    for number, point in enumerate(noted.passed):
        for way in WAYS if IS_THOROUGH else WAYS[number % len(WAYS) :][:1]:
            harness = make()
            interrupter = Interrupter(point, is_by_line=not IS_THOROUGH)
            with pytest.raises(Interrupt):
                interrupter.run(lambda: call(harness))  # noqa: B023 - called at once
            yield point, way, harness


def repeat(harness, call):
    """Make the call again and wait as a blocking call does, and return whether it succeeded."""
    outcome = call(harness)
    if isinstance(outcome, AppendBlocked) or outcome is None:
        return
    if hasattr(outcome, "operation"):
        harness.complete(outcome)


def go_on(harness, call, way):
    """Repeat the call, commit or abort. If one is refused, another one is the way out."""

    def repeat_and_commit():
        repeat(harness, call)
        if harness.state is TransactionState.IN_TRANSACTION:
            harness.end(is_commit=True)

    def abort():
        harness.end(is_commit=False)

    def commit():
        harness.end(is_commit=True)

    steps = {"repeat": repeat_and_commit, "commit": commit, "abort": abort}
    for step in (steps.pop(way), *steps.values()):
        if harness.state is TransactionState.READY and not harness.manager._pending.unseen():
            return
        with contextlib.suppress(KafkaError):
            step()


def assert_is_whole(harness, point):
    harness.settle()
    pool = harness.core._accumulator.pool
    assert not pool.waiting, point
    assert not harness.manager.requests.queue, point
    for place in (TP0, TP1):
        harness.begin()
        harness.send("topic", b"after", partition=place.partition)
        harness.end(is_commit=True)
    harness.run_until(lambda: not harness.core._accumulator.has_incomplete)
    assert pool.available_bytes == pool.total_bytes, point
    values = Counter(committed(harness.cluster) + committed(harness.cluster, TP1))
    assert values.pop(b"after") == 2, point
    assert values[b"before"] <= 1, point
    assert values[b"interrupted"] <= 2, point  # by the first call, and by the repeated one


@pytest.mark.timeout(600 if IS_THOROUGH else 120)
@pytest.mark.parametrize(("name", "version"), of_this_turn(list(product(ENTRIES, [1, 2]))))
def test_an_entry_that_an_exception_leaves_goes_on_or_can_be_aborted(name, version):
    make, call = ENTRIES[name]
    count = 0
    for point, (is_step_first, way), harness in interrupted_everywhere(
        partial(make, version), call
    ):
        if is_step_first:
            harness.step()
        go_on(harness, call, way)
        if not harness.manager.identity.has_producer_id:
            harness.complete(harness.core.init_transactions())
        assert_is_whole(harness, point)
        count += 1
    assert count > 1


@VERSIONS
def test_an_abort_of_a_commit_that_is_interrupted_after_its_last_step_is_one_abort(
    monkeypatch, version
):
    harness = with_timed_out_commit(version)
    turn_into_abort = EndTxnHandler.turn_into_abort

    def interrupted(handler, result):
        turn_into_abort(handler, result)
        raise Interrupt

    monkeypatch.setattr(EndTxnHandler, "turn_into_abort", interrupted)
    with pytest.raises(Interrupt):
        harness.core.begin_abort()
    harness.client.hold = False
    abort = harness.core.begin_abort()  # would be interrupted again if the step were made again
    harness.complete(abort)
    assert harness.manager.progress.outcome == "aborted"
    assert_is_whole(harness, None)


def test_an_unclaimed_place_in_the_queue_for_memory_is_given_up():
    harness = without_memory(2)
    pool = harness.core._accumulator.pool
    append_large(harness)  # what it returned is lost
    assert pool.waiting
    harness.core.give_up_unclaimed()
    assert not pool.waiting
    harness.core.give_up_unclaimed()
    harness.end(is_commit=True)
    assert_is_whole(harness, None)


def test_a_place_that_a_caller_has_is_its_own():
    harness = without_memory(2)
    core, pool = harness.core, harness.core._accumulator.pool
    blocked = append_large(harness)
    core.claim_append(blocked)
    core.give_up_unclaimed()  # by another thread, whose own call was interrupted
    assert list(pool.waiting) == [blocked.ticket]
    lost = append_large(harness)
    other = append_large(harness)  # the next call leaves the place of one that was interrupted
    assert lost.ticket is not other.ticket
    assert list(pool.waiting) == [blocked.ticket, other.ticket]
    for place in (blocked, other):
        core.give_up_append(place)
    harness.end(is_commit=True)
    assert_is_whole(harness, None)


@pytest.mark.parametrize("make", [with_record, with_timed_out_commit, with_sent_commit])
def test_a_forced_close_that_an_exception_leaves_ends_when_it_is_made_again(make):
    # At inner calls of what is interpreted everywhere: ending a batch is compiled in one piece.
    for count in range(100):
        harness = make(1)
        force_close = partial(harness.core.force_close, harness.now_ms)
        try:
            run_until(count, force_close)
        except Interrupted:
            force_close()
        else:
            break
        assert harness.core.is_closed, count
        assert not harness.core._accumulator.has_incomplete, count
        operation = harness.manager._pending.unseen()
        assert operation is None or operation.result.is_completed, count
    assert 1 < count < 99
