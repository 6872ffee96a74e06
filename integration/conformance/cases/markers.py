"""While markers are being written: the transaction is decided, and not complete.

One of two brokers is frozen meanwhile, and with it a partition that a marker is for.
"""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Identity, Stage
from txnproducer.records import TopicPartition


def open_far(s: Stage, far: TopicPartition) -> Identity:
    """Return a producer with a transaction in a far partition. The coordinator has answered it."""
    who = s.open(far)
    s.describe(who)
    return who


@case(nodes=2)
def a_commit_whose_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        s.end(who, commit=True)
        s.describe(who)
        s.end(who, commit=True)
        s.end(who, commit=False)
        s.describe(who)
    s.settle(who)
    s.describe(who)
    s.look(far)


@case(nodes=2)
def an_abort_whose_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        s.end(who, commit=False)
        s.describe(who)
        s.end(who, commit=False)
        s.end(who, commit=True)
    s.settle(who)
    s.look(far)


@case(nodes=2)
def nothing_is_added_while_markers_are_being_written(s: Stage) -> None:
    near, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(who, commit=True)
        s.add(after, near)
        s.add_offsets(after)
        s.add(after.older(), near)
        s.describe(who)
    s.settle(who)


@case(nodes=2)
def nothing_is_produced_while_markers_are_being_written(s: Stage) -> None:
    near, far = s.near_and_far()
    s.init()
    who = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(who, commit=True)
        s.produce(after, near, 0, "too early")
        s.produce(after.older(), near, 0, "of an old epoch")
        s.describe(who)
    s.settle(who)
    s.begin(after, near)
    s.produce(after, near, 0, "next")
    s.commit(after)
    s.look(near, far)


@case(nodes=2)
def nothing_is_initialised_while_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(who, commit=True)
        s.init()
        s.init(current=after)
        s.init(current=who)
        s.init(current=who.stranger())
        s.describe(who)
    s.settle(who)
    s.init(current=after)
    s.describe(who)


@case(nodes=2)
def ends_of_others_while_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(who, commit=True)
        s.end(after, commit=True)
        s.end(after, commit=False)
        s.end(after.newer(), commit=True)
        s.end(who.stranger(), commit=True)
        s.end(who.older(), commit=True)
    s.settle(who)


@case(nodes=2)
def a_new_producer_while_the_old_ones_abort_is_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    who = open_far(s, far)
    with s.hold_markers(far):
        s.init()
        s.init()
        s.describe(who)
        s.end(who, commit=True)
        s.end(who, commit=False)
    s.settle(who)
    s.describe(who)
    s.init()
    s.look(far)
