"""AddPartitionsToTxn and AddOffsetsToTxn: how a transaction of the first version begins.

Clients of transactions v2 send neither, but brokers answer them all the same.
"""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import NOBODYS_ID, Change, End, Identity, Stage
from txnproducer._protocol import messages as m
from txnproducer.records import TopicPartition


@case()
def adding_a_partition_begins_the_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t)
    s.describe(identity)
    s.look(t)


@case()
def partitions_are_added_in_several_calls(s: Stage) -> None:
    t, u, v = s.partitions("t", 3)
    identity = s.init()
    s.add(identity, t)
    s.add(identity, u, v)
    s.describe(identity)


@case()
def adding_a_partition_again_changes_nothing(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.add(identity, t)
    s.add(identity, t)
    s.add(identity, t, u)
    s.describe(identity)


@case()
def with_an_unknown_topic_no_partition_is_added(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t, s.unknown_partition())
    s.describe(identity)


@case()
def with_an_unknown_partition_none_is_added(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t, TopicPartition(t.topic, 7))
    s.describe(identity)


@case()
def an_old_epoch_adds_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.init()
    s.add(identity, t)
    s.add_offsets(identity)
    s.describe(identity)


@cases(
    {
        "a_later_epoch_adds_nothing": (Identity.newer,),
        "a_strange_producer_id_adds_nothing": (Identity.stranger,),
    }
)
def a_wrong_identity_adds_nothing(s: Stage, change: Change) -> None:
    t = s.partition()
    identity = change(s.init())
    s.add(identity, t)
    s.add_offsets(identity)


@case()
def an_id_that_was_never_initialised_adds_nothing(s: Stage) -> None:
    t = s.partition()
    nobody = Identity(s.name("a"), NOBODYS_ID, 0)
    s.add(nobody, t)
    s.add_offsets(nobody)
    s.describe("a")


@case()
def an_empty_id_adds_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    nobody = Identity("", identity.producer_id, identity.producer_epoch)
    s.add(nobody, t)
    s.add_offsets(nobody)


@cases(
    {
        "adding_after_a_commit_begins_the_next_transaction": (Stage.commit,),
        "adding_after_an_abort_begins_the_next_transaction": (Stage.abort,),
    }
)
def adding_begins_the_next_transaction(s: Stage, end: End) -> None:
    t, u = s.partitions("t", 2)
    identity = end(s, s.open(t))
    s.add(identity, u)
    s.describe(identity)


@case()
def adding_a_groups_offsets_begins_the_transaction(s: Stage) -> None:
    identity = s.init()
    s.add_offsets(identity)
    s.describe(identity)


@case()
def adding_a_groups_offsets_again_changes_nothing(s: Stage) -> None:
    identity = s.init()
    s.add_offsets(identity)
    s.add_offsets(identity)
    s.describe(identity)


@case()
def the_offsets_of_the_empty_group_can_be_added(s: Stage) -> None:
    identity = s.init()
    assert identity.transactional_id is not None
    s.ask(
        m.AddOffsetsToTxnRequest(
            identity.transactional_id, identity.producer_id, identity.producer_epoch, ""
        )
    )
    s.describe(identity)


@cases(
    {
        "a_partition_that_was_added_gets_its_marker_even_without_a_record": (Stage.commit,),
        "a_partition_that_was_added_gets_its_abort_marker_even_without_a_record": (Stage.abort,),
    },
    only=1,
)
def an_added_partition_gets_its_marker(s: Stage, end: End) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t)
    end(s, identity)
    s.look(t)
