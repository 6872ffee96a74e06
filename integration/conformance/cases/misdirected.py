"""Requests to brokers that they are not for: not the leader, not the coordinator."""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Identity, Stage
from txnproducer._protocol import messages as m
from txnproducer.records import OffsetAndMetadata, TopicPartition


def of(identity: Identity) -> tuple[str, int, int]:
    """Return how requests name a producer."""
    assert identity.transactional_id is not None
    return identity.transactional_id, identity.producer_id, identity.producer_epoch


@case(nodes=2)
def only_the_coordinator_initialises(s: Stage) -> None:
    s.ask_elsewhere(m.InitProducerIdRequest(s.name("a"), 60_000))
    s.ask_elsewhere(m.InitProducerIdRequest(s.name("a"), 0))
    s.init()


@case(nodes=2)
def any_broker_gives_producer_ids_without_a_transactional_id(s: Stage) -> None:
    s.ask_elsewhere(m.InitProducerIdRequest(None, 60_000))
    s.init_idempotent()


@case(nodes=2)
def only_the_coordinator_adds_to_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.ask_elsewhere(m.AddPartitionsToTxnRequest(*of(identity), (t,)))
    s.ask_elsewhere(m.AddPartitionsToTxnRequest(*of(identity.stranger()), (t,)))
    s.ask_elsewhere(m.AddOffsetsToTxnRequest(*of(identity), s.name("g")))
    s.describe(identity)


@case(nodes=2)
def only_the_coordinator_ends_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.ask_elsewhere(m.EndTxnRequest(*of(identity), True, s.is_v2))
    s.ask_elsewhere(m.EndTxnRequest(*of(identity.stranger()), False, s.is_v2))
    s.describe(identity)
    s.commit(identity)
    s.describe(identity)


@case(nodes=2)
def only_the_coordinator_describes(s: Stage) -> None:
    identity = s.init()
    s.ask_elsewhere(m.DescribeTransactionsRequest((of(identity)[0],)))


@case(nodes=2)
def only_the_groups_coordinator_takes_its_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin_offsets(identity)
    s.ask_elsewhere(s.offsets_request(identity, (t, OffsetAndMetadata(5))))
    s.describe(identity)


@case(nodes=2)
def only_the_leader_takes_a_batch(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    batch = s.batch(identity, 0, "lost")
    s.ask_elsewhere(s.produce_request(identity.transactional_id, [(t, batch)]))
    s.describe(identity)


@case(nodes=2)
def only_the_leader_takes_a_batch_without_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.ask_elsewhere(s.produce_request(None, [(t, s.batch(identity, 0, "lost"))]))
    s.produce(identity, t, 0, "kept")


@case(nodes=2)
def a_partition_that_there_is_not_has_no_leader_elsewhere_either(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    nowhere = TopicPartition(t.topic, 7)
    batches = [(t, s.batch(identity, 0, "lost")), (nowhere, s.batch(identity, 0, "lost"))]
    s.ask_elsewhere(s.produce_request(None, batches))


@case(nodes=2)
def every_broker_tells_who_coordinates_and_who_leads(s: Stage) -> None:
    t, *_ = s.partitions("t", 4)
    s.ask_elsewhere(m.FindCoordinatorRequest(s.name("a"), m.CoordinatorType.TRANSACTION))
    s.ask(m.FindCoordinatorRequest(s.name("a"), m.CoordinatorType.TRANSACTION))
    s.ask_elsewhere(m.MetadataRequest((t.topic,), allow_auto_topic_creation=False))
    s.ask(m.MetadataRequest((t.topic,), allow_auto_topic_creation=False))


@case(nodes=2)
def a_transaction_spans_brokers(s: Stage) -> None:
    places = s.partitions("t", 4)
    identity = s.init()
    s.begin(identity, *places)
    for place in places:
        s.produce(identity, place, 0, "kept")
    s.describe(identity)
    s.commit(identity)
    s.describe(identity)
    s.look(*places)
