"""The wire adapter alone on a real broker: one transaction in raw messages, logins, refusals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integration.readers import read_with_confluent
from integration.waiting import wait_until
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import (
    Channel,
    ConnectionEvent,
    ConnectionId,
    ResponseFailure,
)
from txnproducer._record import RecordBatchBuilder
from txnproducer.errors import (
    ErrorCode,
    IllegalSaslStateError,
    SaslAuthenticationError,
    SslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from txnproducer.records import TopicPartition
from txnproducer.testing import EmbeddedKafka

pytestmark = pytest.mark.integration

LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SESSION_MS = 2500
# A session is renewed at 95 % of its time at the latest. Where one call took most of what is left
# then, the machine stood still, and the broker's clock went on.
STANDSTILL_S = 0.08
AT_ONCE_S = 3.0  # far below any time-out; a broker delays a failed login by 0.3 s


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    settings = {"connections.max.reauth.ms": SESSION_MS}
    mechanisms = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    with EmbeddedKafka(
        listeners=LISTENERS, sasl_mechanisms=mechanisms, settings=settings
    ) as cluster:
        yield cluster


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    with contextlib.ExitStack() as stack:

        def make(address: str, **settings: Any) -> Driver:
            driver = Driver(address, **settings)
            stack.callback(driver.close)
            return driver

        yield make


Drive = Callable[..., Driver]


def call(driver: Driver, body: m.Request, connection: ConnectionId = BOOTSTRAP) -> Any:
    now_ms = driver.connect(connection)
    (answer,) = driver.answers_to(driver.send(body, connection, now_ms=now_ms))
    assert answer.body is not None, answer
    return answer.body


def call_until_ready(
    driver: Driver, body: m.Request, connection: ConnectionId, error_code: Callable[[Any], int]
) -> Any:
    """Ask again while the coordinator is being made."""
    passing = {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
    answers: list[Any] = []

    def is_ready() -> bool:
        answers.append(call(driver, body, connection))
        return error_code(answers[-1]) not in passing

    wait_until(is_ready, "the coordinator is not ready")
    assert error_code(answers[-1]) == 0, answers[-1]
    return answers[-1]


# --- one transaction in raw messages ------------------------------------------------------------


def test_a_transaction_of_the_second_version_in_raw_messages(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    kafka.create_topic("raw", partitions=2)
    driver = drive(kafka.addresses("PLAINTEXT"))
    metadata = call(driver, m.MetadataRequest(("raw",)))
    driver.client.update_nodes(metadata.brokers)
    assert driver.client.finalized_features().transaction_version == 2
    look_up = m.FindCoordinatorRequest("raw-id", m.CoordinatorType.TRANSACTION)
    found = call_until_ready(driver, look_up, BOOTSTRAP, lambda a: a.coordinators[0].error_code)
    coordinator = ConnectionId(found.coordinators[0].node.node_id, Channel.COORDINATOR)
    initialize = m.InitProducerIdRequest("raw-id", 60_000)
    identity = call_until_ready(driver, initialize, coordinator, lambda a: a.error_code)

    (topic,) = metadata.topics
    for value, is_commit in ((b"first", True), (b"aborted", False), (b"second", True)):
        for partition in topic.partitions:
            where = TopicPartition("raw", partition.partition)
            batch = one_record(value, identity.producer_id, identity.producer_epoch)
            part = m.ProducePartition(where, batch, topic.topic_id)
            produce = m.ProduceRequest("raw-id", -1, 30_000, (part,), True)
            # CONCURRENT_TRANSACTIONS while the markers of the transaction before are not written.
            leader = ConnectionId(partition.leader_id)
            answer = call_until_ready(
                driver, produce, leader, lambda a: a.partitions[0].error_code
            )
            assert len(answer.partitions) == 1
            assert answer.partitions[0].topic_partition == where
        end = m.EndTxnRequest(
            "raw-id", identity.producer_id, identity.producer_epoch, is_commit, True
        )
        ended = call_until_ready(driver, end, coordinator, lambda a: a.error_code)
        assert ended.producer_epoch == identity.producer_epoch + 1
        identity = ended

    describe = m.DescribeTransactionsRequest(("raw-id",))
    (described,) = call(driver, describe, coordinator).transactions
    assert described.producer_epoch == identity.producer_epoch
    read = read_with_confluent(kafka.addresses("PLAINTEXT"), "raw")
    values = [(each.partition, each.value) for each in read]
    assert values == [(0, b"first"), (0, b"second"), (1, b"first"), (1, b"second")]


def one_record(value: bytes, producer_id: int, producer_epoch: int) -> bytes:
    builder = RecordBatchBuilder(10_000)
    builder.append(int(time.time() * 1000), None, value)
    builder.set_producer_state(producer_id, producer_epoch, 0, is_transactional=True)
    return bytes(builder.build())


# --- logins -------------------------------------------------------------------------------------

RIGHT = [
    (listener, mechanism)
    for listener in ("SASL_PLAINTEXT", "SASL_SSL")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
]


def test_tls_with_the_right_authority_carries_requests(kafka: EmbeddedKafka, drive: Drive) -> None:
    driver = drive(kafka.addresses("SSL"), **kafka.security_config(listener="SSL"))
    assert call(driver, m.MetadataRequest(())).brokers


@pytest.mark.parametrize(("listener", "mechanism"), RIGHT)
def test_right_credentials_carry_requests(
    kafka: EmbeddedKafka, drive: Drive, listener: str, mechanism: str
) -> None:
    settings = kafka.security_config("alice", mechanism, listener)
    assert call(drive(kafka.addresses(listener), **settings), m.MetadataRequest(())).brokers


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_session_is_renewed_while_requests_go_on(
    kafka: EmbeddedKafka, drive: Drive, listener: str
) -> None:
    address, security = (
        kafka.addresses(listener),
        kafka.security_config("bob", "SCRAM-SHA-256", listener),
    )
    for is_last in (False, False, True):
        driver = drive(address, **security)
        try:
            count = call_through_two_renewals(driver)
        except StoodStillError:
            assert not is_last, "the machine stood still three times"
            continue
        assert count > 100
        assert driver.ends() == []
        return


class StoodStillError(Exception):
    """A connection was lost, in a call that took so long that it may well have been."""


def call_through_two_renewals(driver: Driver) -> int:
    """Make one call after the other, and return how many there were."""
    end = time.monotonic() + 2.5 * SESSION_MS / 1000
    count = 0
    while (begun := time.monotonic()) < end:
        try:
            assert call(driver, m.MetadataRequest(())).brokers
        except AssertionError as error:
            if time.monotonic() - begun > STANDSTILL_S:
                raise StoodStillError from error
            raise
        count += 1
    return count


# --- refusals -----------------------------------------------------------------------------------


def refusal(driver: Driver) -> ConnectionEvent:
    begun = time.monotonic()
    end = driver.refusal()
    assert time.monotonic() - begun < AT_ONCE_S
    return end


@pytest.mark.parametrize(("listener", "mechanism"), RIGHT)
def test_a_wrong_password_is_refused_at_once(
    kafka: EmbeddedKafka, drive: Drive, listener: str, mechanism: str
) -> None:
    settings = kafka.security_config("alice", mechanism, listener)
    settings["sasl_plain_password"] = "wrong"
    end = refusal(drive(kafka.addresses(listener), **settings))
    assert isinstance(end.error, SaslAuthenticationError)
    assert mechanism in str(end.error)


def test_a_mechanism_that_is_not_offered_is_refused_at_once(drive: Drive) -> None:
    with EmbeddedKafka(listeners=("SASL_PLAINTEXT",), sasl_mechanisms=("PLAIN",)) as kafka:
        settings = kafka.security_config() | {"sasl_mechanism": "SCRAM-SHA-256"}
        end = refusal(drive(kafka.bootstrap_servers, **settings))
    assert isinstance(end.error, UnsupportedSaslMechanismError)
    assert "it offers: PLAIN" in str(end.error)


def test_an_unknown_authority_is_refused_at_once_with_the_way_out(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    end = refusal(drive(kafka.addresses("SSL"), security_protocol="SSL"))
    assert isinstance(end.error, SslAuthenticationError)
    assert "ssl_cafile" in str(end.error)


def test_a_plaintext_client_at_a_tls_port_gets_an_error_that_says_so(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    end = refusal(drive(kafka.addresses("SSL")))
    assert isinstance(end.error, SslAuthenticationError)
    assert "speaks TLS" in str(end.error)


def test_a_tls_client_at_a_plaintext_port_gets_an_error_that_says_so(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    settings = kafka.security_config(listener="SSL")
    end = refusal(drive(kafka.addresses("PLAINTEXT"), **settings))
    assert isinstance(end.error, SslAuthenticationError)
    assert "does not speak TLS" in str(end.error)


def test_a_login_at_a_listener_without_sasl_raises_illegal_sasl_state(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    settings = kafka.security_config("alice", "PLAIN", "SASL_PLAINTEXT")
    end = refusal(drive(kafka.addresses("PLAINTEXT"), **settings))
    assert isinstance(end.error, IllegalSaslStateError)


def test_a_client_without_login_at_a_sasl_listener_gets_an_error_that_says_so(
    kafka: EmbeddedKafka, drive: Drive
) -> None:
    driver = drive(kafka.addresses("SASL_PLAINTEXT"))
    driver.connect()
    (answer,) = driver.answers_to(driver.send(m.MetadataRequest(())))
    assert answer.failure is ResponseFailure.DISCONNECTED
    driver.events.clear()
    driver.until(lambda: driver.client.ready_delay_ms(BOOTSTRAP, clock_ms()) == 0)
    end = refusal(driver)
    assert isinstance(end.error, IllegalSaslStateError)
    assert "SCRAM-SHA-512" in str(end.error)
