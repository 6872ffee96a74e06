"""The lines of a node's `server.properties`."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnproducer.testing import EmbeddedKafka, EmbeddedKafkaError
from txnproducer.testing._config import (
    ClusterLayout,
    NodePorts,
    server_properties,
    to_properties,
)


def layout(nodes: int = 1, listeners: tuple[str, ...] = ("PLAINTEXT",), **rest) -> ClusterLayout:
    ports = [
        NodePorts(21000 + i, {name: 22000 + 10 * i + j for j, name in enumerate(listeners)})
        for i in range(nodes)
    ]
    return ClusterLayout(ports=ports, **rest)


def properties(of: ClusterLayout, index: int = 0) -> dict[str, str]:
    return server_properties(of, index, Path("/data/node"))


def test_one_node_replicates_nothing():
    settings = properties(layout(1))
    assert settings["default.replication.factor"] == "1"
    assert settings["min.insync.replicas"] == "1"
    assert settings["transaction.state.log.replication.factor"] == "1"
    assert settings["transaction.state.log.min.isr"] == "1"
    assert settings["offsets.topic.replication.factor"] == "1"


def test_three_nodes_replicate_three_times_and_two_must_be_in_sync():
    settings = properties(layout(3))
    assert settings["default.replication.factor"] == "3"
    assert settings["min.insync.replicas"] == "2"
    assert settings["transaction.state.log.replication.factor"] == "3"
    assert settings["transaction.state.log.min.isr"] == "2"
    assert settings["offsets.topic.replication.factor"] == "3"


def test_five_nodes_still_replicate_three_times():
    assert properties(layout(5))["default.replication.factor"] == "3"


def test_every_node_is_broker_and_controller_and_knows_all_voters():
    cluster = layout(3)
    nodes = [properties(cluster, index) for index in range(3)]
    assert [each["node.id"] for each in nodes] == ["1", "2", "3"]
    assert {each["process.roles"] for each in nodes} == {"broker,controller"}
    voters = "1@127.0.0.1:21000,2@127.0.0.1:21001,3@127.0.0.1:21002"
    assert {each["controller.quorum.voters"] for each in nodes} == {voters}


def test_a_node_listens_on_the_loopback_only():
    settings = properties(layout(listeners=("SSL", "PLAINTEXT")))
    for listener in settings["listeners"].split(","):
        assert "://127.0.0.1:" in listener


def test_the_controller_listener_is_not_advertised_to_clients():
    assert "CONTROLLER" not in properties(layout())["advertised.listeners"]


def test_the_callers_settings_win():
    cluster = layout(settings={"num.partitions": "7", "log.retention.ms": "1000"})
    settings = properties(cluster)
    assert settings["num.partitions"] == "7"
    assert settings["log.retention.ms"] == "1000"


def test_a_tls_listener_reads_its_keys_from_pem_files():
    cluster = layout(
        listeners=("SSL", "PLAINTEXT"),
        keystore_pem=Path("/tls/broker.pem"),
        truststore_pem=Path("/tls/ca.pem"),
    )
    settings = properties(cluster)
    assert settings["ssl.keystore.type"] == "PEM"
    assert settings["ssl.keystore.location"] == "/tls/broker.pem"
    assert settings["ssl.truststore.location"] == "/tls/ca.pem"


def test_without_a_tls_listener_no_key_is_named():
    assert not any(key.startswith("ssl.") for key in properties(layout()))


def test_a_sasl_listener_knows_the_users_of_plain_and_looks_up_those_of_scram():
    cluster = layout(
        listeners=("SASL_PLAINTEXT", "PLAINTEXT"),
        sasl_mechanisms=("PLAIN", "SCRAM-SHA-256"),
        users={"alice": 'a "quoted" word'},
    )
    settings = properties(cluster)
    prefix = "listener.name.sasl_plaintext"
    assert settings[f"{prefix}.sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-256"
    assert 'user_alice="a \\"quoted\\" word";' in settings[f"{prefix}.plain.sasl.jaas.config"]
    scram = settings[f"{prefix}.scram-sha-256.sasl.jaas.config"]
    assert scram.endswith("ScramLoginModule required;")


def test_a_properties_file_escapes_characters_special_to_java():
    text = to_properties({"path": "C:\\data", "word": "süß 😀", "lead": " x", "line": "a\nb"})
    assert text == (
        "path=C:\\\\data\nword=s\\u00fc\\u00df \\ud83d\\ude00\nlead=\\ x\nline=a\\nb\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"listeners": "SSL"}, "sequence of names"),
        ({"listeners": ()}, "sequence of names"),
        ({"listeners": ("TLS",)}, "'TLS'; there are PLAINTEXT, SSL"),
        ({"sasl_mechanisms": ("GSSAPI",)}, "'GSSAPI'; there are PLAIN"),
        ({"port": 65535, "nodes": 3}, "port is 65535"),
        ({"port": 0}, "port is 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once_by_name(arguments, said):
    with pytest.raises(EmbeddedKafkaError, match=said):
        EmbeddedKafka(**arguments)
