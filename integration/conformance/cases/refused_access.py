"""An authorizer refuses a topic, a group, a transactional id or the cluster.

Every case needs a broker with an authorizer. What is refused is refused altogether: what an ACL
for a single operation does is Kafka's own affair.
"""

from __future__ import annotations

from functools import partial

from integration.conformance.case import case
from integration.conformance.stage import NOBODYS_ID, Identity, Stage
from txnproducer._broker.resources import Resource
from txnproducer._protocol import messages as m
from txnproducer.records import OffsetAndMetadata, TopicPartition

_with_authorizer = partial(case, has_authorizer=True)

TOPIC_T = (Resource.TOPIC, "t")
ID_A = (Resource.TRANSACTIONAL_ID, "a")
GROUP_G = (Resource.GROUP, "g")
CLUSTER = (Resource.CLUSTER, "")


def look_up(s: Stage, kind: m.CoordinatorType, name: str) -> None:
    s.ask(m.FindCoordinatorRequest(s.name(name), kind))


def commit_offsets(s: Stage, who: Identity, *places: TopicPartition) -> None:
    s.commit_offsets(who, *((place, OffsetAndMetadata(5)) for place in places))


@_with_authorizer()
def a_refused_topic_takes_no_more_records_but_the_end_of_a_transaction(s: Stage) -> None:
    t = s.partition()
    who = s.open(t, "kept")
    with s.denied(TOPIC_T):
        s.produce(who, t, 1, "refused")
        s.add(who, t)
        after = s.commit(who)
        s.begin(after, t)
        s.produce(after, t, 0 if s.is_v2 else 1, "refused")
        s.describe(after)
    s.look(t)


@_with_authorizer()
def a_refused_topic_beside_an_allowed_one(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.init()
    batches = [(t, s.batch(who, 0, "t")), (u, s.batch(who, 0, "u"))]
    with s.denied(TOPIC_T):
        s.add(who, t, u)
        s.describe(who)
        s.produce_batches(who.transactional_id, batches)
        s.begin(who, u)
        s.produce_batches(who.transactional_id, batches)
        s.describe(who)
    s.commit(who)
    s.look(t, u)


@_with_authorizer()
def a_refused_topic_that_there_is_not(s: Stage) -> None:
    t = s.partition("u")
    nowhere = s.unknown_partition()
    who = s.open(t)
    with s.denied((Resource.TOPIC, "nowhere")):
        s.add(who, nowhere, t)
        s.begin_offsets(who)
        commit_offsets(s, who, nowhere, t)
        s.ask(m.MetadataRequest((nowhere.topic, t.topic), False))
    s.abort(who)


@_with_authorizer()
def metadata_of_a_refused_topic(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    with s.denied(TOPIC_T):
        s.ask(m.MetadataRequest((t.topic, u.topic), False))
    s.ask(m.MetadataRequest((t.topic, u.topic), False))


@_with_authorizer()
def a_refused_transactional_id_is_not_initialised(s: Stage) -> None:
    who = s.init()
    with s.denied(ID_A):
        look_up(s, m.CoordinatorType.TRANSACTION, "a")
        look_up(s, m.CoordinatorType.GROUP, "a")
        s.init()
        s.init(current=who)
        s.init(timeout_ms=0)
        s.init(current=Identity(None, who.producer_id, -1))
        s.init("another")
        s.describe(who)
    s.describe(who)


@_with_authorizer()
def a_refused_transactional_id_in_an_open_transaction(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.open(t, "kept")
    with s.denied(ID_A):
        s.produce(who, t, 1, "refused")
        s.produce_batches(
            who.transactional_id, [(t, s.batch(who, 1, "no")), (u, s.batch(who, 0, "no"))]
        )
        s.add(who, t, u)
        s.add_offsets(who)
        s.commit_offset(who, t, 5)
        s.end(who, commit=True)
        s.end(who, commit=False)
    s.describe(who)
    s.commit(who)
    s.look(t, u)


@_with_authorizer()
def a_refused_transactional_id_of_a_fenced_or_unknown_producer(s: Stage) -> None:
    t = s.partition()
    s.init()
    who = s.open(t)
    with s.denied(ID_A, (Resource.TRANSACTIONAL_ID, "unknown")):
        for each in (who.older(), who.stranger(), Identity(s.name("unknown"), NOBODYS_ID, 0)):
            s.add(each, t)
            s.produce(each, t, 1, "refused")
            s.commit_offset(each, t, 5)
            s.end(each, commit=True)
        s.describe("unknown")
    s.abort(who)
    s.look(t)


@_with_authorizer()
def a_refused_group_takes_no_offsets(s: Stage) -> None:
    t = s.partition()
    who = s.open(t, "kept")
    with s.denied(GROUP_G):
        look_up(s, m.CoordinatorType.GROUP, "g")
        look_up(s, m.CoordinatorType.TRANSACTION, "g")
        s.add_offsets(who)
        s.commit_offset(who, t, 5)
        s.describe(who)
    s.commit(who)
    s.look_at_offset(t)
    s.look(t)


@_with_authorizer()
def a_refused_group_with_a_refused_topic_or_id(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.open(t)
    with s.denied(GROUP_G, TOPIC_T):
        s.commit_offset(who, t, 5)
        commit_offsets(s, who, t, u)
    with s.denied(GROUP_G, ID_A):
        s.add_offsets(who)
        commit_offsets(s, who, t, u)
    with s.denied(TOPIC_T, ID_A):
        s.add(who, t, u)
        s.produce(who, t, 1, "refused")
        commit_offsets(s, who, t, u)
    s.abort(who)


@_with_authorizer()
def offsets_of_a_refused_topic_beside_those_of_an_allowed_one(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.init()
    with s.denied(TOPIC_T):
        s.begin_offsets(who)
        commit_offsets(s, who, t, u)
        s.describe(who)
    s.commit(who)
    s.look_at_offset(t)
    s.look_at_offset(u)


@_with_authorizer()
def offsets_of_a_refused_topic_alone_begin_nothing(s: Stage) -> None:
    t = s.partition("t")
    who = s.init()
    with s.denied(TOPIC_T):
        commit_offsets(s, who, t)
    s.describe(who)


@_with_authorizer()
def a_description_leaves_the_partitions_of_refused_topics_out(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.open(t)
    s.begin(who, u)
    s.produce(who, u, 0, "open")
    with s.denied(TOPIC_T):
        s.describe(who)
    with s.denied(TOPIC_T, (Resource.TOPIC, "u")):
        s.describe(who)
    s.describe(who)
    s.abort(who)


@_with_authorizer()
def a_refused_cluster_gives_idempotent_producers_no_ids(s: Stage) -> None:
    with s.denied(CLUSTER):
        s.init_idempotent()
        s.init()
    s.init_idempotent()


@_with_authorizer()
def batches_whose_request_names_no_refused_id(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    who = s.init()
    plain = s.init_idempotent()
    with s.denied(ID_A):
        s.produce(plain, t, 0, "kept")
        s.produce_batches(who.transactional_id, [(u, s.batch(plain, 0, "kept"))])
        s.produce_batches(None, [(t, s.batch(who, 0, "refused"))])
    with s.denied(ID_A, TOPIC_T):
        s.produce_batches(
            who.transactional_id, [(t, s.batch(who, 0, "no")), (u, s.batch(plain, 1, "no"))]
        )
    s.look(t, u)
