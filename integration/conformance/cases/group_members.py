"""TxnOffsetCommit and the group's members: the rights of old and new members (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable

from integration.conformance.case import case, cases
from integration.conformance.stage import Stage
from integration.conformance.target import Member


@cases(
    {
        "the_groups_member_writes_its_offsets": (None,),
        "the_groups_static_member_writes_its_offsets": ("me",),
    }
)
def a_member_writes_offsets(s: Stage, instance_id: str | None) -> None:
    t = s.partition()
    member = s.join_group(instance_id=instance_id)
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5, member=member)
    s.commit(identity)
    s.look_at_offset(t)


@case()
def a_producer_that_names_no_member_writes_offsets_of_a_group_with_members(s: Stage) -> None:
    t = s.partition()
    s.join_group()
    identity = s.open_offsets(t, 5)
    s.commit(identity)
    s.look_at_offset(t)


@cases(
    {
        "an_old_generation_writes_no_offsets": (
            lambda member: member._replace(generation_id=member.generation_id + 1),
            lambda member: member._replace(generation_id=member.generation_id - 1),
        ),
        "a_strange_member_writes_no_offsets": (
            lambda member: member._replace(member_id="stranger"),
            lambda member: member._replace(member_id=""),
        ),
        "an_unknown_static_member_writes_no_offsets": (
            lambda member: member._replace(instance_id="stranger"),
        ),
        "a_member_without_a_generation_writes_no_offsets": (
            lambda member: member._replace(generation_id=-1),
            lambda member: member._replace(generation_id=-1, member_id="stranger"),
        ),
    }
)
def a_wrong_member_writes_no_offsets(s: Stage, *changes: Callable[[Member], Member]) -> None:
    t = s.partition()
    member = s.join_group()
    identity = s.init()
    s.begin_offsets(identity)
    for change in changes:
        s.commit_offset(identity, t, 5, member=change(member))
    s.look_at_offset(t)


@cases(
    {
        "a_generation_of_a_group_that_there_is_not_writes_no_offsets": (Member("stranger", 3),),
        "a_static_member_of_a_group_that_there_is_not_writes_no_offsets": (
            Member("stranger", 1, "nobody"),
        ),
        "a_strange_member_without_a_generation_of_a_group_that_there_is_not": (
            Member("stranger"),
        ),
    }
)
def a_member_of_a_group_that_there_is_not_writes_no_offsets(s: Stage, member: Member) -> None:
    t = s.partition()
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5, member=member)
    s.look_at_offset(t)


@case()
def a_member_of_a_group_that_has_only_offsets_writes_none(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    s.commit_offset(identity, t, 6, member=Member("stranger", 3))
    s.commit(identity)
    s.look_at_offset(t)


@case()
def a_static_member_that_another_has_replaced_writes_no_offsets(s: Stage) -> None:
    t = s.partition()
    member = s.join_group(instance_id="me")
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5, member=member._replace(member_id="former"))
    later = member._replace(generation_id=member.generation_id + 1)
    s.commit_offset(identity, t, 5, member=later)
    s.look_at_offset(t)


@case()
def refused_offsets_leave_the_transaction_open(s: Stage) -> None:
    t = s.partition()
    member = s.join_group()
    identity = s.init()
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5, member=member._replace(member_id="stranger"))
    s.describe(identity)
    s.commit_offset(identity, t, 6, member=member)
    s.commit(identity)
    s.look_at_offset(t)


@case()
def a_strange_member_without_a_generation_of_a_group_that_has_only_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.open_offsets(t, 5)
    identity = s.commit(identity)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 6, member=Member("stranger"))
    s.commit(identity)
    s.look_at_offset(t)
