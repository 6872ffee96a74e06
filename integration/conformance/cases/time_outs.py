"""Transactions that take too long: the coordinator aborts them, and fences their producer."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import End, Identity, Stage
from txnproducer.records import TopicPartition

# A real broker answers a case's requests in a fraction of it.
TIMEOUT_MS = 1_000


def timed_out(s: Stage, t: TopicPartition) -> Identity:
    """Return a producer whose transaction the coordinator has aborted."""
    identity = s.open(t, timeout_ms=TIMEOUT_MS)
    s.settle(identity)
    return identity


@cases(
    {
        "a_transaction_that_takes_too_long_is_aborted": (),
        "committing_too_late": (Stage.commit,),
        "aborting_too_late": (Stage.abort,),
    }
)
def ending_too_late(s: Stage, *ends: End) -> None:
    t = s.partition()
    identity = timed_out(s, t)
    for end in ends:
        end(s, identity)
    s.describe(identity)
    s.look(t)


@case()
def producing_too_late(s: Stage) -> None:
    t = s.partition()
    identity = timed_out(s, t)
    s.produce(identity, t, 1, "too late")
    s.look(t)


@case()
def producing_too_late_to_another_partition(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = timed_out(s, t)
    s.produce(identity, u, 0, "too late")
    s.look(u)


@case()
def adding_partitions_too_late(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = timed_out(s, t)
    s.add(identity, u)
    s.add_offsets(identity)
    s.describe(identity)


@case()
def initialising_after_a_time_out(s: Stage) -> None:
    t = s.partition()
    timed_out(s, t)
    identity = s.init()
    s.describe(identity)
    s.begin(identity, t)
    s.produce(identity, t, 0, "new")
    s.commit(identity)
    s.look(t)


@case()
def bumping_the_epoch_after_a_time_out(s: Stage) -> None:
    t = s.partition()
    identity = timed_out(s, t)
    after = s.init(current=identity)
    s.describe(identity)
    if s.is_v2:  # with v1 the time-out has fenced it for good
        s.produce(after, t, 0, "new")
        s.commit(after)
    s.look(t)


@case()
def offsets_of_a_transaction_that_takes_too_long_never_count(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5, timeout_ms=TIMEOUT_MS)
    s.look_at_offset(t)
    s.settle(identity)
    s.look_at_offset(t)
    s.commit_offset(identity, t, 6)
    s.look_at_offset(t)


@case(only=1)
def a_transaction_of_added_partitions_alone_is_aborted_too(s: Stage) -> None:
    t = s.partition()
    identity = s.init(timeout_ms=TIMEOUT_MS)
    s.add(identity, t)
    s.settle(identity)
    s.describe(identity)
    s.look(t)


@case()
def time_counts_from_the_beginning_of_the_transaction_not_from_initialising(s: Stage) -> None:
    t = s.partition()
    identity = s.init(timeout_ms=TIMEOUT_MS)
    s.wait_ms(2 * TIMEOUT_MS)
    s.describe(identity)
    s.begin(identity, t)
    s.produce(identity, t, 0, "in time")
    s.commit(identity)
    s.look(t)


@case()
def each_transaction_has_a_time_of_its_own(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t, timeout_ms=TIMEOUT_MS))
    s.wait_ms(2 * TIMEOUT_MS)
    s.begin(identity, t)
    s.produce(identity, t, 0 if s.is_v2 else 1, "in time")
    s.wait_ms(TIMEOUT_MS // 2)
    s.commit(identity)
    s.look(t)


@case()
def a_late_producer_goes_on_with_the_epoch_that_its_abort_was_answered(s: Stage) -> None:
    t = s.partition()
    identity = timed_out(s, t)
    after = s.abort(identity)
    s.begin(after, t)
    s.produce(after, t, 0, "new")
    s.end(after, commit=True)
    s.settle(identity)
    s.look(t)


@case()
def a_late_producer_that_a_new_one_has_followed(s: Stage) -> None:
    t = s.partition()
    identity = timed_out(s, t)
    s.init()
    s.end(identity, commit=True)
    s.end(identity, commit=False)
    s.produce(identity, t, 1, "too late")
    s.add(identity, t)
    s.init(current=identity)
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
    identity = timed_out(s, t)
    s.begin(identity.newer(), t)
    s.produce(identity.newer(), t, 0, "whose")
    s.describe(identity)
    s.look(t)
