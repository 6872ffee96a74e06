"""The files of a cluster before its first node runs: ports, configuration, formatted data.

Owns the folders of one cluster and the names in them. Starts no broker; runs Kafka's formatting
tool through `KafkaTools`.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ._config import HOST, ClusterLayout, NodePorts, server_properties, to_properties, uses_tls
from ._errors import PortInUseError
from ._locks import FolderLock
from ._ports import PortClaims, is_port_free
from ._process import Watcher
from ._tls import make_certificates
from ._tools import KafkaTools


@dataclass(frozen=True)
class ClusterFiles:
    """The folders of one cluster."""

    base: Path
    lock: FolderLock | None = None

    @classmethod
    def open(cls, data_dir: Path | None, watcher: Watcher) -> ClusterFiles:
        """Return the folders in the caller's folder, or in a temporary one.

        Raises:
            EmbeddedKafkaError: the caller's cannot be written, or another cluster has it.
        """
        if data_dir is not None:
            return cls(data_dir, FolderLock(data_dir))
        base = Path(tempfile.mkdtemp(prefix="txnproducer-kafka-"))
        watcher.remove_folder(base)
        return cls(base)

    def close(self, error: BaseException | None) -> None:
        """Remove a temporary folder, except for logs that show why something failed.

        Args:
            error: the failure; gets a note that names the logs.
        """
        if self.lock is not None:
            self.lock.release()
            return
        # After Ctrl-C they are not needed.
        has_logs = self.logs.exists() and any(self.logs.iterdir())
        keeps_logs = isinstance(error, Exception) and has_logs
        shutil.rmtree(self.data if keeps_logs else self.base, ignore_errors=True)
        if keeps_logs and error is not None:
            error.add_note(f"Kafka's logs were kept in {self.logs}.")

    def make(self) -> None:
        """Make the folders that do not exist."""
        for name in ("conf", "logs", "data"):
            (self.base / name).mkdir(parents=True, exist_ok=True)

    @property
    def conf(self) -> Path:
        """The folder of configuration and keys."""
        return self.base / "conf"

    @property
    def logs(self) -> Path:
        """The folder of the logs of brokers and tools."""
        return self.base / "logs"

    @property
    def data(self) -> Path:
        """The folder of the nodes' data."""
        return self.base / "data"

    def properties(self, index: int) -> Path:
        """Return the path of a node's configuration."""
        return self.conf / f"node-{index}.properties"

    def log(self, index: int) -> Path:
        """Return the path of a node's log."""
        return self.logs / f"node-{index}.log"

    def node_data(self, index: int) -> Path:
        """Return the folder of a node's data."""
        return self.data / f"node-{index}"


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster as its caller has described it."""

    nodes: int
    listeners: Sequence[str]
    sasl_mechanisms: Sequence[str]
    users: Mapping[str, str] = field(repr=False)
    settings: Mapping[str, str] = field(repr=False)
    features: Mapping[str, int]
    port: int | None


def prepare(
    plan: ClusterPlan, files: ClusterFiles, tools: KafkaTools, claims: PortClaims
) -> ClusterLayout:
    """Write all files that the nodes need to start.

    Args:
        plan: the description of the cluster.
        files: its folders; existing data is kept.
        tools: Kafka's programs.
        claims: take the ports, for as long as the cluster is there.

    Returns:
        The layout of the cluster, with its ports.

    Raises:
        EmbeddedKafkaError: a port is taken, or the formatting failed.
    """
    files.make()
    # For both names of this machine: a client refuses a certificate without the name that it uses.
    keys = make_certificates(files.conf, ("localhost", HOST)) if uses_tls(plan.listeners) else None
    layout = ClusterLayout(
        ports=_choose_ports(plan, claims),
        settings=plan.settings,
        sasl_mechanisms=plan.sasl_mechanisms,
        users=plan.users,
        keystore_pem=keys.keystore_pem if keys else None,
        truststore_pem=keys.ca_pem if keys else None,
    )
    for index in range(plan.nodes):
        properties = server_properties(layout, index, files.node_data(index))
        # ASCII, because `to_properties` writes all other characters as escapes.
        files.properties(index).write_text(to_properties(properties), encoding="ascii")
    _format(plan, files, tools)
    return layout


def _choose_ports(plan: ClusterPlan, claims: PortClaims) -> list[NodePorts]:
    # A dict, which keeps the order: `bootstrap_servers` is of the first listener.
    names = list(dict.fromkeys([*plan.listeners, "PLAINTEXT"]))
    firsts: list[int] = []
    if plan.port is not None:
        firsts = [plan.port + index for index in range(plan.nodes)]
        taken = [port for port in firsts if not is_port_free(port, HOST)]
        if taken:
            raise PortInUseError(
                f"Port {taken[0]} on {HOST} is in use. Choose another one, or none: then free "
                "ports are chosen."
            )
        for port in firsts:
            # Not refused without a claim: a process that was forked earlier may still hold it.
            claims.claim(port)
    spare = iter(claims.choose(plan.nodes * (len(names) + 1)))
    nodes = []
    for index in range(plan.nodes):
        ports = {name: next(spare) for name in names}
        if firsts:
            ports[names[0]] = firsts[index]
        nodes.append(NodePorts(controller=next(spare), listeners=ports))
    return nodes


def _format(plan: ClusterPlan, files: ClusterFiles, tools: KafkaTools) -> None:
    identity = files.conf / "cluster.id"
    # A data folder from earlier belongs to its cluster id; nodes refuse to start under another
    # one.
    if not identity.exists():
        random_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The tool would take a leading dash for an option.
        identity.write_text(random_id.replace("-", "A"))
    cluster_id = identity.read_text()
    scram = _scram_users(plan)

    def format_node(index: int) -> None:
        # The tool refuses a folder that is formatted already.
        if not (files.node_data(index) / "meta.properties").exists():
            tools.format_storage(
                cluster_id, files.properties(index), plan.features, scram, files.log(index)
            )

    # At once, since each run of the tool starts a JVM.
    with ThreadPoolExecutor(plan.nodes) as pool:
        # Read to the end, so that a node that could not be formatted raises here.
        list(pool.map(format_node, range(plan.nodes)))


def _scram_users(plan: ClusterPlan) -> list[str]:
    if not any(name.startswith("SASL_") for name in plan.listeners):
        return []
    return [
        f"{mechanism}=[name={user},password={password}]"
        for mechanism in plan.sasl_mechanisms
        if mechanism.startswith("SCRAM-")
        for user, password in plan.users.items()
    ]
