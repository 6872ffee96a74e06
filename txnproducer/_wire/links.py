"""What the client keeps of each connection between its lives: attempts, failures, when to retry.

Why it exists: the loop in `network_client` moves bytes; this answers its questions of "when" and
"which" from plain values.
Owns: `Link`, `Known`. Must not know: selectors, events, threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.versions import FinalizedFeatures

from .connection import NEVER_MS, Connection
from .connector import Connector
from .handshake import Step

UNTIL_NEWS_MS = 2**31 - 1  # "no time is worth waiting for: an event will come"
_HUNG_MS = 30_000
_GRACE_MS = 50  # for a connector to tell itself why it is late


@dataclass(slots=True)
class Known:
    """The news of connections that any thread may read, and the settings that any may change.

    Not an attribute of the client itself, which is compiled: without a GIL a read of that could
    meet an object that the loop's thread has just let go of.

    Attributes:
        features: the finalized features of the highest epoch.
        longest_attempt_ms: what an attempt to connect may take at most.
    """

    features: FinalizedFeatures
    longest_attempt_ms: int = NEVER_MS


@dataclass(slots=True)
class Link:
    """What is known of one connection, whether it exists or not.

    Attributes:
        connection: the established connection, if there is one.
        connector: the attempt to make one, if it is under way.
        failures: attempts and connections in a row that ended without a single answer.
        late_attempts: attempts in a row that ran out of time; each gets more than the one before.
        retry_at_ms: not to be tried again before.
        last_attempt_ms: when it was last tried; -1 if never.
        hung: steps of logins that were given up before they had returned.
    """

    connection: Connection | None = None
    connector: Connector | None = None
    failures: int = 0
    late_attempts: int = 0
    retry_at_ms: int = 0
    last_attempt_ms: int = -1
    hung: list[Step] = field(default_factory=list)

    def rank(self, now_ms: int, is_bootstrap: bool) -> tuple[int, int, int] | None:
        """Return how good the node is for any request (less is better); None while it backs off.

        Ready ones first, by load; then those being connected; then those that could be: known
        brokers before bootstrap addresses (perhaps a load balancer's), the one tried longest ago
        first; at last those that take no request just now.
        """
        if self.connection is not None:
            rank = 0 if self.connection.can_send(now_ms) else 3
            return rank, self.connection.in_flight_count, 0
        if self.connector is not None:
            return 1, 0, 0
        if now_ms < self.retry_at_ms:
            return None
        return 2, int(is_bootstrap), self.last_attempt_ms

    def ready_delay_ms(self, now_ms: int) -> int:
        """Return after how long it is worth asking again whether a request can be sent."""
        if self.connection is None:
            return UNTIL_NEWS_MS if self.connector else max(0, self.retry_at_ms - now_ms)
        if self.connection.can_send(now_ms):
            return 0
        return max(0, self.connection.muted_until_ms - now_ms) or UNTIL_NEWS_MS

    def back_off(self, backoff: ExponentialBackoff, now_ms: int) -> None:
        """Count a failure and put the next attempt off."""
        self.retry_at_ms = now_ms + backoff.draw_ms(self.failures)
        self.failures += 1

    def give_up_step(self, step: Step | None) -> None:
        """Remember the last step of a login, whose thread may wait for it for ever."""
        if step is not None:
            self.hung.append(step)

    def hung_for_ms(self, now_ms: int) -> int:
        """Return for how long a step has not returned; 0 if another login may be tried.

        After half a minute one may: perhaps the first waits for a connection that was lost. After
        that it takes twice as long each time, so that the threads that hang stay few.
        """
        self.hung = [step for step in self.hung if not step.is_over]
        if not self.hung:
            return 0
        hung_ms = now_ms - self.hung[-1].began_ms
        return hung_ms if hung_ms < _HUNG_MS << len(self.hung) - 1 else 0

    def due_ms(self, max_idle_ms: int) -> int:
        """Return when something has to be done if nothing comes before."""
        if self.connection is not None:
            return min(self.connection.next_deadline_ms(), self.idle_at_ms(max_idle_ms))
        return NEVER_MS if self.connector is None else hopeless_at_ms(self.connector)

    def idle_at_ms(self, max_idle_ms: int) -> int:
        """Return when the connection has been idle for too long; a negative limit means never."""
        connection = self.connection
        if connection is None or max_idle_ms < 0:
            return NEVER_MS
        if connection.in_flight_count or connection.has_output:
            return NEVER_MS
        return connection.last_used_ms + max_idle_ms


def hopeless_at_ms(connector: Connector) -> int:
    """Return when to stop waiting even for the connector's own report (a look-up may hang)."""
    return connector.deadline_ms + _GRACE_MS
