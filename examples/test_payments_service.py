"""Unit tests of a service that writes transactions: no JVM, no port, less than a second.

Usage: pytest examples/test_payments_service.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from txnproducer import CommitOutcomeUnknownError, KafkaError, TransactionalProducer
from txnproducer.errors import KafkaTimeoutError
from txnproducer.testing import InMemoryKafka

TOPIC = "payments"


# --- the service --------------------------------------------------------------------------------


@dataclass
class PaymentService:
    """Moves money: both bookings of a payment are there, or none."""

    producer: TransactionalProducer

    def pay(self, payer: str, payee: str, amount: int) -> bool:
        """Return whether the payment is made. If it is not, nothing of it is there."""
        if amount <= 0:
            raise ValueError(f"the amount is {amount}: it must be positive")
        try:
            with self.producer.transaction():
                self._book(payer, -amount)
                self._book(payee, amount)
        except CommitOutcomeUnknownError:
            # The answer to the commit is lost for good, so the coordinator has to know.
            outcome = self.producer.resolve_outcome()
            if outcome == "unknown":
                raise  # a person has to look: made again, the payment might be a second one
            return outcome == "committed"
        except KafkaTimeoutError:
            self.producer.commit_transaction()  # it is still under way
        except KafkaError as error:
            if error.recovery not in ("abort", "resume"):
                raise  # fenced, or misconfigured: this process has to stop
            return False
        return True

    def _book(self, account: str, amount: int) -> None:
        self.producer.send(TOPIC, str(amount).encode(), key=account.encode())


# --- its tests ----------------------------------------------------------------------------------


@pytest.fixture
def kafka(kafka_memory: InMemoryKafka) -> InMemoryKafka:
    kafka_memory.create_topic(TOPIC, partitions=2)
    return kafka_memory


@pytest.fixture
def service(kafka: InMemoryKafka) -> Iterator[PaymentService]:
    # A broker in memory is near, so the tests need not wait between two tries.
    with kafka.producer("payments-0", retry_backoff_ms=5) as producer:
        producer.init_transactions()
        yield PaymentService(producer)


def bookings(kafka: InMemoryKafka) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in kafka.records(TOPIC)}


def test_a_payment_has_two_bookings(kafka: InMemoryKafka, service: PaymentService) -> None:
    assert service.pay("alice", "bob", 10)
    assert bookings(kafka) == {b"alice": b"-10", b"bob": b"10"}


def test_a_payment_that_the_broker_refuses_leaves_nothing(
    kafka: InMemoryKafka, service: PaymentService
) -> None:
    kafka.fail_next("Produce", error="TOPIC_AUTHORIZATION_FAILED")
    assert not service.pay("alice", "bob", 10)
    assert bookings(kafka) == {}
    assert service.pay("alice", "bob", 20)  # the service goes on


def test_a_service_that_was_replaced_stops(kafka: InMemoryKafka, service: PaymentService) -> None:
    kafka.fence("payments-0")
    assert not service.pay("alice", "bob", 10)
    with pytest.raises(KafkaError):
        service.pay("alice", "bob", 10)
    assert bookings(kafka) == {}


def test_a_lost_answer_is_no_second_payment(kafka: InMemoryKafka, service: PaymentService) -> None:
    kafka.lose_answer("EndTxn")
    assert service.pay("alice", "bob", 10)
    assert len(kafka.records(TOPIC)) == 2


# In both a newer service takes over before the commit can be sent again.
def test_a_payment_in_doubt_is_made_if_the_coordinator_says_so(
    kafka: InMemoryKafka, service: PaymentService
) -> None:
    kafka.lose_answer("EndTxn")
    kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)
    assert service.pay("alice", "bob", 10)
    assert len(bookings(kafka)) == 2


def test_a_payment_of_which_nobody_knows_is_left_to_a_person(
    kafka: InMemoryKafka, service: PaymentService
) -> None:
    kafka.lose_request("EndTxn")
    kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)
    with pytest.raises(CommitOutcomeUnknownError):
        service.pay("alice", "bob", 10)
    assert bookings(kafka) == {}


def test_a_slow_broker_delays_a_payment(kafka: InMemoryKafka) -> None:
    with kafka.producer("payments-0", max_block_ms=200) as producer:
        producer.init_transactions()
        kafka.delay("EndTxn", 0.25)  # longer than max_block_ms
        assert PaymentService(producer).pay("alice", "bob", 10)
    assert bookings(kafka) == {b"alice": b"-10", b"bob": b"10"}
