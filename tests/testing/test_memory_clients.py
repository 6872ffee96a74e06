"""Other clients on the ports of an in-memory Kafka, with logins, with faults and over TLS."""

from __future__ import annotations

import gc
import logging

import kafka as kafka_python
import pytest

from txnproducer import TransactionalProducer
from txnproducer.admin._sockets import owned_connections
from txnproducer.errors import SslAuthenticationError
from txnproducer.testing import InMemoryKafka

LOGIN = {"alice": "secret"}
TXN = "theirs"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka({"orders": 2}, transaction_version=request.param) as cluster:
        yield cluster


def values(kafka):
    return [record.value for record in kafka.records("orders")]


# --- kafka-python ----------------------------------------------------------------------------


def write_with_kafka_python(kafka, address, **settings):
    with owned_connections() as owned:
        other = kafka_python.KafkaProducer(
            bootstrap_servers=address,
            transactional_id=TXN,
            max_block_ms=10_000,
            **owned,
            **settings,
        )
        try:
            other.init_transactions()
            other.begin_transaction()
            other.send("orders", b"theirs", partition=0)
            other.commit_transaction()
        finally:
            other.close()


def test_kafka_python_writes_a_transaction(kafka):
    write_with_kafka_python(kafka, kafka.listen())
    assert values(kafka) == [b"theirs"]
    assert kafka.transactions()[TXN].state == "CompleteCommit"


# --- confluent-kafka -------------------------------------------------------------------------


@pytest.fixture
def confluent():
    """Make producers of confluent-kafka, which is in the dependency group `bench`."""
    reason = "confluent-kafka is not installed (dependency group `bench`)"
    library = pytest.importorskip("confluent_kafka", reason=reason)

    def make(address, **settings):
        quiet = logging.getLogger("confluent")
        quiet.setLevel(logging.CRITICAL)
        names = {name.replace("_", "."): value for name, value in settings.items()}
        return library.Producer({"bootstrap.servers": address, **names}, logger=quiet)

    return make


@pytest.mark.parametrize(
    "settings", [{}, {"enable_idempotence": True}], ids=["plain", "idempotent"]
)
def test_confluent_kafka_writes_records(kafka, confluent, settings):
    producer = confluent(kafka.listen(), **settings)
    for value in (b"one", b"two"):
        producer.produce("orders", value, partition=0)
    assert producer.flush(10) == 0
    assert values(kafka) == [b"one", b"two"]


def test_confluent_kafka_commits_and_aborts_transactions(kafka, confluent):
    producer = confluent(kafka.listen(), transactional_id=TXN)
    producer.init_transactions(10)
    for value, is_commit in ((b"one", True), (b"lost", False), (b"two", True)):
        producer.begin_transaction()
        producer.produce("orders", value, partition=0)
        producer.flush(10)
        if is_commit:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
    assert values(kafka) == [b"one", b"two"]
    assert kafka.transactions()[TXN].state == "CompleteCommit"


@pytest.mark.parametrize("fault", ["lose_answer", "lose_request"])
def test_confluent_kafka_gets_over_a_lost_commit(kafka, confluent, fault):
    producer = confluent(kafka.listen(), transactional_id=TXN)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("orders", b"one", partition=0)
    producer.flush(10)
    getattr(kafka, fault)("EndTxn")
    producer.commit_transaction(10)
    assert values(kafka) == [b"one"]
    assert kafka.remaining_faults() == {}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_confluent_kafka_logs_in(confluent, mechanism):
    with InMemoryKafka({"orders": 1}, users=LOGIN) as kafka:
        producer = confluent(
            kafka.listen(),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username="alice",
            sasl_password="secret",
        )
        producer.produce("orders", b"one")
        assert producer.flush(10) == 0
        assert values(kafka) == [b"one"]


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture
def tls(kafka):
    pytest.importorskip("trustme", reason="trustme is not installed (extra `testing`)")
    return kafka.listen(tls=True)


def test_txnproducer_writes_over_tls(kafka, tls):
    with TransactionalProducer(
        tls, TXN, security_protocol="SSL", ssl_cafile=kafka.ca_file, max_block_ms=10_000
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            # More than one record of TLS, and more than the buffers of a socket take at once.
            for _ in range(40):
                producer.send("orders", b"x" * 100_000, partition=0)
    assert len(kafka.records("orders")) == 40


def test_kafka_python_writes_over_tls(kafka, tls):
    write_with_kafka_python(kafka, tls, security_protocol="SSL", ssl_cafile=kafka.ca_file)
    assert values(kafka) == [b"theirs"]


def test_confluent_kafka_writes_over_tls(kafka, tls, confluent):
    producer = confluent(tls, security_protocol="SSL", ssl_ca_location=kafka.ca_file)
    producer.produce("orders", b"one", partition=0)
    assert producer.flush(10) == 0
    assert values(kafka) == [b"one"]


def test_a_login_over_tls():
    pytest.importorskip("trustme", reason="trustme is not installed (extra `testing`)")
    with InMemoryKafka({"orders": 1}, users=LOGIN) as kafka:
        with TransactionalProducer(
            kafka.listen(tls=True),
            security_protocol="SASL_SSL",
            ssl_cafile=kafka.ca_file,
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        ) as producer:
            producer.send("orders", b"one").result(10)


def test_a_producer_with_another_ca_refuses_the_certificate(kafka, tls):
    with InMemoryKafka() as other:
        with TransactionalProducer(
            tls, security_protocol="SSL", ssl_cafile=other.ca_file, max_block_ms=5_000
        ) as producer:
            with pytest.raises(SslAuthenticationError, match="certificate"):
                producer.partitions_for("orders")


# Its sockets stay unclosed after a handshake that failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_kafka_python_with_another_ca_refuses_the_certificate(kafka, tls, caplog):
    # Tracebacks in log lines would keep the sockets alive until a later test, and fail that one.
    caplog.set_level(logging.CRITICAL, "kafka")
    settings = {"security_protocol": "SSL", "bootstrap_timeout_ms": 500}
    with InMemoryKafka() as other:
        with pytest.raises(kafka_python.errors.KafkaError):
            write_with_kafka_python(kafka, tls, ssl_cafile=other.ca_file, **settings)
    gc.collect()
    assert values(kafka) == []


def test_a_client_without_tls_is_hung_up_on_and_others_go_on(kafka, tls):
    with TransactionalProducer(tls, max_block_ms=300) as producer:
        with pytest.raises(Exception, match=r"(?i)tls|no connection"):
            producer.partitions_for("orders")
    with TransactionalProducer(tls, security_protocol="SSL", ssl_cafile=kafka.ca_file) as producer:
        producer.send("orders", b"one").result(10)


def test_ports_with_and_without_tls_are_beside_each_other(kafka, tls):
    plain = kafka.listen()
    assert plain != tls
    assert (kafka.listen(), kafka.listen(tls=True)) == (plain, tls)
    with TransactionalProducer(plain) as producer:
        producer.send("orders", b"one", partition=0).result(10)
    assert values(kafka) == [b"one"]
