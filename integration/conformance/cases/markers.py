"""While markers are being written: the transaction is decided, and not complete.

One of two brokers is frozen meanwhile, and with it a partition that a marker is for.
"""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Identity, Stage
from txnproducer.records import TopicPartition


def open_far(s: Stage, far: TopicPartition) -> Identity:
    """Return a producer with a transaction in a far partition. The coordinator has answered it."""
    identity = s.open(far)
    s.describe(identity)
    return identity


@case(nodes=2)
def a_commit_whose_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        s.end(identity, commit=True)
        s.describe(identity)
        s.end(identity, commit=True)
        s.end(identity, commit=False)
        s.describe(identity)
    s.settle(identity)
    s.describe(identity)
    s.look(far)


@case(nodes=2)
def an_abort_whose_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        s.end(identity, commit=False)
        s.describe(identity)
        s.end(identity, commit=False)
        s.end(identity, commit=True)
    s.settle(identity)
    s.look(far)


@case(nodes=2)
def nothing_is_added_while_markers_are_being_written(s: Stage) -> None:
    near, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(identity, commit=True)
        s.add(after, near)
        s.add_offsets(after)
        s.add(after.older(), near)
        s.describe(identity)
    s.settle(identity)


@case(nodes=2)
def nothing_is_produced_while_markers_are_being_written(s: Stage) -> None:
    near, far = s.near_and_far()
    s.init()
    identity = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(identity, commit=True)
        s.produce(after, near, 0, "too early")
        s.produce(after.older(), near, 0, "of an old epoch")
        s.describe(identity)
    s.settle(identity)
    s.begin(after, near)
    s.produce(after, near, 0, "next")
    s.commit(after)
    s.look(near, far)


@case(nodes=2)
def nothing_is_initialised_while_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(identity, commit=True)
        s.init()
        s.init(current=after)
        s.init(current=identity)
        s.init(current=identity.stranger())
        s.describe(identity)
    s.settle(identity)
    s.init(current=after)
    s.describe(identity)


@case(nodes=2)
def ends_of_others_while_markers_are_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        after = s.end(identity, commit=True)
        s.end(after, commit=True)
        s.end(after, commit=False)
        s.end(after.newer(), commit=True)
        s.end(identity.stranger(), commit=True)
        s.end(identity.older(), commit=True)
    s.settle(identity)


@case(nodes=2)
def a_new_producer_while_the_old_ones_abort_is_being_written(s: Stage) -> None:
    _, far = s.near_and_far()
    identity = open_far(s, far)
    with s.hold_markers(far):
        s.init()
        s.init()
        s.describe(identity)
        s.end(identity, commit=True)
        s.end(identity, commit=False)
    s.settle(identity)
    s.describe(identity)
    s.init()
    s.look(far)
