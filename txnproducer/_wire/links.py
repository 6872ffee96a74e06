"""The state of each connection that outlives it: attempts, failures, the time of the next try.

Why it exists: the loop in `network_client` moves bytes. This module answers its questions of when
to try which connection, from plain values.
Owns: `WireLink`, `Known`. Must not know: selectors, events, threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnproducer._protocol.backoff import ExponentialBackoff, doubled
from txnproducer._protocol.versions import FinalizedFeatures

from .connection import NEVER_MS, Connection
from .connector import Connector
from .handshake import ExchangeStep

UNTIL_NEWS_MS = 2**31 - 1  # no time is worth waiting for: an event will come
# How long a login's step may hang before another login is tried.
_HUNG_MS = 30_000
_LEAST_MS = 5  # between two attempts, after the second failure in a row
_GRACE_MS = 50  # for a connector to report by itself why it is late


@dataclass(slots=True)
class Known:
    """News of connections that any thread may read, and settings that any thread may change.

    The rest of the client belongs to the loop's thread.

    Attributes:
        features: the finalized features of the highest epoch.
        longest_attempt_ms: the longest time of an attempt to connect.
    """

    features: FinalizedFeatures
    longest_attempt_ms: int = NEVER_MS


@dataclass(slots=True)
class WireLink:
    """The state of one connection, whether it exists or not.

    Attributes:
        connection: the established connection, if there is one.
        connector: the attempt to make one, if it is under way.
        failures: attempts and connections in a row that ended without an answer.
        late_attempts: attempts in a row that ran out of time; each gets more time than the last.
        retry_at_ms: the earliest time of the next attempt.
        last_attempt_ms: the time of the last attempt; -1 if there was none.
        hung: steps of logins that were given up before they had returned.
    """

    connection: Connection | None = None
    connector: Connector | None = None
    failures: int = 0
    late_attempts: int = 0
    retry_at_ms: int = 0
    last_attempt_ms: int = -1
    hung: list[ExchangeStep] = field(default_factory=list)

    def rank(self, now_ms: int, is_bootstrap: bool) -> tuple[int, int, int] | None:
        """Return the node's rank for any request (less is better), or None while it backs off.

        Ready nodes come first, by load; then nodes being connected; then nodes to connect, known
        brokers before bootstrap addresses (which may be a load balancer's), the longest untried
        first; last the nodes that take no request at the moment.
        """
        if self.connection is not None:
            # Full or throttled nodes are named last and not left out: they may be the only ones.
            rank = 0 if self.connection.can_send(now_ms) else 3
            return rank, self.connection.in_flight_count, 0
        if self.connector is not None:
            return 1, 0, 0
        if now_ms < self.retry_at_ms:
            return None
        return 2, int(is_bootstrap), self.last_attempt_ms

    def ready_delay_ms(self, now_ms: int) -> int:
        """Return the milliseconds until it is worth asking again whether a request can be sent."""
        if self.connection is None:
            return UNTIL_NEWS_MS if self.connector else max(0, self.retry_at_ms - now_ms)
        if self.connection.can_send(now_ms):
            return 0
        # A full connection has no time to wait for: an answer makes room, and wakes the loop.
        return max(0, self.connection.muted_until_ms - now_ms) or UNTIL_NEWS_MS

    def back_off(self, backoff: ExponentialBackoff, now_ms: int) -> None:
        """Count a failure and delay the next attempt."""
        # Drawn before the count: the first failure waits for the shortest time.
        wait_ms = backoff.draw_ms(self.failures)
        # A pause of 0 would make thousands of connections a second to a port that closes them.
        self.retry_at_ms = now_ms + (max(wait_ms, _LEAST_MS) if self.failures else wait_ms)
        self.failures += 1

    def give_up_step(self, step: ExchangeStep | None) -> None:
        """Remember the last step of a login that was given up, since its thread may hang in it."""
        if step is not None:
            self.hung.append(step)

    def hanging_steps(self) -> list[ExchangeStep]:
        """Return the steps of logins that were given up and have not returned."""
        # Steps that have returned meanwhile do not count any more.
        self.hung = [step for step in self.hung if not step.is_over]
        return self.hung

    def hung_for_ms(self, now_ms: int) -> int:
        """Return for how long a step has not returned, or 0 if another login may be tried.

        Another login may be tried after half a minute: the first may wait for a lost connection.
        Each further one takes twice as long, so that few threads hang.
        """
        if not self.hanging_steps():
            return 0
        hung_ms = now_ms - self.hung[-1].began_ms
        return hung_ms if hung_ms < doubled(_HUNG_MS, NEVER_MS, len(self.hung) - 1) else 0

    def due_ms(self, max_idle_ms: int) -> int:
        """Return the time of the next thing to do for this connection."""
        if self.connection is not None:
            return min(self.connection.next_deadline_ms(), self.idle_at_ms(max_idle_ms))
        return NEVER_MS if self.connector is None else hopeless_at_ms(self.connector)

    def idle_at_ms(self, max_idle_ms: int) -> int:
        """Return when the connection has been idle for too long. A negative limit means never."""
        connection = self.connection
        if connection is None or max_idle_ms < 0:
            return NEVER_MS
        # A connection that waits for an answer, or still has bytes to send, is in use.
        if connection.in_flight_count or connection.output:
            return NEVER_MS
        return connection.last_used_ms + max_idle_ms


def hopeless_at_ms(connector: Connector) -> int:
    """Return the time to stop waiting even for the connector's own report (a look-up may hang)."""
    return connector.deadline_ms + _GRACE_MS
