"""The view of consumers: the last stable offset, aborted ranges, control records."""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Identity, Stage

NOBODY = Identity(None, -1, -1)


@case()
def an_open_transaction_holds_up_all_that_follows(s: Stage) -> None:
    t = s.partition()
    s.produce(NOBODY, t, -1, "before")
    identity = s.open(t)
    s.produce(NOBODY, t, -1, "after")
    s.look(t)
    s.commit(identity)
    s.look(t)


@case()
def an_aborted_transaction_lets_through_what_follows(s: Stage) -> None:
    t = s.partition()
    s.produce(NOBODY, t, -1, "before")
    identity = s.open(t)
    s.produce(NOBODY, t, -1, "after")
    s.abort(identity)
    s.look(t)


@case()
def the_oldest_open_transaction_holds_up_the_others(s: Stage) -> None:
    t = s.partition()
    first = s.open(t, "first", name="a")
    second = s.open(t, "second", name="b")
    s.look(t)
    s.commit(second)
    s.look(t)
    s.commit(first)
    s.look(t)


@case()
def transactions_that_overlap_are_told_apart(s: Stage) -> None:
    t = s.partition()
    first = s.open(t, "lost 1", name="a")
    second = s.open(t, "kept 1", name="b")
    s.produce(first, t, 1, "lost 2")
    s.produce(second, t, 1, "kept 2")
    s.abort(first)
    s.look(t)
    s.produce(second, t, 2, "kept 3")
    s.commit(second)
    s.look(t)


@case()
def aborts_and_commits_of_one_producer_alternate(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    for number in range(6):
        s.begin(identity, t)
        s.produce(identity, t, 0 if s.is_v2 else number, str(number))
        identity = s.commit(identity) if number % 2 else s.abort(identity)
    s.look(t)


@case()
def a_transaction_counts_in_each_partition_from_its_first_record(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    s.produce(NOBODY, u, -1, "plain")
    identity = s.init()
    s.begin(identity, t, u)
    s.produce(identity, t, 0, "open")
    s.look(t, u)
    s.produce(identity, u, 0, "open")
    s.look(u)
    s.abort(identity)
    s.look(t, u)


@case()
def a_transaction_without_a_record_leaves_no_trace(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.end(identity, commit=False)
    s.look(t)
