"""Transactions that several producers share, on real brokers, by the public API alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer import (
    ClaimRefusedError,
    ConsumerGroupMetadata,
    IllegalStateError,
    KafkaError,
    OffsetAndMetadata,
    TopicPartition,
    TransactionalProducer,
    TransactionParticipant,
)
from txnproducer.admin import committed_offsets, describe_transaction

pytestmark = pytest.mark.integration


def participant(broker, lease, claim):
    """Return a participant whose lease has come out of a pickle."""
    lease = pickle.loads(pickle.dumps(lease))
    return TransactionParticipant(lease, claim, broker.servers, max_block_ms=20_000)


def write(broker, lease, topic, text):
    """Have each claim write a record into its own partition, and return the receipts."""
    receipts = []
    for claim in range(len(lease.claims)):
        with participant(broker, lease, claim) as part:
            part.send(topic, f"{text} {claim}".encode(), partition=claim)
            receipts.append(part.receipt())
    return receipts


def seen(broker, topic):
    return sorted(values(read_with_confluent(broker.servers, topic)))


def wait_for(broker, topic, wanted):
    """Wait until readers see this: a commit returns before its markers are written."""
    wait_until(lambda: seen(broker, topic) == wanted, f"readers do not see {wanted}")


def _state(broker, transactional_id):
    described = describe_transaction(broker.servers, transactional_id)
    return None if described is None else described.state


def expected(*texts, claims=2):
    return sorted(f"{text} {claim}".encode() for text in texts for claim in range(claims))


def test_participants_records_are_committed_atomically_with_the_holders_offsets(
    broker, transactional_id
):
    topic = broker.topic(partitions=3)
    place = TopicPartition(topic, 0)
    with broker.ready(transactional_id) as holder:
        for number in range(3):
            holder.begin_transaction()
            lease = holder.lease(claims=3)
            receipts = write(broker, lease, topic, f"run {number}")
            assert len(seen(broker, topic)) == 3 * number
            holder.adopt(receipts)
            group = ConsumerGroupMetadata(transactional_id)
            holder.send_offsets_to_transaction({place: OffsetAndMetadata(number)}, group)
            holder.commit_transaction()
            wait_for(broker, topic, expected(*(f"run {n}" for n in range(number + 1)), claims=3))
            offsets = committed_offsets(broker.servers, [transactional_id], partitions=[place])
            assert offsets[transactional_id][place].offset == number


def test_only_one_of_two_processes_with_one_claim_may_write(broker, transactional_id):
    topic = broker.topic(partitions=2)
    with broker.ready(transactional_id) as holder:
        holder.begin_transaction()
        lease = holder.lease(claims=2)
        with participant(broker, lease, 0) as first:
            with pytest.raises(ClaimRefusedError, match="another process has taken it"):
                participant(broker, lease, 0)
            first.send(topic, b"first", partition=0)
            receipt = first.receipt()
        holder.adopt([receipt])
        with pytest.raises(IllegalStateError, match="the receipt of claim 1 is missing"):
            holder.commit_transaction()
        holder.abort_transaction()
        holder.begin_transaction()
        holder.adopt(write(broker, holder.lease(claims=2), topic, "again"))
        holder.commit_transaction()
    wait_for(broker, topic, expected("again"))


def test_a_zombie_participant_writes_nothing_committed_after_the_abort(broker, transactional_id):
    topic = broker.topic(partitions=2)
    with broker.ready(transactional_id) as holder:
        holder.begin_transaction()
        zombie = participant(broker, holder.lease(claims=2), 0)
        zombie.send(topic, b"before the abort", partition=0).result(20)
        holder.abort_transaction()
        holder.begin_transaction()
        receipts = write(broker, holder.lease(claims=2), topic, "next")
        with zombie:
            future = zombie.send(topic, b"after the abort", partition=0)
            with pytest.raises(KafkaError):
                future.result(20)
            with pytest.raises(KafkaError):
                zombie.receipt()
        holder.adopt(receipts)
        holder.commit_transaction()
    wait_for(broker, topic, expected("next"))


def test_a_closed_holder_takes_everything_back(broker, transactional_id):
    topic = broker.topic(partitions=2)
    with broker.ready(transactional_id) as holder:
        holder.begin_transaction()
        write(broker, holder.lease(claims=2), topic, "lost")
    assert seen(broker, topic) == []


@pytest.mark.parametrize("is_commit", [True, False])
def test_another_process_ends_a_transaction_that_was_handed_over(
    broker, transactional_id, is_commit
):
    topic = broker.topic(partitions=2)
    with broker.ready(transactional_id) as opener:
        opener.begin_transaction()
        opener.send(topic, b"opener 0", partition=0)
        opener.flush()
        lease = opener.lease(claims=0)
    lease = pickle.loads(pickle.dumps(lease))
    with TransactionalProducer.resume(lease, broker.servers) as heir:
        if is_commit:
            heir.commit_transaction()
        else:
            heir.abort_transaction()
        heir.begin_transaction()
        heir.send(topic, b"heir 0", partition=0)
        heir.commit_transaction()
    wanted = [b"heir 0", b"opener 0"] if is_commit else [b"heir 0"]
    wait_for(broker, topic, wanted)


def test_another_process_commits_with_the_receipts_of_the_first(broker, transactional_id):
    topic = broker.topic(partitions=2)
    holder = broker.ready(transactional_id)
    holder.begin_transaction()
    lease = holder.lease(claims=2)
    receipts = write(broker, lease, topic, "shared")
    with TransactionalProducer.resume(lease, broker.servers) as heir:
        heir.adopt(receipts)
        heir.commit_transaction()
        wait_for(broker, topic, expected("shared"))
    holder.close()
    assert seen(broker, topic) == expected("shared")


def test_a_lease_of_another_cluster_is_refused(broker, transactional_id):
    with broker.ready(transactional_id) as holder:
        holder.begin_transaction()
        lease = holder.lease(claims=1)
        with pytest.raises(ClaimRefusedError, match="is of cluster 'elsewhere'"):
            participant(broker, replace(lease, cluster_id="elsewhere"), 0)


def test_a_transaction_that_timed_out_is_not_committed(broker, transactional_id):
    topic = broker.topic(partitions=1)
    with broker.ready(transactional_id, transaction_timeout_ms=1_000) as holder:
        holder.begin_transaction()
        with participant(broker, holder.lease(claims=1), 0) as part:
            part.send(topic, b"too slow", partition=0).result(20)
            receipt = part.receipt()
        wait_until(
            lambda: _state(broker, transactional_id) != "Ongoing",
            "the coordinator has not aborted it",
        )
        holder.adopt([receipt])
        with pytest.raises(KafkaError):
            holder.commit_transaction()
    assert seen(broker, topic) == []
