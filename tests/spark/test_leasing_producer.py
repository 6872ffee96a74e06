"""A whole batch's claims, and a run's ids, are taken many at once."""

from __future__ import annotations

import pytest

from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    ClaimRefusedError,
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from txnproducer.lease import TransactionParticipant
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TransactionLease
from txnproducer.spark.errors import MissingRightError
from txnproducer.spark.ledger import leasing_producer
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient
from txnproducer.spark.ledger.leasing_producer import LeasingProducer
from txnproducer.spark.ledger.producers import take_ids
from txnproducer.spark.ledger.store import Ledger
from txnproducer.testing import InMemoryKafka

CLAIMS = 12
NAME = "sink.batch"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka({"orders": CLAIMS}, nodes=3, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def asked(monkeypatch):
    """Return the claims that were taken in advance, call by call."""
    calls = []

    class Noting(CoordinatorClient):
        def take_claims(self, claims, timeout_ms):
            calls.append([number for _, number in claims])
            return super().take_claims(claims, timeout_ms)

    monkeypatch.setattr(leasing_producer, "CoordinatorClient", Noting)
    return calls


@pytest.fixture
def producer(kafka):
    config = ProducerConfig.build(
        bootstrap_servers=kafka.listen(), transactional_id=NAME, max_block_ms=10_000
    )
    with LeasingProducer.from_config(config) as one:
        one.init_transactions()
        yield one


def write_batch(kafka, producer, claims=CLAIMS):
    """Write a batch with a task for each claim, and commit it."""
    producer.begin_transaction()
    lease = producer.lease(claims)
    producer.adopt([write(kafka, lease, number) for number in range(claims)])
    producer.commit_transaction()
    return lease


def write(kafka, lease: TransactionLease, number):
    with TransactionParticipant(lease, number, kafka.listen()) as part:
        part.send("orders", b"row", partition=number)
        return part.receipt()


def test_the_claims_of_many_tasks_are_taken_by_one_call(kafka, producer, asked):
    lease = write_batch(kafka, producer)
    assert asked == [[*range(CLAIMS)]]
    # A claim's first epoch is 0, and its second one is the task's: nothing else has taken it.
    assert {claim.producer_epoch for claim in lease.claims} == {1}
    assert len(kafka.records("orders")) == CLAIMS


def test_the_claims_of_the_next_batch_are_known(kafka, producer, asked):
    for _ in range(3):
        write_batch(kafka, producer)
    assert len(asked) == 1
    assert len(kafka.records("orders")) == 3 * CLAIMS


def test_after_an_abort_the_claims_are_taken_once_more(kafka, producer, asked):
    write_batch(kafka, producer)
    producer.begin_transaction()
    late = producer.lease(CLAIMS)
    producer.abort_transaction()
    write_batch(kafka, producer)
    assert len(asked) == 2
    with pytest.raises(ClaimRefusedError):
        TransactionParticipant(late, 0, kafka.listen())


def test_a_few_claims_are_taken_by_the_producer_itself(kafka, producer, asked):
    write_batch(kafka, producer, 3)
    assert asked == []


def test_no_claim_is_taken_for_a_lease_that_is_refused(producer, asked):
    with pytest.raises(IllegalStateError, match="nothing to lease"):
        producer.lease(CLAIMS)
    with pytest.raises(TypeError):
        producer.lease("12")
    assert asked == []


def test_ids_of_a_run_are_taken_by_one_call(kafka):
    ledger = ledger_of(kafka)
    names = [ledger.transactional_id(number) for number in range(30)]
    with TransactionalProducer(kafka.listen(), names[29]) as holder:
        holder.init_transactions()
        holder.begin_transaction()
        holder.send("orders", b"row")
        holder.flush()  # a row that is sent late is refused by its partition, not at the commit
        assert list(take_ids(ledger, names, settings_of(kafka))) == names
        with pytest.raises(ProducerFencedError):
            holder.commit_transaction()


def test_a_right_to_one_of_many_ids_that_is_missing_is_named(kafka):
    ledger = ledger_of(kafka)
    kafka.deny(transactional_id="sink.p7")
    names = [ledger.transactional_id(number) for number in range(30)]
    with pytest.raises(MissingRightError, match=r"'sink\.p7'.*--transactional-id sink\."):
        take_ids(ledger, names, settings_of(kafka))


def test_ids_are_taken_within_the_time_of_other_calls(kafka):
    kafka.fail_next("InitProducerId", error="CONCURRENT_TRANSACTIONS", times=100_000)
    told = r"^2 of 2 transactional ids could not be taken, .* 'sink\.p0': .*within 150 ms"
    with pytest.raises(KafkaTimeoutError, match=told):
        take_ids(
            ledger_of(kafka), ["sink.p0", "sink.p1"], {**settings_of(kafka), "max.block.ms": "150"}
        )


def ledger_of(kafka):
    return Ledger(kafka.listen(), "sink", "orders", {})


def settings_of(kafka):
    return {"bootstrap.servers": kafka.listen()}
