"""`EmbeddedKafka`: a real Apache Kafka for tests, demos and experiments.

Why it exists: only a real broker shows whether a transaction is right, and that should need no
Docker, no download page and no administrator.
Owns: a cluster of KRaft nodes on this machine, from the jars to its end.
Must not know: producers or consumers; the caller runs those.

Rules:
* Nothing outlives its owner: leaving the `with` block, an exception, Ctrl-C, the end of the
  interpreter and the owner's sudden death all end the brokers (the last by a watcher process).
* Everything is bounded; each error gives the reason and the path of the log.
* Data in a temporary folder is deleted, so its brokers are simply killed. With a `data_dir` of the
  caller's they end in order, and a later cluster with the same folder goes on from it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from txnproducer import admin

from ._cluster_verbs import ClusterVerbs
from ._config import HOST, SASL_MECHANISMS, as_text, check_arguments, node_id, uses_tls
from ._errors import EmbeddedKafkaError
from ._jars import kafka_jars
from ._java import find_java
from ._nodes import STOP_SECONDS, ClusterNodes
from ._ports import PortClaims
from ._preparation import ClusterFiles, ClusterPlan, prepare
from ._process import Watcher
from ._tls import require_packages
from ._tools import KafkaTools

log = logging.getLogger("txnproducer.testing")

DEFAULT_VERSION = "4.3.1"
# A test's broker lives for seconds: the first compiler and the simplest collector start fastest.
FAST_START_JVM = ("-Xms96m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# For benchmarks: the full compiler, the collector and the options of Kafka's own scripts.
THROUGHPUT_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
DEFAULT_USERS = {"alice": "alice-secret", "bob": "bob-secret"}


class EmbeddedKafka(ClusterVerbs):
    """A real Apache Kafka cluster on this machine, without Docker.

    Used as a context manager, or with `start()` and `stop()`:

        with EmbeddedKafka() as kafka, kafka.producer("orders-0") as producer:
            ...

    Args:
        nodes: the number of brokers, each with a controller in the same process; usually 1 or 3.
        version: the version of Apache Kafka.
        settings: broker settings by Kafka's names; they override ours.
        features: feature levels to format the cluster with, such as `{"transaction.version": 1}`.
        listeners: security protocols of the listeners: "PLAINTEXT", "SSL", "SASL_PLAINTEXT",
            "SASL_SSL". `bootstrap_servers` returns the addresses of the first one. A PLAINTEXT
            listener always exists in addition.
        sasl_mechanisms: for the SASL listeners: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512".
        users: names and passwords for the SASL listeners.
        port: the port of the first node's first listener; the next nodes take the next ports. None
            chooses free ports.
        data_dir: the folder of data, configuration and logs; the cluster goes on from existing
            data. None for a temporary folder, which is removed at the end.
        jvm_options: for each broker's Java: `FAST_START_JVM` or `THROUGHPUT_JVM`, or others.
        startup_timeout: seconds until all nodes must be ready, once the jars are there.
        report: called with the lines of the first download; None prints them to standard error.
    """

    def __init__(
        self,
        nodes: int = 1,
        version: str = DEFAULT_VERSION,
        *,
        settings: Mapping[str, str | int | bool] | None = None,
        features: Mapping[str, int] | None = None,
        listeners: Sequence[str] = ("PLAINTEXT",),
        sasl_mechanisms: Sequence[str] = SASL_MECHANISMS,
        users: Mapping[str, str] | None = None,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        jvm_options: Sequence[str] = FAST_START_JVM,
        startup_timeout: float = 90.0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        check_arguments(nodes, version, listeners, sasl_mechanisms, port)
        self.nodes = nodes
        self.version = version
        self.listeners = tuple(listeners)
        self.users = dict(DEFAULT_USERS if users is None else users)
        self._plan = ClusterPlan(
            nodes=nodes,
            listeners=self.listeners,
            sasl_mechanisms=tuple(sasl_mechanisms),
            users=self.users,
            settings={key: as_text(value) for key, value in (settings or {}).items()},
            features=dict(features or {}),
            port=port,
        )
        self._data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._jvm_options = tuple(jvm_options)
        self._startup_timeout = startup_timeout
        self._report = report or _to_stderr
        self._owner = os.getpid()
        self._ports = PortClaims(HOST)
        self._watcher: Watcher | None = None
        self._files: ClusterFiles | None = None
        self._made_nodes: ClusterNodes | None = None

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all nodes, and wait until each serves clients and knows the others.

        Returns:
            The cluster itself.

        Raises:
            EmbeddedKafkaError: Java, the jars or a port is missing, or a broker did not start;
                the message names the way out, and the log if there is one.
        """
        if self._watcher is not None:
            raise EmbeddedKafkaError("This cluster is running already.")
        if uses_tls(self.listeners):
            require_packages()
        java = find_java(self.version)
        tools = KafkaTools(self.version, java, kafka_jars(self.version, self._report))
        self._owner = os.getpid()
        # Before the first process starts, so that an exit in the midst of the start ends it.
        atexit.register(self._stop_quietly)
        began = time.monotonic()
        try:
            self._watcher = Watcher()
            self._files = ClusterFiles.open(self._data_dir, self._watcher)
            layout = prepare(self._plan, self._files, tools, self._ports)
            nodes = self._made_nodes = ClusterNodes(
                layout, self._files, tools, self._watcher, self._jvm_options, self._startup_timeout
            )
            # All before the first wait: any of three controllers needs a second to become ready.
            for index in range(self.nodes):
                nodes.launch(index)
            nodes.wait_until_ready(range(self.nodes))
        except BaseException as error:
            self._end(error)
            raise
        log.info("Kafka %s is ready after %.1f s", self.version, time.monotonic() - began)
        return self

    def stop(self) -> None:
        """End all nodes and remove the temporary folder. A second call does nothing."""
        self._end(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._end(error)

    def _stop_quietly(self) -> None:
        with contextlib.suppress(OSError):
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        # A forked child inherits this object, and must leave the brokers to their owner.
        if self._watcher is None or os.getpid() != self._owner:
            return
        if self._made_nodes is not None:
            self._made_nodes.end(in_order=self._data_dir is not None)
            self._made_nodes = None
        self._ports.close()
        files, self._files = self._files, None
        if files is not None:
            files.close(error)
        # Last: until here the watcher would end the brokers if this process died.
        self._watcher.close()
        self._watcher = None
        atexit.unregister(self._stop_quietly)

    # --- single nodes ---------------------------------------------------------------------------

    def stop_node(self, index: int, timeout: float = STOP_SECONDS) -> None:
        """Ask a node to end in order (SIGTERM), and wait until it has.

        Args:
            index: which node, from 0.
            timeout: seconds; after that the node is killed.
        """
        process = self._nodes.process(index)
        process.ask_to_end()
        if not process.wait_or_kill(timeout):
            log.warning("Node %d did not end within %g s and was killed", index, timeout)

    def kill_node(self, index: int) -> None:
        """Kill a node (SIGKILL), as a crash of its machine would."""
        self._nodes.process(index).kill()

    def start_node(self, index: int) -> None:
        """Start a node that was stopped or killed, on the same ports and data.

        Args:
            index: which node, from 0.

        Raises:
            BrokerStartError: it did not become ready; the message holds the end of its log.
        """
        self._nodes.launch_again(index)

    def pause_node(self, index: int) -> None:
        """Freeze a node (SIGSTOP). Its connections stay open, and nothing is answered."""
        self._nodes.process(index).pause()

    def resume_node(self, index: int) -> None:
        """Let a frozen node run again."""
        self._nodes.process(index).resume()

    def is_node_running(self, index: int) -> bool:
        """Return whether a node's process is running."""
        return self._nodes.process(index).is_running()

    def node_pid(self, index: int) -> int:
        """Return the process id of a node."""
        return self._nodes.process(index).pid

    def node_id(self, index: int) -> int:
        """Return the broker id of the node with this index."""
        return node_id(index)

    def node_index(self, broker_id: int) -> int:
        """Return the index of the node with this broker id."""
        return broker_id - 1

    def node_log(self, index: int) -> Path:
        """Return the path of a node's log."""
        return self._nodes.process(index).log_path

    # --- for clients ----------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the first listener of every node, separated by commas."""
        return self.addresses(self.listeners[0])

    def addresses(self, listener: str) -> str:
        """Return the addresses of one listener of every node, separated by commas.

        Args:
            listener: its security protocol, such as "SASL_SSL".
        """
        ports = self._nodes.layout.ports
        if listener not in ports[0].listeners:
            raise EmbeddedKafkaError(
                f"This cluster has no {listener} listener; add it to `listeners`."
            )
        return ",".join(f"{HOST}:{each.listeners[listener]}" for each in ports)

    @property
    def ca_pem_path(self) -> Path:
        """The certificate of the authority that signed the brokers' certificates."""
        path = self._nodes.layout.truststore_pem
        if path is None:
            raise EmbeddedKafkaError('This cluster has no TLS listener; add "SSL" to `listeners`.')
        return path

    def security_config(
        self,
        user: str | None = None,
        mechanism: str | None = None,
        listener: str | None = None,
    ) -> dict[str, Any]:
        """Return a client's settings for a listener, in kafka-python's names.

        Args:
            user: one of the cluster's users, for a SASL listener; the first when None.
            mechanism: one of its SASL mechanisms; the first when None.
            listener: its security protocol; the first listener when None.

        Returns:
            `security_protocol`, and `ssl_cafile` and the `sasl_` settings where they apply.
        """
        protocol = listener or self.listeners[0]
        self.addresses(protocol)
        config: dict[str, Any] = {"security_protocol": protocol}
        if protocol.endswith("SSL"):
            config["ssl_cafile"] = str(self.ca_pem_path)
        if protocol.startswith("SASL_"):
            name = user or next(iter(self.users))
            if name not in self.users:
                raise EmbeddedKafkaError(
                    f"There is no user {name!r}; there are {', '.join(self.users)}."
                )
            config["sasl_mechanism"] = mechanism or self._plan.sasl_mechanisms[0]
            config["sasl_plain_username"] = name
            config["sasl_plain_password"] = self.users[name]
        return config

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Create a topic, and wait until every partition has a leader that takes records.

        Args:
            name: the topic.
            partitions: the number of partitions.
            replication_factor: the number of replicas; None for as many as nodes, at most 3.
            config: settings of the topic, by Kafka's names.
            timeout: seconds.

        Raises:
            KafkaError: the cluster refused, or did not answer in time.
        """
        text = {key: as_text(value) for key, value in (config or {}).items()}
        admin.create_topic(
            self.addresses("PLAINTEXT"), name, partitions, replication_factor, text, timeout
        )

    def leader_index(self, topic: str, partition: int = 0) -> int:
        """Return the index of the node that leads a partition, or -1 while none does."""
        leader = admin.leader_of(self.addresses("PLAINTEXT"), topic, partition)
        return self.node_index(leader) if leader >= 0 else -1

    def coordinator_index(self, transactional_id: str) -> int:
        """Return the index of the node that coordinates a transactional id, or -1 while none does.

        Raises:
            UnknownTopicOrPartitionError: no transactional id has been used on this cluster yet.
        """
        leader = admin.coordinator_of(self.addresses("PLAINTEXT"), transactional_id)
        return self.node_index(leader) if leader >= 0 else -1

    def wait_in_sync(self, timeout: float = 60.0) -> None:
        """Wait until all nodes are there and every replica of every topic is in sync.

        Between two kills, this keeps the second from removing the last replica.

        Raises:
            KafkaTimeoutError: not in time; the message names what is missing.
        """
        admin.wait_for_replicas(self.addresses("PLAINTEXT"), self.nodes, timeout)

    def dump_log(self, topic: str, partition: int = 0, index: int = 0) -> str:
        """Return the output of Kafka's DumpLogSegments for a partition's log.

        Args:
            topic: the topic.
            partition: its partition.
            index: the node whose copy to read.

        Raises:
            EmbeddedKafkaError: the node has no such log, or the tool failed.
        """
        nodes = self._nodes
        segments = sorted((nodes.files.node_data(index) / f"{topic}-{partition}").glob("*.log"))
        if not segments:
            raise EmbeddedKafkaError(f"Node {index} has no log of {topic}-{partition}.")
        return nodes.tools.dump_log(segments, nodes.files.logs / "tools.log")

    # --- helpers --------------------------------------------------------------------------------

    @property
    def _nodes(self) -> ClusterNodes:
        if self._watcher is None:
            raise EmbeddedKafkaError("This cluster is not running: call start() first.")
        if self._made_nodes is None:
            raise EmbeddedKafkaError("This cluster is still being prepared.")
        return self._made_nodes


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
