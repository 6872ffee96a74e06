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


def commit_offsets(s: Stage, identity: Identity, *places: TopicPartition) -> None:
    s.commit_offsets(identity, *((place, OffsetAndMetadata(5)) for place in places))


@_with_authorizer()
def a_refused_topic_takes_no_more_records_but_the_end_of_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "kept")
    with s.denied(TOPIC_T):
        s.produce(identity, t, 1, "refused")
        s.add(identity, t)
        after = s.commit(identity)
        s.begin(after, t)
        s.produce(after, t, 0 if s.is_v2 else 1, "refused")
        s.describe(after)
    s.look(t)


@_with_authorizer()
def a_refused_topic_beside_an_allowed_one(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.init()
    batches = [(t, s.batch(identity, 0, "t")), (u, s.batch(identity, 0, "u"))]
    with s.denied(TOPIC_T):
        s.add(identity, t, u)
        s.describe(identity)
        s.produce_batches(identity.transactional_id, batches)
        s.begin(identity, u)
        s.produce_batches(identity.transactional_id, batches)
        s.describe(identity)
    s.commit(identity)
    s.look(t, u)


@_with_authorizer()
def a_refused_topic_that_there_is_not(s: Stage) -> None:
    t = s.partition("u")
    nowhere = s.unknown_partition()
    identity = s.open(t)
    with s.denied((Resource.TOPIC, "nowhere")):
        s.add(identity, nowhere, t)
        s.begin_offsets(identity)
        commit_offsets(s, identity, nowhere, t)
        s.ask(m.MetadataRequest((nowhere.topic, t.topic), False))
    s.abort(identity)


@_with_authorizer()
def metadata_of_a_refused_topic(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    with s.denied(TOPIC_T):
        s.ask(m.MetadataRequest((t.topic, u.topic), False))
    s.ask(m.MetadataRequest((t.topic, u.topic), False))


@_with_authorizer()
def a_refused_transactional_id_is_not_initialised(s: Stage) -> None:
    identity = s.init()
    with s.denied(ID_A):
        look_up(s, m.CoordinatorType.TRANSACTION, "a")
        look_up(s, m.CoordinatorType.GROUP, "a")
        s.init()
        s.init(current=identity)
        s.init(timeout_ms=0)
        s.init(current=Identity(None, identity.producer_id, -1))
        s.init("another")
        s.describe(identity)
    s.describe(identity)


@_with_authorizer()
def a_refused_transactional_id_in_an_open_transaction(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.open(t, "kept")
    with s.denied(ID_A):
        s.produce(identity, t, 1, "refused")
        s.produce_batches(
            identity.transactional_id,
            [(t, s.batch(identity, 1, "no")), (u, s.batch(identity, 0, "no"))],
        )
        s.add(identity, t, u)
        s.add_offsets(identity)
        s.commit_offset(identity, t, 5)
        s.end(identity, commit=True)
        s.end(identity, commit=False)
    s.describe(identity)
    s.commit(identity)
    s.look(t, u)


@_with_authorizer()
def a_refused_transactional_id_of_a_fenced_or_unknown_producer(s: Stage) -> None:
    t = s.partition()
    s.init()
    identity = s.open(t)
    with s.denied(ID_A, (Resource.TRANSACTIONAL_ID, "unknown")):
        for each in (
            identity.older(),
            identity.stranger(),
            Identity(s.name("unknown"), NOBODYS_ID, 0),
        ):
            s.add(each, t)
            s.produce(each, t, 1, "refused")
            s.commit_offset(each, t, 5)
            s.end(each, commit=True)
        s.describe("unknown")
    s.abort(identity)
    s.look(t)


@_with_authorizer()
def a_refused_group_takes_no_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "kept")
    with s.denied(GROUP_G):
        look_up(s, m.CoordinatorType.GROUP, "g")
        look_up(s, m.CoordinatorType.TRANSACTION, "g")
        s.add_offsets(identity)
        s.commit_offset(identity, t, 5)
        s.describe(identity)
    s.commit(identity)
    s.look_at_offset(t)
    s.look(t)


@_with_authorizer()
def a_refused_group_with_a_refused_topic_or_id(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.open(t)
    with s.denied(GROUP_G, TOPIC_T):
        s.commit_offset(identity, t, 5)
        commit_offsets(s, identity, t, u)
    with s.denied(GROUP_G, ID_A):
        s.add_offsets(identity)
        commit_offsets(s, identity, t, u)
    with s.denied(TOPIC_T, ID_A):
        s.add(identity, t, u)
        s.produce(identity, t, 1, "refused")
        commit_offsets(s, identity, t, u)
    s.abort(identity)


@_with_authorizer()
def offsets_of_a_refused_topic_beside_those_of_an_allowed_one(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.init()
    with s.denied(TOPIC_T):
        s.begin_offsets(identity)
        commit_offsets(s, identity, t, u)
        s.describe(identity)
    s.commit(identity)
    s.look_at_offset(t)
    s.look_at_offset(u)


@_with_authorizer()
def offsets_of_a_refused_topic_alone_begin_nothing(s: Stage) -> None:
    t = s.partition("t")
    identity = s.init()
    with s.denied(TOPIC_T):
        commit_offsets(s, identity, t)
    s.describe(identity)


@_with_authorizer()
def a_description_leaves_the_partitions_of_refused_topics_out(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.open(t)
    s.begin(identity, u)
    s.produce(identity, u, 0, "open")
    with s.denied(TOPIC_T):
        s.describe(identity)
    with s.denied(TOPIC_T, (Resource.TOPIC, "u")):
        s.describe(identity)
    s.describe(identity)
    s.abort(identity)


@_with_authorizer()
def a_refused_cluster_gives_idempotent_producers_no_ids(s: Stage) -> None:
    with s.denied(CLUSTER):
        s.init_idempotent()
        s.init()
    s.init_idempotent()


@_with_authorizer()
def batches_whose_request_names_no_refused_id(s: Stage) -> None:
    t, u = s.partition("t"), s.partition("u")
    identity = s.init()
    plain = s.init_idempotent()
    with s.denied(ID_A):
        s.produce(plain, t, 0, "kept")
        s.produce_batches(identity.transactional_id, [(u, s.batch(plain, 0, "kept"))])
        s.produce_batches(None, [(t, s.batch(identity, 0, "refused"))])
    with s.denied(ID_A, TOPIC_T):
        s.produce_batches(
            identity.transactional_id,
            [(t, s.batch(identity, 0, "no")), (u, s.batch(plain, 1, "no"))],
        )
    s.look(t, u)
