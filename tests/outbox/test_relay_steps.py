"""Crashes, lost answers and take-overs at every step of a relay."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa

from tests.outbox.outboxes import (
    CONFIG,
    CrashError,
    all_of,
    crash,
    drain,
    drain_as_run_does,
    enqueue,
    numbers,
    sent,
    soon,
)
from txnproducer.errors import KafkaError
from txnproducer.outbox import Outbox, OutboxError, OutboxRelay, SupersededError
from txnproducer.outbox.starts import Starts

# A start has 18 steps, and each of the two batches of 3 rows 14.
POINTS = range(1, 47)


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_is_killed_at_any_step_is_followed_by_one_that_is_exact(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    dying = relay(batch_rows=3)
    steps.at, steps.then = point, crash
    # A process that is killed closes nothing.
    close, dying.close = dying.close, lambda: None
    with pytest.raises(CrashError):
        drain(dying)
    dying.close = close
    following = relay(batch_rows=4)
    drain(following)
    enqueue(outbox, 4, first=8)
    drain(following)
    assert sent(kafka) == all_of(12)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_sleeps_at_any_step_and_wakes_after_a_take_over_changes_nothing(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    sleeper, following = relay(batch_rows=3), relay(batch_rows=4)
    steps.at, steps.then = point, lambda: drain(following)
    if point == 1:  # it has not begun, so it takes over in its turn
        drain_as_run_does(sleeper)
        sleeper, following = following, sleeper
    with pytest.raises(SupersededError):
        drain_as_run_does(sleeper)
    assert steps.then is None
    assert sent(kafka) == all_of(8)
    # The one that has taken its place goes on, although it may have been fenced by the sleeper.
    enqueue(outbox, 4, first=8)
    drain_as_run_does(following)
    assert sent(kafka) == all_of(12)


@pytest.mark.parametrize("point", POINTS)
def test_an_answer_of_the_database_that_is_lost_at_any_step_changes_nothing(
    outbox, relay, kafka, steps, point
):
    def lose():
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection was lost"))

    enqueue(outbox, 8)
    one = relay(batch_rows=3)
    steps.at, steps.then = point, lose
    drain_as_run_does(one)
    assert steps.then is None
    assert sent(kafka) == all_of(8)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


@pytest.mark.parametrize("point", POINTS)
def test_shards_that_move_to_another_relay_at_any_step_lose_and_double_nothing(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    first, second = relay("a", batch_rows=3), relay("b", shards=range(20, 64))
    steps.at, steps.then = point, lambda: drain_as_run_does(second)
    with contextlib.suppress(SupersededError):
        drain_as_run_does(first)
    assert steps.then is None
    for _ in range(2):
        drain_as_run_does(relay("a", shards=range(20)))
        drain_as_run_does(relay("b", shards=range(20, 64)))
    assert sent(kafka) == all_of(8)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


def test_shards_are_not_taken_from_a_relay_that_was_not_fenced(outbox, relay, kafka, monkeypatch):
    enqueue(outbox, 4)
    one, other = relay("a", batch_rows=2), relay("b")
    usual = Starts.take_others

    def and_then_the_other_begins(self, *args):
        found = usual(self, *args)
        monkeypatch.setattr(Starts, "take_others", usual)
        one.run_once()
        return found

    monkeypatch.setattr(Starts, "take_others", and_then_the_other_begins)
    with pytest.raises(KafkaError, match="taken some of the shards at the same time"):
        other.run_once()
    drain_as_run_does(other)
    with pytest.raises(SupersededError):
        drain_as_run_does(one)
    assert sent(kafka) == all_of(4)


def test_a_relay_that_has_lost_its_shards_does_not_take_them_back_after_a_failure(
    outbox, relay, kafka, steps
):
    enqueue(outbox, 4)
    first, second = relay("a"), relay("b")
    # Its commit is refused by a fence, which is a failure after which it begins again.
    steps.at, steps.then = "before commit_transaction", lambda: None
    drain(first)
    enqueue(outbox, 4, first=4)
    steps.then = lambda: drain(second)
    with pytest.raises(SupersededError):
        drain_as_run_does(first)
    drain(second)
    assert sent(kafka) == all_of(8)


def test_a_relay_with_fewer_shards_gives_the_others_up(outbox, relay, kafka):
    enqueue(outbox, 4)
    drain(relay("a"))
    small = relay("a", shards=range(30))
    drain(small)
    enqueue(outbox, 4, first=4)
    drain(small)
    assert outbox.backlog()["waiting"] == 2
    drain(relay("b", shards=range(30, 64)))
    drain(small)  # nothing was taken from it
    assert sent(kafka) == all_of(8)


def test_rows_of_shards_that_are_given_up_do_not_wait_for_the_relay_that_had_them(
    outbox, relay, kafka, steps
):
    enqueue(outbox, 4)
    steps.at, steps.then = "after next_batch", crash
    with pytest.raises(CrashError):
        relay("a").run_once()
    # It starts with fewer shards, and sends nothing so far.
    steps.then = crash
    with pytest.raises(CrashError):
        relay("a", shards=range(32)).run_once()
    enqueue(outbox, 4, first=4)
    drain(relay("b", shards=range(32, 64)))
    drain(relay("a", shards=range(32)))
    assert sent(kafka) == all_of(8)


def test_shards_are_not_taken_from_a_relay_that_has_begun_again(outbox, relay, kafka, steps):
    drain(relay("a"))
    enqueue(outbox, 4)

    def begin_again_and_assign():
        steps.at, steps.then = "after next_batch", crash
        with pytest.raises(CrashError):
            relay("a").run_once()

    other = relay("b")
    steps.at, steps.then = "after settle_other", begin_again_and_assign
    with pytest.raises(KafkaError, match="begun again"):
        other.run_once()
    enqueue(outbox, 4, first=4)
    drain(other)
    assert sent(kafka) == all_of(8)
    assert outbox.backlog()["waiting"] == 0


def test_a_replaced_relay_ends_and_does_not_replace_the_other(outbox, relay, kafka):
    old, new = relay(), relay()
    old.run_once()
    new.run_once()
    with pytest.raises(SupersededError, match="a relay_id"):
        old.run(soon())
    # A failure that passes lets it begin again, which must not replace the newer one.
    third = relay()
    third.run_once()
    new.close()
    enqueue(outbox, 4)
    with pytest.raises(SupersededError):
        new.run(soon())
    drain(third)
    assert sent(kafka) == all_of(4)


def test_another_outbox_with_this_relay_id_is_refused_and_deletes_nothing(
    outbox, relay, kafka, tmp_path, steps
):
    enqueue(outbox, 2)
    dying = relay()
    steps.at, steps.then = "after next_batch", crash
    with pytest.raises(CrashError):
        drain(dying)
    # Now a batch is assigned, and not committed.
    engine = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    other = Outbox(engine)
    other.create_tables()
    enqueue(other, 4)
    with OutboxRelay(other, CONFIG, relay_id="r") as strange:
        drain(strange)  # the ledger has no batch so far
    with pytest.raises(OutboxError, match="belongs to another outbox"):
        relay().run_once()
    assert outbox.backlog()["waiting"] == 2
    drain(relay(on_set_back="send"))
    assert len(numbers(kafka)) == 4 + 2
    engine.dispose()
