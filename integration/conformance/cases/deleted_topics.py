"""Topics that are deleted, perhaps made again, and topics that get more partitions."""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Identity, Stage
from txnproducer.records import TopicPartition


def produce_to_id(
    s: Stage, identity: Identity, place: TopicPartition, sequence: int, topic_id: bytes | None
) -> None:
    """Produce a batch under a topic id that may be another topic's."""
    batch = s.batch(identity, sequence, f"v{sequence}")
    s.ask(s.produce_request(identity.transactional_id, [(place, batch)], topic_id=topic_id))


@case()
def a_batch_for_a_deleted_topic_is_refused_by_its_id_or_name(s: Stage) -> None:
    t = s.partition()
    topic_id = s.topic_id(t)
    identity = s.init_idempotent()
    produce_to_id(s, identity, t, 0, topic_id)
    s.delete(t)
    produce_to_id(s, identity, t, 1, topic_id)


@case()
def a_topic_made_again_has_another_id_and_knows_no_producer(s: Stage) -> None:
    t = s.partition()
    topic_id = s.topic_id(t)
    identity = s.init_idempotent()
    produce_to_id(s, identity, t, 0, topic_id)
    s.delete(t)
    s.partition()
    produce_to_id(s, identity, t, 1, topic_id)
    produce_to_id(s, identity, t, 1, s.topic_id(t))
    produce_to_id(s, identity, t, 2, s.topic_id(t))
    s.look(t)


@case()
def a_transaction_goes_on_in_a_topic_that_was_made_again(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.delete(t)
    s.partition()
    s.describe(identity)
    produce_to_id(s, identity, t, 1, s.topic_id(t))
    produce_to_id(s, identity, t, 0, s.topic_id(t))
    s.commit(identity)
    s.describe(identity)
    s.look(t)


@case()
def a_transaction_ends_though_a_topic_of_its_was_deleted(s: Stage) -> None:
    t, u = s.partition(), s.partition("u")
    identity = s.open(t)
    s.begin(identity, u)
    s.produce(identity, u, 0, "kept")
    s.delete(t)
    s.commit(identity)
    s.describe(identity)
    s.look(u)


@case()
def a_deleted_topic_cannot_be_added_to_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.delete(t)
    s.add(identity, t)
    s.begin_offsets(identity)
    s.commit_offset(identity, t, 5)
    s.describe(identity)


@case()
def a_partition_that_is_added_takes_batches_from_then_on(s: Stage) -> None:
    t = s.partition()
    added = TopicPartition(t.topic, 1)
    identity = s.init()
    s.produce(identity, added, 0, "too early")
    s.add_partitions(t, 2)
    s.begin(identity, added)
    s.produce(identity, added, 0, "in time")
    s.commit(identity)
    s.look(t, added)
