"""Unit tests of a service that writes transactions: no JVM, no port, under a second.

The tests wait for half a second in all, mostly for the two commits that the broker answers late.
The rest is the processor's time, which a busy machine makes longer.

It needs: pip install '.[testing]'
Usage: pytest examples/test_payments_service.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    tries: int = 5  # of a commit, each of max_block_ms

    def pay(self, payer: str, payee: str, amount: int) -> bool:
        """Return whether the payment is made. If it is not, nothing of it is there.

        Raises:
            KafkaError: this process has to stop. If the error is a `KafkaTimeoutError` or a
                `CommitOutcomeUnknownError`, a person has to look: the payment may be made.
        """
        if amount <= 0:
            raise ValueError(f"the amount is {amount}: it must be positive")
        txn = self.producer.transaction()
        try:
            with txn:  # aborts on any exception, also on Ctrl-C
                self._book(payer, -amount)
                self._book(payee, amount)
                self._commit()
        except KafkaError as error:
            outcome = txn.outcome
            if outcome == "unknown":
                # The answer to the commit is lost for good, so the coordinator has to know.
                outcome = self.producer.resolve_outcome()
            if outcome == "committed":
                return True  # the commit was faster than the abort after its time-out
            if outcome == "aborted" and error.recovery in ("abort", "resume", "unknown"):
                return False
            raise  # fenced, misconfigured, or not known: made again, it might be a second payment
        return True

    def _commit(self) -> None:
        for _ in range(self.tries - 1):
            try:
                return self.producer.commit_transaction()
            except KafkaTimeoutError:
                continue  # it is still under way, and the next call goes on waiting
        return self.producer.commit_transaction()

    def _book(self, account: str, amount: int) -> None:
        self.producer.send(TOPIC, str(amount).encode(), key=account.encode())


# --- its tests ----------------------------------------------------------------------------------

# A broker in memory is near, so the tests need not wait between two tries.
NEAR = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5}


@pytest.fixture
def kafka(kafka_memory: InMemoryKafka) -> InMemoryKafka:
    kafka_memory.create_topic(TOPIC, partitions=2)
    return kafka_memory


@pytest.fixture
def service(kafka: InMemoryKafka) -> Iterator[PaymentService]:
    with kafka.producer("payments-0", **NEAR) as producer:
        producer.init_transactions()
        yield PaymentService(producer)


@pytest.fixture
def impatient(kafka: InMemoryKafka) -> Iterator[TransactionalProducer]:
    with kafka.producer("payments-0", max_block_ms=50, **NEAR) as producer:
        patiently(producer.init_transactions)
        patiently(lambda: producer.partitions_for(TOPIC))
        yield producer


def patiently(call: Callable[[], object]) -> None:
    """Call until it is done. On a busy machine the first connection may take longer than 50 ms."""
    while True:
        try:
            call()
        except KafkaTimeoutError:
            continue
        return


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


def test_a_slow_broker_delays_a_payment(
    kafka: InMemoryKafka, impatient: TransactionalProducer
) -> None:
    service = PaymentService(impatient, tries=100)
    kafka.delay("EndTxn", 0.12)  # longer than two waits of max_block_ms
    assert service.pay("alice", "bob", 10)
    assert bookings(kafka) == {b"alice": b"-10", b"bob": b"10"}
    assert service.pay("alice", "bob", 20)
    assert len(kafka.records(TOPIC)) == 4


def test_a_payment_that_is_not_decided_in_time_is_not_called_missing(
    kafka: InMemoryKafka, impatient: TransactionalProducer
) -> None:
    kafka.delay("EndTxn", 0.2)  # longer than the only try, and the abort after it
    with pytest.raises(KafkaTimeoutError):
        PaymentService(impatient, tries=1).pay("alice", "bob", 10)
    impatient.close()
    assert bookings(kafka) == {b"alice": b"-10", b"bob": b"10"}


def test_ctrl_c_ends_the_wait_for_a_payment(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafka.producer("payments-0", **NEAR) as producer:
        producer.init_transactions()
        commits: list[str] = []

        def interrupted() -> None:
            commits.append("interrupted")
            raise KeyboardInterrupt

        monkeypatch.setattr(producer, "commit_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            PaymentService(producer).pay("alice", "bob", 10)
    assert commits == ["interrupted"]
    assert bookings(kafka) == {}
