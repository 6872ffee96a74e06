"""The embedded Kafka with real brokers: versions, nodes, listeners, and every way to its end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from integration.waiting import wait_until
from txnproducer import TransactionalProducer, admin
from txnproducer.errors import KafkaError
from txnproducer.testing import BrokerStartError, EmbeddedKafka

pytestmark = pytest.mark.integration

CREDENTIALS = (("PLAIN", "alice"), ("SCRAM-SHA-256", "bob"), ("SCRAM-SHA-512", "alice"))


def write(kafka: EmbeddedKafka, transactional_id: str, topic: str, value: bytes) -> None:
    with TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, value)


def transaction_version(kafka: EmbeddedKafka) -> int:
    with admin.connect(kafka.bootstrap_servers) as client:
        level = client.describe_features().get("transaction.version", {}).get("finalized", (0, 0))
    return int(level[1])


@pytest.mark.parametrize(
    ("version", "features", "level"),
    [("4.3.1", {}, 2), ("4.3.1", {"transaction.version": 1}, 1), ("3.9.1", {}, 0)],
    ids=["4.3.1", "4.3.1-transaction-version-1", "3.9.1"],
)
def test_one_node_of_each_version_commits_and_its_log_can_be_read(version, features, level):
    with EmbeddedKafka(version=version, features=features) as kafka:
        assert transaction_version(kafka) == level
        kafka.create_topic("orders", partitions=2, config={"retention.ms": 100_000})
        write(kafka, "writer", "orders", b"hello")
        dumps = [kafka.dump_log("orders", partition) for partition in (0, 1)]
    dump = next(text for text in dumps if "hello" in text)
    assert "isTransactional: true" in dump
    assert "endTxnMarker: COMMIT" in dump


def test_a_feature_that_kafka_does_not_know_is_refused_in_its_own_words():
    with pytest.raises(BrokerStartError, match=r"Unsupported feature: no\.such"):
        EmbeddedKafka(features={"no.such": 1}).start()


@pytest.mark.long("three brokers that fail; test_failover.py kills them as well")
@pytest.mark.timeout(240)
def test_three_nodes_survive_a_kill_a_stop_and_a_freeze():
    with EmbeddedKafka(3) as kafka:
        kafka.create_topic("orders", partitions=3)
        write(kafka, "writer", "orders", b"before")
        coordinator = kafka.coordinator_index("writer")

        kafka.kill_node(coordinator)
        assert not kafka.is_node_running(coordinator)
        wait_until(
            lambda: kafka.coordinator_index("writer") not in (-1, coordinator),
            "the coordinator does not move",
        )
        write(kafka, "writer", "orders", b"after the kill")

        kafka.start_node(coordinator)
        kafka.wait_in_sync()
        leader = kafka.leader_index("orders", 0)
        kafka.stop_node(leader)
        wait_until(
            lambda: kafka.leader_index("orders", 0) not in (-1, leader), "no other broker leads"
        )
        kafka.start_node(leader)
        kafka.wait_in_sync()

        kafka.pause_node(0)
        kafka.resume_node(0)
        write(kafka, "writer", "orders", b"at last")


@pytest.mark.long("three more brokers; one of this version is started by many tests")
@pytest.mark.timeout(240)
def test_three_nodes_of_3_9_1_start():
    with EmbeddedKafka(3, "3.9.1") as kafka:
        kafka.create_topic("orders")
        assert admin.broker_ids(kafka.bootstrap_servers) == [1, 2, 3]


@pytest.fixture(scope="module")
def secured():
    listeners = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")
    with EmbeddedKafka(listeners=listeners) as kafka:
        yield kafka


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize(("mechanism", "user"), CREDENTIALS)
def test_a_user_with_the_right_password_is_let_in(secured, listener, mechanism, user):
    config = secured.security_config(user=user, mechanism=mechanism, listener=listener)
    assert admin.broker_ids(secured.addresses(listener), **config) == [1]


@pytest.mark.parametrize(("mechanism", "user"), CREDENTIALS)
def test_a_user_with_a_wrong_password_is_kept_out(secured, mechanism, user):
    config = secured.security_config(user=user, mechanism=mechanism, listener="SASL_PLAINTEXT")
    config["sasl_plain_password"] = "wrong"
    with pytest.raises(KafkaError):
        admin.broker_ids(secured.addresses("SASL_PLAINTEXT"), timeout=2, **config)


def test_tls_alone_needs_the_certificate_of_our_own_authority(secured):
    config = secured.security_config(listener="SSL")
    assert admin.broker_ids(secured.addresses("SSL"), **config) == [1]
    host, _, port = secured.addresses("SSL").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def test_a_folder_of_ones_own_goes_on_where_it_was(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        kafka.create_topic("orders")
        write(kafka, "writer", "orders", b"kept")
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        assert "payload: kept" in kafka.dump_log("orders")
        assert kafka.leader_index("orders") == 0
    assert (tmp_path / "logs" / "node-0.log").exists()


@pytest.fixture
def command(tmp_path):
    """`txnproducer broker` in a process of its own, with a temporary folder of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "txnproducer", "broker"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long("ends as with SIGTERM")),
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -9),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_broker_ends_with_its_command_however_that_ends(command, tmp_path, number, code):
    address = command.stdout.readline().strip()
    assert is_listening(address)
    command.send_signal(number)
    assert command.wait(30) == code
    wait_until(lambda: not is_listening(address), "the broker still listens")
    # After a kill it is the watcher that removes the folder.
    wait_until(
        lambda: not list(Path(tmp_path).glob("txnproducer-kafka-*")), "its folder is still there"
    )
