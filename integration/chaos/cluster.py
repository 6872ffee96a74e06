"""A cluster of three brokers with links that can be cut.

Owns: the brokers' addresses, which are those of proxies, and the search for the broker that a
fault strikes. Must not know: workloads, checks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from integration.chaos.links import HOST, Links
from txnproducer import admin
from txnproducer.testing import EmbeddedKafka
from txnproducer.testing._config import node_id
from txnproducer.testing._jars import kafka_jars
from txnproducer.testing._java import find_java
from txnproducer.testing._nodes import ClusterNodes
from txnproducer.testing._preparation import ClusterFiles, prepare
from txnproducer.testing._process import Watcher
from txnproducer.testing._tools import KafkaTools

CLIENTS = "clients"
NODES = 3
JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}


def broker(index: int) -> str:
    """Return the name of a broker as a party of links."""
    return f"broker {index}"


class LinkedKafka(EmbeddedKafka):
    """Three brokers that reach each other, and are reached by clients, through links.

    Args:
        version: `transaction.version` at the start.
        clients: returns the process ids of the clients.
    """

    def __init__(self, version: int, clients: Callable[[], Iterable[int]]) -> None:
        super().__init__(
            NODES,
            features={"transaction.version": version},
            settings=SETTINGS,
            jvm_options=JVM,
        )
        self._clients = clients
        self.links = Links(self._parties)

    def _parties(self) -> dict[str, Iterable[int]]:
        parties: dict[str, Iterable[int]] = {
            broker(index): (self.node_pid(index),) for index in range(self.nodes)
        }
        return {**parties, CLIENTS: tuple(self._clients())}

    def start(self) -> Self:
        # As `EmbeddedKafka` starts, but with the proxies' addresses in the configuration.
        tools = KafkaTools(
            self.version, find_java(self.version), kafka_jars(self.version, self._report)
        )
        self._owner = os.getpid()
        atexit.register(self._stop_quietly)
        try:
            self._watcher = Watcher()
            self._files = ClusterFiles.open(self._data_dir, self._watcher)
            layout = prepare(self._plan, self._files, tools, self._ports)
            self.links.start()
            self._redirect(layout.ports, self._files.properties)
            nodes = self._made_nodes = ClusterNodes(
                layout, self._files, tools, self._watcher, self._jvm_options, self._startup_timeout
            )
            for index in range(self.nodes):
                nodes.launch(index)
            nodes.wait_until_ready(range(self.nodes))
        except BaseException as error:
            self._end(error)
            raise
        return self

    def _redirect(self, ports, properties: Callable[[int], Path]) -> None:
        clients, controllers = [], []
        for index, each in enumerate(ports):
            clients.append(self.links.add(broker(index), each.listeners["PLAINTEXT"]))
            controllers.append(self.links.add(broker(index), each.controller))
        voters = ",".join(f"{node_id(i)}@{HOST}:{port}" for i, port in enumerate(controllers))
        for index in range(self.nodes):
            addresses = (
                f"PLAINTEXT://{HOST}:{clients[index]},CONTROLLER://{HOST}:{controllers[index]}"
            )
            # Of two lines with one name, Java takes the later one.
            with properties(index).open("a", encoding="ascii") as file:
                file.write(f"advertised.listeners={addresses}\n")
                file.write(f"controller.quorum.voters={voters}\n")

    def _end(self, error: BaseException | None) -> None:
        super()._end(error)
        self.links.stop()


def plain_kafka(version: int) -> EmbeddedKafka:
    """Return a cluster of three brokers without proxies."""
    return EmbeddedKafka(
        NODES, features={"transaction.version": version}, settings=SETTINGS, jvm_options=JVM
    )


def controller_index(kafka: EmbeddedKafka) -> int:
    """Return the index of the node that is the active controller."""
    with admin.connect(kafka.addresses("PLAINTEXT")) as client:
        quorum = client.describe_metadata_quorum()
    return kafka.node_index(quorum["topics"][0]["partitions"][0]["leader_id"])


def group_coordinator_index(kafka: EmbeddedKafka, group: str) -> int:
    """Return the index of the node that coordinates a group."""
    servers = kafka.addresses("PLAINTEXT")
    return kafka.node_index(admin.coordinator_of(servers, group, admin.GROUP_TOPIC))


def raise_version(kafka: EmbeddedKafka) -> None:
    """Raise `transaction.version` of a running cluster to 2."""
    with admin.connect(kafka.addresses("PLAINTEXT")) as client:
        results = client.update_features({"transaction.version": 2})
    if set(results.values()) != {"OK"}:
        raise AssertionError(f"transaction.version was not raised: {results}")
