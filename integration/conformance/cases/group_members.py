"""TxnOffsetCommit and the group's members: the rights of old and new members (KIP-447)."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import Stage


@case()
def the_groups_member_writes_its_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id=member_id, generation_id=generation_id)
    s.commit(who)
    s.look_at_offset(t)


@case()
def a_producer_that_names_no_member_writes_offsets_of_a_group_with_members(s: Stage) -> None:
    t = s.partition()
    s.join_group()
    who = s.open_offsets(t, 5)
    s.commit(who)
    s.look_at_offset(t)


@case()
def an_old_generation_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id=member_id, generation_id=generation_id + 1)
    s.commit_offset(who, t, 5, member_id=member_id, generation_id=generation_id - 1)
    s.look_at_offset(t)


@case()
def a_strange_member_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    _, generation_id = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id="stranger", generation_id=generation_id)
    s.commit_offset(who, t, 5, member_id="", generation_id=generation_id)
    s.look_at_offset(t)


@case()
def an_unknown_static_member_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(
        who, t, 5, member_id=member_id, generation_id=generation_id, instance_id="stranger"
    )
    s.look_at_offset(t)


@cases(
    {
        "a_generation_of_a_group_that_there_is_not_writes_no_offsets": (3, None),
        "a_static_member_of_a_group_that_there_is_not_writes_no_offsets": (1, "nobody"),
        "a_strange_member_without_a_generation_of_a_group_that_there_is_not": (-1, None),
    }
)
def a_member_of_a_group_that_there_is_not(
    s: Stage, generation_id: int, instance_id: str | None
) -> None:
    t = s.partition()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(
        who, t, 5, member_id="stranger", generation_id=generation_id, instance_id=instance_id
    )
    s.look_at_offset(t)


@case()
def a_member_of_a_group_that_has_only_offsets_writes_none(s: Stage) -> None:
    t = s.partition()
    who = s.open_offsets(t, 5)
    s.commit_offset(who, t, 6, member_id="stranger", generation_id=3)
    s.commit(who)
    s.look_at_offset(t)


@case()
def a_member_without_a_generation_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, _ = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id=member_id, generation_id=-1)
    s.commit_offset(who, t, 5, member_id="stranger", generation_id=-1)
    s.look_at_offset(t)


@case()
def the_groups_static_member_writes_its_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group(instance_id="me")
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id=member_id, generation_id=generation_id, instance_id="me")
    s.commit(who)
    s.look_at_offset(t)


@case()
def a_static_member_that_another_has_replaced_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group(instance_id="me")
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id="former", generation_id=generation_id, instance_id="me")
    s.commit_offset(
        who, t, 5, member_id=member_id, generation_id=generation_id + 1, instance_id="me"
    )
    s.look_at_offset(t)


@case()
def refused_offsets_leave_the_transaction_open(s: Stage) -> None:
    t = s.partition()
    member_id, generation_id = s.join_group()
    who = s.init()
    s.begin_offsets(who)
    s.commit_offset(who, t, 5, member_id="stranger", generation_id=generation_id)
    s.describe(who)
    s.commit_offset(who, t, 6, member_id=member_id, generation_id=generation_id)
    s.commit(who)
    s.look_at_offset(t)


@case()
def a_strange_member_without_a_generation_of_a_group_that_has_only_offsets(s: Stage) -> None:
    t = s.partition()
    who = s.open_offsets(t, 5)
    who = s.commit(who)
    s.begin_offsets(who)
    s.commit_offset(who, t, 6, member_id="stranger")
    s.commit(who)
    s.look_at_offset(t)
