"""The ids of prepared parts: questions to the coordinators, and answers that are known."""

from __future__ import annotations

import time

import pytest

from txnproducer.errors import ClaimRefusedError, KafkaTimeoutError
from txnproducer.lease import TransactionLease, TransactionParticipant
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.driver import part_ids
from txnproducer.spark.driver.part_ids import PartIds
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, TakenId
from txnproducer.spark.ledger.store import Ledger
from txnproducer.testing import InMemoryKafka

SLOTS = range(3)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka({"orders": 3}, nodes=2, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def asked(monkeypatch):
    """Return the ids whose claims were taken, call by call."""
    calls = []

    class Noting(CoordinatorClient):
        def take_claims(self, claims, timeout_ms):
            wanted = list(claims)
            calls.append([name for name, _ in wanted])
            return super().take_claims(wanted, timeout_ms)

    monkeypatch.setattr(part_ids, "CoordinatorClient", Noting)
    return calls


@pytest.fixture
def settings(kafka):
    return {"bootstrap.servers": kafka.listen(), "retry.backoff.ms": "5"}


@pytest.fixture
def ids(kafka, settings):
    one = PartIds(Ledger(settings["bootstrap.servers"], "sink", "orders", {}))
    yield one
    one.close()


def write(kafka, lease, number):
    with TransactionParticipant(lease, 0, kafka.listen()) as part:
        part.send("orders", b"row", partition=number)
        part.receipt()


def leased(ids, settings):
    missing = ids.missing(SLOTS)
    if missing:
        ids.take(missing, settings)
    return ids.lease(SLOTS, settings)


def write_batch(kafka, ids, settings, *, is_commit=True):
    leases = leased(ids, settings)
    for number, lease in leases.items():
        write(kafka, lease, number)
    assert ids.end(leases, settings, is_commit=is_commit) == {}


def test_a_claim_is_taken_once_and_known_after_each_commit(kafka, ids, settings, asked):
    for _ in range(4):
        write_batch(kafka, ids, settings)
    assert asked == [["sink.p0", "sink.p1", "sink.p2"]]
    assert len(kafka.records("orders")) == 4 * len(SLOTS)


def test_after_an_abort_the_claims_are_taken_once_more(kafka, ids, settings, asked):
    write_batch(kafka, ids, settings)
    write_batch(kafka, ids, settings, is_commit=False)
    write_batch(kafka, ids, settings)
    assert len(asked) == 2
    assert len(kafka.records("orders")) == 2 * len(SLOTS)


def test_a_task_whose_claim_was_taken_by_another_process_is_refused(kafka, ids, settings):
    write_batch(kafka, ids, settings)
    other = leased(ids, settings)[1]
    ids.end({1: other}, settings, is_commit=False)
    ids.take(SLOTS, settings)
    late = ids.lease([1], settings)[1]
    write(kafka, late, 1)
    with pytest.raises(ClaimRefusedError):
        TransactionParticipant(late, 0, kafka.listen())
    with pytest.raises(ClaimRefusedError):
        TransactionParticipant(other, 0, kafka.listen())


def test_a_claim_that_another_process_took_costs_one_run(kafka, ids, settings):
    write_batch(kafka, ids, settings)
    kafka.fence("sink.p1.claim-0")
    leases = leased(ids, settings)
    with pytest.raises(ClaimRefusedError):
        write(kafka, leases[1], 1)
    ids.end(leases, settings, is_commit=False)
    ids.forget()
    write_batch(kafka, ids, settings)


def test_ids_that_were_let_go_have_no_known_claims(kafka, ids, settings, asked):
    write_batch(kafka, ids, settings)
    ids.forget()
    write_batch(kafka, ids, settings)
    assert len(asked) == 2


@pytest.fixture
def of_no_broker():
    """Return ids of a cluster that refuses each connection, and settings."""
    ids = PartIds(Ledger("127.0.0.1:1", "sink", "orders", {}))
    yield ids, {"bootstrap.servers": "127.0.0.1:1"}
    ids.close()


def leases_of(slots):
    return {
        slot: TransactionLease(f"sink.p{slot}", ProducerIdAndEpoch(slot, 1), True, ())
        for slot in slots
    }


@pytest.mark.parametrize(
    ("is_commit", "advice"),
    [(True, "ends those that are decided"), (False, "start aborts them")],
    ids=["commit", "abort"],
)
def test_an_end_without_an_answer_says_how_many_parts_are_left(of_no_broker, is_commit, advice):
    ids, settings = of_no_broker
    leases = leases_of(range(1000))
    began_s = time.monotonic()
    with pytest.raises(KafkaTimeoutError) as found:
        ids.end(leases, settings, is_commit=is_commit, timeout_ms=300)
    assert time.monotonic() - began_s < 5, "one time for all"
    text = str(found.value)
    assert text.startswith("1000 of 1000 parts were not ")
    assert "The first one is part 0: no answer about transactional id 'sink.p0'" in text
    assert advice in text


@pytest.mark.parametrize("call", ["take", "lease", "end"])
def test_each_call_takes_max_block_ms_by_default(of_no_broker, call):
    ids, settings = of_no_broker
    settings["max.block.ms"] = "300"
    calls = {
        "take": lambda: ids.take(SLOTS, settings),
        "lease": lambda: ids.lease(SLOTS, settings),
        "end": lambda: ids.end(leases_of(SLOTS), settings, is_commit=True),
    }
    ids._taken = {
        slot: TakenId(f"sink.p{slot}", ProducerIdAndEpoch(slot, 0), True) for slot in SLOTS
    }
    began_s = time.monotonic()
    with pytest.raises(KafkaTimeoutError):
        calls[call]()
    assert time.monotonic() - began_s < 5
