"""FindCoordinator, Metadata and DescribeTransactions: the places of things, and their states."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import Stage
from txnproducer._protocol import messages as m
from txnproducer.records import TopicPartition


@cases(
    {
        "every_transactional_id_has_a_coordinator": ("a", m.CoordinatorType.TRANSACTION),
        "every_group_has_a_coordinator": ("g", m.CoordinatorType.GROUP),
        "the_empty_transactional_id_is_looked_up_like_any": ("", m.CoordinatorType.TRANSACTION),
        "the_empty_group_is_looked_up_like_any": ("", m.CoordinatorType.GROUP),
    }
)
def looking_a_coordinator_up(s: Stage, name: str, kind: m.CoordinatorType) -> None:
    s.ask(m.FindCoordinatorRequest(s.name(name) if name else "", kind))


@case()
def metadata_tells_of_brokers_alone_if_asked_for_no_topic(s: Stage) -> None:
    s.ask(m.MetadataRequest((), allow_auto_topic_creation=False))


@case()
def metadata_tells_of_every_partition(s: Stage) -> None:
    t, *_ = s.partitions("t", 3)
    s.ask(m.MetadataRequest((t.topic,), allow_auto_topic_creation=False))


@case()
def metadata_of_an_unknown_topic_spoils_nothing_else(s: Stage) -> None:
    t = s.partition()
    names = (t.topic, s.name("nowhere"))
    s.ask(m.MetadataRequest(names, allow_auto_topic_creation=False))


@case()
def an_unknown_id_has_no_description(s: Stage) -> None:
    s.describe("nobody")


@case()
def an_empty_id_has_no_description(s: Stage) -> None:
    s.ask(m.DescribeTransactionsRequest(("",)))


@case()
def several_ids_are_described_at_once(s: Stage) -> None:
    s.init("a")
    s.init("b")
    names = tuple(s.name(name) for name in ("a", "nobody", "b"))
    s.ask(m.DescribeTransactionsRequest(names))


@case()
def a_description_follows_the_life_of_an_id(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.describe(identity)
    s.begin(identity, t, u)
    s.produce(identity, u, 0, "one")
    s.produce(identity, t, 0, "two")
    s.describe(identity)
    identity = s.commit(identity)
    s.describe(identity)
    s.begin(identity, t)
    s.produce(identity, t, 2 if not s.is_v2 else 0, "three")
    identity = s.abort(identity)
    s.describe(identity)


@case()
def a_description_names_the_offsets_partition(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5)
    s.describe(identity)
    s.commit(identity)


@case()
def a_partition_that_there_is_not_has_no_leader_to_take_a_batch(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.produce(identity, TopicPartition(t.topic, 7), 0, "lost")
