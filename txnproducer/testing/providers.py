"""The source of a test's Kafka: one that is named, one of our own, or a container.

Owns the order: the address in `TXNPRODUCER_BOOTSTRAP`; `EmbeddedKafka`; without Java, a container,
if a Docker engine answers. Must not know the use of the cluster in tests.

Rules: `KafkaCluster` has what all three can do. Tests that need more (kill a node, read a log)
require `EmbeddedKafka` by name. Docker is asked only if Java is missing, and for two seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from txnproducer import admin
from txnproducer.producer import TransactionalProducer
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._cluster_verbs import ClusterVerbs
from ._config import HOST, as_text, replication, small_footprint
from ._errors import EmbeddedKafkaError, JavaNotFoundError
from ._memory_views import MemoryRecord, MemoryTransaction
from ._ports import PortClaims
from .embedded import DEFAULT_VERSION, EmbeddedKafka

BOOTSTRAP_VARIABLE = "TXNPRODUCER_BOOTSTRAP"
_DOCKER_SECONDS = 2.0
_CONTAINER_SECONDS = 90.0
_CLIENT_PORT = 9092
_CONTROLLER_PORT = 9093


class KafkaCluster(Protocol):
    """The calls that tests may use with every source of a Kafka."""

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients, separated by commas. Each has a host and a port."""
        ...

    def security_config(self) -> dict[str, Any]:
        """Return a client's security settings in kafka-python's names."""
        ...

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Create a topic, and wait until every partition has a leader."""
        ...

    def producer(
        self, transactional_id: str | None = None, **settings: Any
    ) -> TransactionalProducer:
        """Make a producer for this cluster. Its owner closes it."""
        ...

    def records(
        self,
        topic: str,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        timeout: float = 30.0,
    ) -> list[MemoryRecord]:
        """Return the records of a topic that a consumer gets now, by partition and offset."""
        ...

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that were committed for a consumer group."""
        ...

    def transactions(self) -> dict[str, MemoryTransaction]:
        """Return each transactional id that is in use, as its coordinator knows it."""
        ...

    def fence(self, transactional_id: str) -> None:
        """Let a newer producer of the id take over."""
        ...


class ExistingKafka(ClusterVerbs):
    """A Kafka that is running already, outside of this process.

    Args:
        bootstrap_servers: addresses, "host:port", separated by commas.
        security: a client's security settings in kafka-python's names.
    """

    def __init__(self, bootstrap_servers: str, security: Mapping[str, Any] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = dict(security or {})

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients, separated by commas. Each has a host and a port."""
        return self._bootstrap_servers

    def security_config(self) -> dict[str, Any]:
        """Return a client's security settings in kafka-python's names."""
        return dict(self._security)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Create a topic, and wait until every partition has a leader.

        Raises:
            KafkaError: the cluster refused, or did not answer in time.
        """
        text = {key: as_text(value) for key, value in (config or {}).items()}
        admin.create_topic(
            self._bootstrap_servers,
            name,
            partitions,
            replication_factor,
            text,
            timeout,
            **self._security,
        )


class ContainerKafka(ExistingKafka):
    """One broker in a container of the image `apache/kafka`, for a machine without Java.

    Args:
        version: the version of Apache Kafka, which is the image's tag.
        settings: broker settings by Kafka's names; they override ours.
        startup_timeout: seconds until it must be ready, once the image is there.
    """

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        settings: Mapping[str, str | int | bool] | None = None,
        startup_timeout: float = _CONTAINER_SECONDS,
    ) -> None:
        # Chosen before the container starts: the broker's advertised address names it.
        with PortClaims(HOST) as claims:
            [self._port] = claims.choose(1)
        super().__init__(f"{HOST}:{self._port}")
        self.version = version
        self._settings = {key: as_text(value) for key, value in (settings or {}).items()}
        self._startup_timeout = startup_timeout
        self._container: Any = None

    def __enter__(self) -> Self:
        try:
            # In an extra of its own, which a machine with Java does not need.
            from testcontainers.core.container import DockerContainer
        except ImportError as error:
            raise EmbeddedKafkaError(
                'A Kafka in a container needs testcontainers: run `pip install "txnproducer'
                '[containers]"`.'
            ) from error
        container = DockerContainer(f"apache/kafka:{self.version}")
        container.with_bind_ports(_CLIENT_PORT, self._port)
        for name, value in container_environment(self._port, self._settings).items():
            container.with_env(name, value)
        container.start()
        self._container = container
        try:
            # `bool` of the list of brokers: any of them will do, as there is only one.
            admin.wait_for_brokers(self.bootstrap_servers, bool, self._startup_timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the container. A second call does nothing."""
        # Taken first: a second call finds nothing, also while the first one still waits.
        container, self._container = self._container, None
        if container is not None:
            container.stop()


def container_environment(port: int, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that configures the image `apache/kafka`.

    Args:
        port: the port of this machine at which clients reach the broker.
        settings: broker settings by Kafka's names; they override ours.
    """
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@localhost:{_CONTROLLER_PORT}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://:{_CLIENT_PORT},CONTROLLER://:{_CONTROLLER_PORT}",
        # The address outside of the container: clients connect to the one that the broker names.
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        **replication(1),
        **small_footprint(),
        **settings,
    }
    # The image's own spelling: a dot becomes one underscore, an underscore two, a dash three.
    return {
        "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper(): value
        for key, value in properties.items()
    }


def docker_answers() -> bool:
    """Return whether a Docker engine answers, within two seconds.

    This asks without docker-py, at the same address: without an engine, docker-py leaves a socket
    to the garbage collector, and its warning would break a user's test.
    """
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    scheme, _, address = host.partition("://")
    try:
        with _connect_to_docker(scheme, address) as engine:
            # HTTP 1.0: the engine closes after its answer, so nothing has to be read further.
            engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in engine.recv(256)
    except (OSError, ValueError):
        return False


def _connect_to_docker(scheme: str, address: str) -> socket.socket:
    if scheme != "unix":
        name, _, port = address.rpartition(":")
        return socket.create_connection((name, int(port)), _DOCKER_SECONDS)
    engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    engine.settimeout(_DOCKER_SECONDS)
    try:
        engine.connect(address)
    except OSError:
        # An open socket would warn when it is collected, perhaps in a user's test.
        engine.close()
        raise
    return engine


@contextlib.contextmanager
def provide_kafka(
    nodes: int = 1,
    version: str = DEFAULT_VERSION,
    *,
    settings: Mapping[str, str | int | bool] | None = None,
    report: Callable[[str], None] | None = None,
    **embedded: Any,
) -> Iterator[KafkaCluster]:
    """Provide a Kafka for the length of a `with` block, from the first source that has one.

    Args:
        nodes: the number of brokers; a cluster named in the environment keeps its own.
        version: the version of Apache Kafka, likewise.
        settings: broker settings by Kafka's names, likewise.
        report: called with lines for people, such as the progress of the first download.
        **embedded: further arguments of `EmbeddedKafka`, which no other source accepts.

    Yields:
        The cluster.

    Raises:
        EmbeddedKafkaError: no source has one; the message names the ways out.
    """
    # First: a cluster that the user names needs neither Java nor Docker.
    named = os.environ.get(BOOTSTRAP_VARIABLE)
    if named:
        yield ExistingKafka(named)
        return
    kafka = EmbeddedKafka(nodes, version, settings=settings, report=report, **embedded)
    with contextlib.ExitStack() as stack:
        try:
            kafka.start()
        except JavaNotFoundError:
            # Docker is asked last, and only if a container could do what is asked for.
            if nodes != 1 or embedded or not docker_answers():
                raise
            yield stack.enter_context(ContainerKafka(version, settings))
        else:
            # The stack passes the block's exception, if any, to the cluster, which then keeps the
            # logs.
            stack.push(kafka)
            yield kafka
