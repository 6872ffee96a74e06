"""TxnOffsetCommit: a consumer group's offsets in a transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import NOBODYS_ID, Change, Identity, Stage
from txnproducer.records import OffsetAndMetadata


@case()
def offsets_count_once_they_are_committed(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    s.look_at_offset(t)
    s.commit(identity)
    s.look_at_offset(t)


@case()
def aborted_offsets_never_count(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    s.abort(identity)
    s.look_at_offset(t)


@case()
def pending_offsets_hide_the_older_ones_from_those_who_want_stable_ones(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    identity = s.commit(identity)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 9)
    s.look_at_offset(t)
    s.abort(identity)
    s.look_at_offset(t)


@case()
def of_two_offsets_in_a_transaction_the_last_counts(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 9)
    s.commit_offset(identity, t, 5)
    s.commit(identity)
    s.look_at_offset(t)


@case()
def offsets_and_records_are_committed_together(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5)
    s.look_at_offset(t)
    s.look(t)
    s.commit(identity)
    s.look_at_offset(t)
    s.look(t)


@case()
def offsets_of_two_groups_go_with_one_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    for group in ("g", "h"):
        s.begin_offsets(identity, group)
        s.commit_offset(identity, t, 5, group)
    s.commit(identity)
    s.look_at_offset(t, "g")
    s.look_at_offset(t, "h")


@case()
def two_transactions_for_one_group_each_decide_their_own(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    first, second = s.init("a"), s.init("b")
    s.begin_offsets(first)
    s.begin_offsets(second)
    s.commit_offset(first, t, 5)
    s.commit_offset(second, u, 7)
    s.commit(first)
    s.abort(second)
    s.look_at_offset(t)
    s.look_at_offset(u)


@case(only=2)
def writing_an_offset_begins_the_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.commit_offset(identity, t, 5)
    s.describe(identity)
    s.commit(identity)
    s.look_at_offset(t)


@case(only=1)
def offsets_of_a_group_that_was_not_added_are_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.commit_offset(identity, t, 5)
    s.add(identity, t)
    s.commit_offset(identity, t, 5)
    s.look_at_offset(t)


@case()
def an_old_epoch_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    s.init()
    s.settle(identity)
    s.commit_offset(identity, t, 6)
    s.look_at_offset(t)


@case()
def an_old_epoch_that_the_group_has_not_seen_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.init()
    s.commit_offset(identity, t, 6)
    s.look_at_offset(t)


@cases(
    {
        "a_later_epoch_writes_no_offsets": (Identity.newer,),
        "a_strange_producer_id_writes_no_offsets": (Identity.stranger,),
    }
)
def a_wrong_identity_writes_no_offsets(s: Stage, change: Change) -> None:
    t = s.partition()
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(change(identity), t, 6)
    s.look_at_offset(t)


@case()
def an_unknown_id_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    s.commit_offset(Identity(s.name("nobody"), NOBODYS_ID, 0), t, 6)
    s.look_at_offset(t)


@case()
def the_empty_group_has_no_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.commit_offset(identity, t, 6, group="")


@case()
def an_unknown_topic_has_no_offsets(s: Stage) -> None:
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(identity, s.unknown_partition(), 6)


@case()
def an_unknown_topic_spoils_no_other_offset(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin_offsets(identity)
    written = OffsetAndMetadata(5)
    s.commit_offsets(identity, (t, written), (s.unknown_partition(), written))
    s.commit(identity)
    s.look_at_offset(t)


@case()
def metadata_above_four_kibibytes_is_refused(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.begin_offsets(identity)
    longest, too_long = (OffsetAndMetadata(5, "x" * size) for size in (4096, 4097))
    s.commit_offsets(identity, (t, longest), (u, too_long))
    s.commit(identity)
    s.look_at_offset(t)
    s.look_at_offset(u)


@case(only=2)
def after_a_commit_the_former_identity_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.commit_offset(identity, t, 5)
    after = s.commit(identity)
    s.commit_offset(identity, t, 6)
    s.describe(identity)
    s.commit_offset(after, t, 7)
    s.commit(after)
    s.look_at_offset(t)


@case(only=1)
def after_a_commit_the_group_has_to_be_added_again(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    s.commit(identity)
    s.commit_offset(identity, t, 6)
    s.look_at_offset(t)


@case()
def an_aborted_offset_lets_the_next_one_through(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    identity = s.abort(identity)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 3)
    s.commit(identity)
    s.look_at_offset(t)


@case()
def refused_offsets_of_an_old_epoch_and_the_pending_ones_of_the_new(s: Stage) -> None:
    t, u, v = s.partitions("t", 3)
    old, new = s.init(), s.init()
    s.begin_offsets(new)
    s.commit_offset(new, t, 8)
    s.commit_offset(new, u, 9)
    s.commit_offset(old, t, 6)
    s.commit_offset(old, v, 7)
    s.look_at_offset(t)
    s.look_at_offset(u)
    s.commit(new)
    for place in (t, u, v):
        s.look_at_offset(place)


@case()
def offsets_that_a_new_producer_interrupts_never_count(s: Stage) -> None:
    t = s.partition()
    old = s.open_offsets(t, 5)
    s.init()
    s.settle(old)
    s.look_at_offset(t)
    new = s.open_offsets(t, 8)
    s.commit_offset(old, t, 6)
    s.commit(new)
    s.look_at_offset(t)
