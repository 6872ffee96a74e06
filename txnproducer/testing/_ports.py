"""Ports for the servers of the test kit, kept from other clusters of this machine.

Why it exists: seconds pass between the choice of a port and the moment at which a broker listens
on it, and a broker that a test has stopped must get its port back.
Owns: the claims on ports. Must not know: brokers.

Rules:
* A claim is a UDP socket with the number of the port. The system gives it to one process alone,
  and takes it back when that process ends, however it ends. Brokers use TCP, and may listen there.
* Other programs know nothing of claims. So a port must be free as well.
"""

from __future__ import annotations

import itertools
import random
import socket
from typing import Self

from ._errors import PortInUseError
from ._polling import wait_until

__all__ = ["PortClaims", "is_port_free", "wait_until_free"]

# Below the range from which the kernel takes the ports of outgoing connections. So no client can
# take a stopped broker's port, and a client that keeps trying to reach that port cannot get the
# same one for itself and connect to itself.
_PORT_RANGE = range(20_000, 32_000)


class PortClaims:
    """The ports that one cluster has claimed.

    Args:
        host: the address on which its servers listen.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._held: list[socket.socket] = []

    def claim(self, port: int) -> bool:
        """Claim a port until `close`, and return whether that was possible.

        Returns:
            False if a cluster has claimed it already, this one included.
        """
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((self._host, port))
        except OSError:
            claim.close()
            return False
        self._held.append(claim)
        return True

    def choose(self, count: int) -> list[int]:
        """Claim ports on which no process listens now, below the kernel's range for clients.

        Args:
            count: the number of ports.

        Raises:
            PortInUseError: there are not enough free ports.
        """
        # In random order: the first ports of the range are those that all others would try.
        tries = random.sample(_PORT_RANGE, len(_PORT_RANGE))
        free = (port for port in tries if is_port_free(port, self._host) and self.claim(port))
        found = list(itertools.islice(free, count))
        if len(found) < count:
            raise PortInUseError(
                f"Found no {count} free ports on {self._host} in"
                f" {_PORT_RANGE.start}-{_PORT_RANGE.stop}. End a cluster or another server there."
            )
        return found

    def close(self) -> None:
        """Let other clusters have the ports."""
        while self._held:
            self._held.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_port_free(port: int, host: str) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: a port in TIME_WAIT is free for a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def wait_until_free(port: int, host: str, timeout: float) -> bool:
    """Wait until a port is free again after its broker was killed.

    Returns:
        False if it is still taken after `timeout` seconds.
    """
    return wait_until(lambda: is_port_free(port, host), timeout, 0.05)
