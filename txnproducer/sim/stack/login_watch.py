"""The logins of one producer, and whether a refused one may end it.

Why it exists: the refusal by one broker says nothing about the others (`_core/sending/
login_refusals`). A producer that fails for good at such a refusal loses no record and breaks no
transaction, so no other check shows it.
Owns: the brokers that accept or refuse the logins of one producer, as these see it. Must not know:
the client's own account of them.

A refused login may end a producer
* because the broker was the coordinator of its id or its group when the producer asked for it
* because no other broker is left to ask. One is left if it has accepted the login and answered a
  request that any broker can answer, or if the producer has not tried to reach it yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import AuthenticationError, KafkaError

__all__ = ["LoginWatch"]

# Coordinators have connections of their own, which say nothing about requests to any broker.
_ON_DATA_CONNECTIONS: Final = frozenset({ApiKey.METADATA, ApiKey.PRODUCE})


class LoginWatch:
    """Follow the logins of one producer.

    Args:
        hosts: the names of all brokers that a producer can count on.
        coordinators: returns the brokers that coordinate the producer's id and its group now.
        leaver: a broker that may leave the cluster, and that no producer can count on; or None.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        coordinators: Callable[[], Iterable[int]],
        leaver: int | None = None,
    ) -> None:
        self._leaver = leaver
        self._coordinators = coordinators
        self._untried = set(hosts)
        self._may_be_needed: set[int] = set()
        self._accepting: set[int] = set()
        self._has_refused = self._is_needed_refused = False

    def looks_up(self, host: str) -> None:
        """Note that the producer begins to connect to a broker."""
        self._untried.discard(host)

    def asks(self) -> None:
        """Note that a broker reads a request, which may be one for a coordinator."""
        self._may_be_needed.update(self._coordinators())

    def answered(self, node_id: int, key: int) -> None:
        """Note an answer, which follows a login that was accepted."""
        if key in _ON_DATA_CONNECTIONS and node_id != self._leaver:
            self._accepting.add(node_id)

    def refused(self, node_id: int) -> None:
        """Note that a broker refuses a login."""
        self._accepting.discard(node_id)
        self._has_refused = True
        is_needed = node_id in self._may_be_needed or self._leave_none
        self._is_needed_refused = self._is_needed_refused or is_needed

    @property
    def _leave_none(self) -> bool:
        return self._has_refused and not (self._accepting or self._untried)

    def excuses(self, error: BaseException | None) -> bool:
        """Return whether a producer may fail for good with an error, as far as logins go."""
        # Later errors are consequences of the first one, which has the reason.
        while error is not None and isinstance(error.__cause__, KafkaError):
            error = error.__cause__
        # A client hears late why a listener has closed a connection. Meanwhile the last broker may
        # have been tried without an answer.
        is_excused = self._is_needed_refused or self._leave_none
        return is_excused or not isinstance(error, AuthenticationError)
