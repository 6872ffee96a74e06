"""The configuration of one node of a KRaft cluster, as text.

Owns the content of `server.properties`. Starts nothing and touches no file, so that the content
can be read and tested as data.

Rules:
* Every node is controller and broker in one (combined roles).
* A PLAINTEXT listener always exists, for the brokers among themselves and for our own admin calls;
  other listeners are added to it.
* Replication follows the number of nodes: 1 for one node; 3 with min ISR 2 for three.
* Internal topics get few partitions: a cluster for tests boots faster, and behaves the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ._errors import EmbeddedKafkaError

# Loopback only: these brokers take requests from anybody, so no other machine may reach them.
HOST = "127.0.0.1"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[A-Za-z0-9.]+)?")
_INTERNAL_PARTITIONS = 4


@dataclass(frozen=True)
class NodePorts:
    """The ports of one node: the controller's, and one for each listener."""

    controller: int
    listeners: Mapping[str, int]


@dataclass(frozen=True)
class ClusterLayout:
    """The settings that all nodes of a cluster share."""

    ports: Sequence[NodePorts]
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    sasl_mechanisms: Sequence[str] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    keystore_pem: Path | None = None
    truststore_pem: Path | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.ports)


def node_id(index: int) -> int:
    """Return the broker id of the node with this index. Ids count from 1."""
    return index + 1


def server_properties(layout: ClusterLayout, index: int, log_dir: Path) -> dict[str, str]:
    """Return the settings of one node.

    Args:
        layout: the cluster.
        index: the node's index, from 0.
        log_dir: the folder of its data.

    Returns:
        Kafka's settings in order, the caller's own last so that they override ours.
    """
    ports = layout.ports[index]
    voters = ",".join(
        f"{node_id(i)}@{HOST}:{each.controller}" for i, each in enumerate(layout.ports)
    )
    listeners = [f"{name}://{HOST}:{port}" for name, port in ports.listeners.items()]
    protocols = ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in ports.listeners)]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id(index)),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join([*listeners, f"CONTROLLER://{HOST}:{ports.controller}"]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(log_dir),
        **replication(layout.nodes),
        **small_footprint(),
        **_tls(layout, ports),
        **_sasl(layout, ports),
        **layout.settings,
    }


def replication(nodes: int) -> dict[str, str]:
    """Return the replication settings that fit a number of nodes."""
    factor = min(nodes, 3)
    # Two of three, so that a test may kill one node and still write with acks=all.
    in_sync = 2 if factor == 3 else 1
    return {
        "default.replication.factor": str(factor),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(in_sync),
        # Share groups (KIP-932) came with Kafka 4. Older brokers ignore names that they do not
        # know.
        "share.coordinator.state.topic.replication.factor": str(factor),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }


def small_footprint() -> dict[str, str]:
    """Return the settings that make a broker start fast and stay small."""
    return {
        "num.partitions": "1",
        "offsets.topic.num.partitions": str(_INTERNAL_PARTITIONS),
        "transaction.state.log.num.partitions": str(_INTERNAL_PARTITIONS),
        "share.coordinator.state.topic.num.partitions": str(_INTERNAL_PARTITIONS),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # The cleaner allocates its buffer at start: 128 MB by default, half of a small heap.
        "log.cleaner.dedupe.buffer.size": "4194304",
        # Consumers of tests join alone, so there are no others to wait for.
        "group.initial.rebalance.delay.ms": "0",
        # A transaction that timed out is aborted within a second, not within ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }


def uses_tls(listeners: Iterable[str]) -> bool:
    """Return whether one of the listeners encrypts its connections."""
    return any(name.endswith("SSL") for name in listeners)


def _tls(layout: ClusterLayout, ports: NodePorts) -> dict[str, str]:
    if not uses_tls(ports.listeners):
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(layout.keystore_pem),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(layout.truststore_pem),
    }


def _sasl(layout: ClusterLayout, ports: NodePorts) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name in ports.listeners:
        if not name.startswith("SASL_"):
            continue
        prefix = f"listener.name.{name.lower()}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(layout.sasl_mechanisms)
        for mechanism in layout.sasl_mechanisms:
            key = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
            settings[key] = _login_module(mechanism, layout.users)
    return settings


def _login_module(mechanism: str, users: Mapping[str, str]) -> str:
    package = "org.apache.kafka.common.security"
    if mechanism != "PLAIN":
        # SCRAM's users are stored in the cluster itself, when it is formatted.
        return f"{package}.scram.ScramLoginModule required;"
    known = "".join(f' user_{user}="{_quoted(word)}"' for user, word in users.items())
    return f"{package}.plain.PlainLoginModule required{known};"


def _quoted(text: str) -> str:
    # The backslash first: otherwise those that escape the quotes would be doubled.
    return text.replace("\\", "\\\\").replace('"', '\\"')


def to_properties(settings: Mapping[str, str]) -> str:
    """Return the settings in the form of a Java properties file."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    # Java reads the file as Latin-1, with backslash escapes. A space at the start of a name or
    # value must be escaped, or Java would skip it.
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    if plain.startswith(" "):
        plain = "\\" + plain
    utf_16 = (plain[i].encode("utf-16-be") for i in range(len(plain)))
    return "".join(_escaped_character(units) for units in utf_16)


def _escaped_character(units: bytes) -> str:
    # A character outside of the basic plane is a pair of units, and Java escapes each of them.
    codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)


def check_arguments(
    nodes: int,
    version: str,
    listeners: Sequence[str],
    mechanisms: Sequence[str],
    port: int | None,
) -> None:
    """Refuse arguments of which no cluster can be made.

    Raises:
        EmbeddedKafkaError: an argument is wrong; the text names it and the allowed values.
    """
    if nodes < 1:
        raise EmbeddedKafkaError(f"nodes is {nodes}; a cluster has at least one.")
    # It is part of paths.
    if not _VERSION.fullmatch(version):
        raise EmbeddedKafkaError(f"version is {version!r}: it must be like 4.3.1.")
    # A str is a sequence too, of letters: "SSL" would be three unknown listeners.
    if isinstance(listeners, str) or not listeners:
        raise EmbeddedKafkaError('listeners is a sequence of names, such as ("SASL_SSL",).')
    for what, given, known in (
        ("listener", listeners, SECURITY_PROTOCOLS),
        ("SASL mechanism", mechanisms, SASL_MECHANISMS),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise EmbeddedKafkaError(
                f"Unknown {what} {unknown[0]!r}; there are {', '.join(known)}."
            )
    # The other nodes take the ports after this one.
    if port is not None and not 0 < port <= 65536 - nodes:
        raise EmbeddedKafkaError(f"port is {port}; the ports of all nodes must be in 1 to 65535.")


def as_text(value: object) -> str:
    """Return a setting's value as Kafka reads it. Java's booleans are lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
