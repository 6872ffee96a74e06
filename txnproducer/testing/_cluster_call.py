"""A call of a test that the loop of an in-memory cluster makes.

Owns: `ClusterCall`, with its result and its interrupt. Must not know: the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from txnproducer._broker.cluster import BrokerCluster


class ClusterCall:
    """A test's call that the loop's thread makes."""

    def __init__(self, action: Callable[[BrokerCluster, int], Any]) -> None:
        self._action = action
        self._result: Any = None
        self._error: Exception | None = None
        self._is_given_up = False
        # Held until the call is made. A Future's condition does not survive an exception that a
        # signal raises in its wait.
        self._made = threading.Lock()
        self._made.acquire()

    def wait(self) -> Any:
        """Return the result, or raise the error."""
        try:
            self._made.acquire()
        except BaseException:
            self._is_given_up = True  # without effect if the call has begun
            raise
        if self._error is not None:
            raise self._error
        return self._result

    def make(self, cluster: BrokerCluster, now_ms: int) -> None:
        """Make the call, unless an interrupt has ended the wait before."""
        try:
            if not self._is_given_up:
                self._result = self._action(cluster, now_ms)
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            self._error = error
        self._made.release()

    def refuse(self, error: Exception) -> None:
        """Raise an error to the caller instead."""
        self._error = error
        self._made.release()
