"""Transactions that take too long: the coordinator aborts them, and fences their producer."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import End, Identity, Stage
from txnproducer.records import TopicPartition

# A real broker answers a case's requests in a fraction of it.
TIMEOUT_MS = 1_000


def timed_out(s: Stage, t: TopicPartition) -> Identity:
    """Return a producer whose transaction the coordinator has aborted."""
    who = s.open(t, timeout_ms=TIMEOUT_MS)
    s.settle(who)
    return who


@cases(
    {
        "a_transaction_that_takes_too_long_is_aborted": (),
        "committing_too_late": (Stage.commit,),
        "aborting_too_late": (Stage.abort,),
    }
)
def ending_too_late(s: Stage, *ends: End) -> None:
    t = s.partition()
    who = timed_out(s, t)
    for end in ends:
        end(s, who)
    s.describe(who)
    s.look(t)


@case()
def producing_too_late(s: Stage) -> None:
    t = s.partition()
    who = timed_out(s, t)
    s.produce(who, t, 1, "too late")
    s.look(t)


@case()
def producing_too_late_to_another_partition(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    who = timed_out(s, t)
    s.produce(who, u, 0, "too late")
    s.look(u)


@case()
def adding_partitions_too_late(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    who = timed_out(s, t)
    s.add(who, u)
    s.add_offsets(who)
    s.describe(who)


@case()
def initialising_after_a_time_out(s: Stage) -> None:
    t = s.partition()
    timed_out(s, t)
    who = s.init()
    s.describe(who)
    s.begin(who, t)
    s.produce(who, t, 0, "new")
    s.commit(who)
    s.look(t)


@case()
def bumping_the_epoch_after_a_time_out(s: Stage) -> None:
    t = s.partition()
    who = timed_out(s, t)
    after = s.init(current=who)
    s.describe(who)
    if s.is_v2:  # with v1 the time-out has fenced it for good
        s.produce(after, t, 0, "new")
        s.commit(after)
    s.look(t)


@case()
def offsets_of_a_transaction_that_takes_too_long_never_count(s: Stage) -> None:
    t = s.partition()
    who = s.open_offsets(t, 5, timeout_ms=TIMEOUT_MS)
    s.look_at_offset(t)
    s.settle(who)
    s.look_at_offset(t)
    s.commit_offset(who, t, 6)
    s.look_at_offset(t)


@case(only=1)
def a_transaction_of_added_partitions_alone_is_aborted_too(s: Stage) -> None:
    t = s.partition()
    who = s.init(timeout_ms=TIMEOUT_MS)
    s.add(who, t)
    s.settle(who)
    s.describe(who)
    s.look(t)


@case()
def time_counts_from_the_beginning_of_the_transaction_not_from_initialising(s: Stage) -> None:
    t = s.partition()
    who = s.init(timeout_ms=TIMEOUT_MS)
    s.wait_ms(2 * TIMEOUT_MS)
    s.describe(who)
    s.begin(who, t)
    s.produce(who, t, 0, "in time")
    s.commit(who)
    s.look(t)


@case()
def each_transaction_has_a_time_of_its_own(s: Stage) -> None:
    t = s.partition()
    who = s.commit(s.open(t, timeout_ms=TIMEOUT_MS))
    s.wait_ms(2 * TIMEOUT_MS)
    s.begin(who, t)
    s.produce(who, t, 0 if s.is_v2 else 1, "in time")
    s.wait_ms(TIMEOUT_MS // 2)
    s.commit(who)
    s.look(t)


@case()
def a_late_producer_goes_on_with_the_epoch_that_its_abort_was_answered(s: Stage) -> None:
    t = s.partition()
    who = timed_out(s, t)
    after = s.abort(who)
    s.begin(after, t)
    s.produce(after, t, 0, "new")
    s.end(after, commit=True)
    s.settle(who)
    s.look(t)


@case()
def a_late_producer_that_a_new_one_has_followed(s: Stage) -> None:
    t = s.partition()
    who = timed_out(s, t)
    s.init()
    s.end(who, commit=True)
    s.end(who, commit=False)
    s.produce(who, t, 1, "too late")
    s.add(who, t)
    s.init(current=who)
    s.look(t)


@case()
def a_transaction_that_times_out_lets_through_what_follows(s: Stage) -> None:
    t = s.partition()
    late = s.open(t, "late", name="a", timeout_ms=TIMEOUT_MS)
    other = s.open(t, "kept", name="b")
    s.commit(other)
    s.look(t)
    s.settle(late)
    s.look(t)


@case()
def after_a_time_out_the_same_epoch_plus_one_is_nobodys(s: Stage) -> None:
    t = s.partition()
    who = timed_out(s, t)
    s.begin(who.newer(), t)
    s.produce(who.newer(), t, 0, "whose")
    s.describe(who)
    s.look(t)
