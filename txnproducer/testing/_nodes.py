"""The nodes of a prepared cluster: their processes, and the waits until they are ready.

Owns: one process for each node, from its launch to its end. Must not know: folders that are made
or removed, the calls of tests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from txnproducer import admin
from txnproducer.errors import KafkaTimeoutError

from ._config import HOST, ClusterLayout, node_id
from ._errors import BrokerStartError, EmbeddedKafkaError, PortInUseError
from ._ports import is_port_free, wait_until_free
from ._preparation import ClusterFiles
from ._process import ManagedProcess, Watcher
from ._tools import KafkaTools

__all__ = ["STOP_SECONDS", "ClusterNodes"]

STOP_SECONDS = 30.0
_PORT_SECONDS = 10.0
_POLL_SECONDS = 0.05


class ClusterNodes:
    """The nodes of one cluster, by their index from 0.

    Args:
        layout: the cluster's addresses.
        files: its folders.
        tools: the commands of its version of Kafka.
        watcher: ends the processes if this one dies.
        jvm_options: for each node's Java.
        startup_timeout: seconds until launched nodes must be ready.
    """

    def __init__(
        self,
        layout: ClusterLayout,
        files: ClusterFiles,
        tools: KafkaTools,
        watcher: Watcher,
        jvm_options: Sequence[str],
        startup_timeout: float,
    ) -> None:
        self.layout = layout
        self.files = files
        self.tools = tools
        self._watcher = watcher
        self._jvm_options = jvm_options
        self._startup_timeout = startup_timeout
        self._processes: dict[int, ManagedProcess] = {}

    def process(self, index: int) -> ManagedProcess:
        """Return the process of a node.

        Raises:
            EmbeddedKafkaError: there is no such node.
        """
        process = self._processes.get(index)
        if process is None:
            last = self.layout.nodes - 1
            raise EmbeddedKafkaError(f"There is no node {index}; there are 0 to {last}.")
        return process

    def launch(self, index: int) -> None:
        """Start the process of a node, without waiting for it."""
        command = self.tools.broker_command(self._jvm_options, self.files.properties(index))
        self._processes[index] = ManagedProcess(command, self.files.log(index), self._watcher)

    def launch_again(self, index: int) -> None:
        """Start a node that has ended, on the same ports, and wait until it is ready.

        Raises:
            EmbeddedKafkaError: it is running, a port was taken, or it did not start.
        """
        if self.process(index).is_running():
            raise EmbeddedKafkaError(f"Node {index} is running already.")
        ports = self.layout.ports[index]
        for port in (ports.controller, *ports.listeners.values()):
            # The kernel may need a moment to close the sockets of a broker that was killed.
            if not wait_until_free(port, HOST, _PORT_SECONDS):
                raise PortInUseError(f"Port {port} of node {index} was taken meanwhile.")
        self.launch(index)
        self.wait_until_ready([index])

    def end(self, *, in_order: bool) -> None:
        """End all nodes.

        Args:
            in_order: whether they may finish their work first. If not, they are killed.
        """
        if in_order:
            # All are asked at once: the last of three would find no quorum for its controlled
            # shutdown.
            for process in self._processes.values():
                process.ask_to_end()
            for process in self._processes.values():
                process.wait_or_kill(STOP_SECONDS)
        else:
            for process in self._processes.values():
                process.kill()
        self._processes.clear()

    # --- readiness ------------------------------------------------------------------------------

    def wait_until_ready(self, indexes: Sequence[int]) -> None:
        """Wait until some nodes serve clients and know all the others that run."""
        deadline = time.monotonic() + self._startup_timeout
        for index in indexes:
            self._wait_until_listening(index, deadline)
        # Only those that run: a test may have killed the others on purpose.
        running = {node_id(i) for i, each in self._processes.items() if each.is_running()}
        for index in indexes:
            self._wait_until_informed(index, running, deadline)

    def _wait_until_informed(self, index: int, running: set[int], deadline: float) -> None:
        """Wait until a node knows all the others, which it learns at a time of its own."""
        # The one listener that every cluster has, and that asks for no login.
        address = f"{HOST}:{self.layout.ports[index].listeners['PLAINTEXT']}"
        left = max(1.0, deadline - time.monotonic())
        try:
            # A superset will do: a broker that a test has just killed is listed until its session
            # ends.
            admin.wait_for_brokers(address, running.issubset, left)
        except KafkaTimeoutError as error:
            raise BrokerStartError(self._why(index, f"is not ready: {error}")) from error

    def _wait_until_listening(self, index: int, deadline: float) -> None:
        process = self._processes[index]
        port = self.layout.ports[index].listeners["PLAINTEXT"]
        while is_port_free(port, HOST):
            # Before the time-out: a broker that has ended will never listen, and its log says why.
            if not process.is_running():
                raise BrokerStartError(self._why(index, f"ended ({process.exit_code()})"))
            if time.monotonic() >= deadline:
                late = f"was not ready within {self._startup_timeout:g} s"
                raise BrokerStartError(self._why(index, late))
            time.sleep(_POLL_SECONDS)  # until the next look at the processes

    def _why(self, index: int, what: str) -> str:
        process = self._processes[index]
        # Its end is the shutdown, which comes after the cause.
        errors, how = process.log_errors(), "has these errors"
        if not errors:
            errors, how = process.log_tail(), "ends with"
        return f"Kafka's node {index} {what}. Its log, {process.log_path}, {how}:\n{errors}"
