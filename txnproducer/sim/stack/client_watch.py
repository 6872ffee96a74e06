"""The connections of one producer as the system sees them, judged by the rules of a good client.

Why it exists: the core repeats a request that was lost, and a call has a long time. So a client
that comes back late, or gives up a connection without a reason, only costs time, and no call shows
it. Its look-ups and sockets do.
Owns: the attempts to connect of one producer, and the judgement of connections. Must not know: the
run, calls, bytes.

    retries   a client that no broker has answered so far tries again within its back-off
    trusts    no request follows an answer that made no sense
    given up  a connection with a request in flight is closed for a reason
    endless   a login ends, even if the broker does not end it
    needless  with no fault in the whole run, no connection ends before its producer, and three to
              a broker are enough
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer._wire.kept_threads import NAME
from txnproducer.sim.stack.broker_watch import BrokerWatch
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.sockets import VirtualSocket
from txnproducer.sim.stack.token_watch import TokenWatch
from txnproducer.sim.stack.verdict_watch import VerdictWatch

__all__ = ["ClientWatch"]

# The factor of a back-off's jitter, and the time that threads may stand still in the meantime.
_JITTER: Final = 1.2
_MOMENT_MS: Final = 400
# Twenty doublings exceed every limit. More would only make the number longer.
_MANY: Final = 20
# A look-up cannot be ended. So long after the attempt's deadline the client goes on without it.
_GRACE_MS: Final = 50
# The bytes of a request are under way for a while before the network knows of it.
_ON_ITS_WAY_MS: Final = 500
# Kerberos takes four, more than any other mechanism.
_MOST_LOGIN_MESSAGES: Final = 16

# By the bootstrap address, by the broker's number, and to it as a coordinator.
_CONNECTIONS: Final = 3


@dataclass(slots=True)
class _ConnectAttempt:
    """One attempt to connect: a look-up, then one socket after another."""

    began_ms: int
    failed_ms: int | None = None
    is_looked_up: bool = False
    sockets: list[VirtualSocket] = field(default_factory=list)

    def end_ms(self, longest_ms: int, now_ms: int) -> int | None:
        """Return when it ended, or None while it is under way."""
        if self.failed_ms is not None:
            return self.failed_ms
        if not self.is_looked_up:
            hopeless_ms = self.began_ms + longest_ms
            return hopeless_ms if hopeless_ms <= now_ms else None
        closed = [sock.closed_ms for sock in self.sockets]
        # While one socket is open, the attempt is under way or has succeeded.
        known = [each for each in closed if each is not None]
        return max(known) if known and len(known) == len(closed) else None


class ClientWatch:
    """Judge the connections of one producer.

    Args:
        settings: the producer's.
        logins: follows the producer's logins.
        violate: takes the check and the text of a violation.
        is_steady: whether the loop never stands still for longer than a switch of threads, as it
            does in a callback that blocks, or while the clock jumps.
        keeps_connections: whether none has a reason to end before the producer.

    Attributes:
        logins: of the producer.
        brokers: judges to which it connects; None for no judge.
        verdicts: judges the verdicts on its connections; None for no judge.
        tokens: judges the producer's token provider.
        is_first_contact: whether the producer waits for its first answer in a call.
        is_ending: returns whether the producer ends its connections.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        logins: LoginWatch,
        violate: Callable[[str, str], None],
        *,
        is_steady: bool = True,
        keeps_connections: bool = False,
    ) -> None:
        self._settings = settings
        self.logins = logins
        self.brokers: BrokerWatch | None = None
        self.verdicts: VerdictWatch | None = None
        self.tokens = TokenWatch(violate)
        self._violate = violate
        self._is_steady = is_steady
        self._keeps_connections = keeps_connections
        self._connections: Counter[int] = Counter()
        self._attempts: list[_ConnectAttempt] = []
        self._open: dict[threading.Thread, _ConnectAttempt] = {}
        self.is_first_contact = False
        self.is_ending: Callable[[], bool] = lambda: False

    # --- attempts to connect --------------------------------------------------------------------

    def looks_up(self, host: str) -> None:
        """Note the name of a broker to which the producer begins to connect."""
        self.logins.looks_up(host)
        if self.brokers is not None:
            self.brokers.looks_up(host)
        if self.verdicts is not None:
            self.verdicts.looks_up(host)

    def look_up_begins(self, thread: threading.Thread, now_ms: int) -> None:
        """Note an attempt to connect."""
        if thread.name != NAME:
            return  # a question why the peer has closed a connection is no attempt
        # Before this attempt is noted, since it ends the pause.
        self.judge_pause(now_ms)
        # A kept thread makes one attempt after another: its newest one gets the sockets.
        attempt = self._open[thread] = _ConnectAttempt(now_ms)
        self._attempts.append(attempt)

    def look_up_ends(self, thread: threading.Thread, now_ms: int, *, is_found: bool) -> None:
        """Note the result of a look-up."""
        # None for a question why a peer has closed a connection, which was not noted.
        attempt = self._open.get(thread)
        if attempt is not None:
            attempt.is_looked_up = is_found
            attempt.failed_ms = None if is_found else now_ms

    def opens(self, thread: threading.Thread, sock: VirtualSocket) -> None:
        """Note the socket of an attempt."""
        attempt = self._open.get(thread)
        if attempt is not None:
            attempt.sockets.append(sock)

    def asks(self) -> None:
        """Note that a broker reads bytes of the producer."""
        self.logins.asks()

    def answered(self, node_id: int, key: int) -> None:
        """Note the answer to a request that is no part of a handshake."""
        self.is_first_contact = False
        self.logins.answered(node_id, key)

    def login_refused(self, node_id: int) -> None:
        """Note that a broker refuses a login."""
        self.logins.refused(node_id)

    def judge_pause(self, now_ms: int) -> None:
        """Judge the time in which no attempt was under way, until now."""
        if not (self.is_first_contact and self._is_steady and self._attempts):
            return
        count = len(self._attempts)
        longest_ms = self._longest_ms("socket_connection_setup_timeout", count) + _GRACE_MS
        ends = [each.end_ms(longest_ms, now_ms) for each in self._attempts]
        # While an attempt is under way, there is no pause.
        if None in ends:
            return
        # Nor does the client try again while a call of its token provider hangs. It counts the
        # attempts that it does not make meanwhile.
        held_until_ms = self.tokens.held_until_ms(now_ms)
        ends.append(held_until_ms)
        count = _MANY if held_until_ms else count
        pause_ms = now_ms - max(each for each in ends if each is not None)
        # Two counters may double: the connection's, and that of the core's request.
        most_ms = max(
            self._longest_ms("reconnect_backoff", count), self._longest_ms("retry_backoff", count)
        )
        if pause_ms > most_ms + _MOMENT_MS:
            self._violate(
                "retries",
                f"no attempt to connect for {pause_ms} ms after {count}: {most_ms} allowed",
            )

    def _longest_ms(self, setting: str, times: int) -> int:
        first_ms: int = self._settings[f"{setting}_ms"]
        most_ms: int = self._settings[f"{setting}_max_ms"]
        return round(_JITTER * min(first_ms << min(times, _MANY), most_ms))

    # --- connections ----------------------------------------------------------------------------

    def logs_in(self, node_id: int, messages: int) -> None:
        """Judge the number of messages of the last login on a connection."""
        if messages > _MOST_LOGIN_MESSAGES:
            self._violate("endless", f"a login at broker {node_id} has {messages} messages")

    def sends_after_nonsense(self, node_id: int) -> None:
        """Judge bytes that follow an answer without sense, which the client has read."""
        self._violate("trusts", f"broker {node_id} gets a request after an answer without sense")

    def closes(self, node_id: int, waited_ms: int | None) -> None:
        """Judge the end of a connection that works.

        Args:
            node_id: the broker's.
            waited_ms: how long the oldest request in flight has waited; None if there is none.
        """
        if self._keeps_connections and not self.is_ending():
            self._violate("needless", f"the producer closes its connection to broker {node_id}")
        # A loop that stood still between the core's step and the write finds its time over.
        if waited_ms is None or not self._is_steady or self.is_ending():
            return
        least_ms = self._settings["request_timeout_ms"] - _ON_ITS_WAY_MS
        if waited_ms < least_ms:
            self._violate(
                "given up",
                f"the connection to broker {node_id} is closed after {waited_ms} ms with a request"
                f" in flight, which has {self._settings['request_timeout_ms']} ms",
            )

    def is_connected(self, node_id: int) -> None:
        """Judge a new connection."""
        # One for the outcome of a commit belongs to another client, after the producer's end.
        if not self._keeps_connections or self.is_ending():
            return
        self._connections[node_id] += 1
        if self._connections[node_id] > _CONNECTIONS:
            self._violate("needless", f"{_CONNECTIONS} connections to broker {node_id} would do")

    def is_ended(self, node_id: int) -> None:
        """Judge the end of a connection by the broker, as after a login that is too old."""
        if self._keeps_connections and not self.is_ending():
            self._violate("needless", f"broker {node_id} ends a connection of the producer")
