"""The text about a lost transaction, on real brokers: the evidence of v1 and of v2."""

from __future__ import annotations

import pytest

from integration.waiting import wait_until
from txnproducer.admin import describe_transaction
from txnproducer.errors import KafkaError

pytestmark = pytest.mark.integration


def is_aborted(broker, transactional_id):
    told = describe_transaction(broker.servers, transactional_id, 10)
    return told is not None and told.state == "CompleteAbort"


@pytest.mark.parametrize("is_noticed_by", ["commit", "record"])
def test_a_time_out_is_reported_with_its_seconds(broker, transactional_id, is_noticed_by):
    topic = broker.topic()
    with broker.ready(transactional_id, transaction_timeout_ms=1_000, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(20)
        wait_until(lambda: is_aborted(broker, transactional_id), "it is not timed out")
        if is_noticed_by == "record":
            refusal = producer.send(topic, b"late").exception(20)
            assert refusal is not None
            assert "most likely the coordinator aborted it at its time-out" in str(refusal)
        with pytest.raises(KafkaError, match=r"the coordinator aborted it after \d+ s") as told:
            producer.commit_transaction()
        assert "(transaction_timeout_ms=1000)" in str(told.value)
        assert "taken over" not in str(told.value)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_newer_producer_is_reported_with_its_epoch(broker, transactional_id, is_open):
    topic = broker.topic()
    with broker.ready(transactional_id, linger_ms=0) as older:
        older.begin_transaction()
        older.send(topic, b"first").result(20)
        if not is_open:
            older.commit_transaction()
            older.begin_transaction()
        with broker.ready(transactional_id) as newer:
            manager = newer._core.transaction_manager
            assert manager is not None
            epoch = manager.identity.producer_id_and_epoch.producer_epoch
            older.send(topic, b"late").exception(20)
            taken_over = f"a newer producer of this id, epoch {epoch}, has taken over"
            with pytest.raises(KafkaError, match=taken_over) as told:
                older.commit_transaction()
            assert "transactional id" in str(told.value)
