"""Admin clients that are kept between questions to the same cluster.

Why it exists: a question takes 2 ms, and the connection for it 20. Each task of Spark's asks the
ledger one question, batch after batch.

Owns: the clients that are not in use. Must not know: the questions.

Rules:
* A client answers one question at a time. If no client is free, another one is made.
* A kept client that fails is closed, and the question is sent again on a new connection. Its
  brokers may be gone; a new client finds others.
* A client that has rested for two minutes is not used: its connection may be closed already.
* A forked process uses none of them: their sockets are its parent's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from txnproducer.admin import DEFAULT_TIMEOUT, again_while_passing, connect, our_errors
from txnproducer.errors import KafkaError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
# Brokers close idle connections after ten minutes (connections.max.idle.ms), and proxies may be
# quicker.
_MOST_REST_S: Final = 120.0
_MOST_KEPT: Final = 8


@dataclass(eq=False)
class _Kept:
    """A client, and the settings that it was made with. Its stack closes it."""

    servers: str
    security: Mapping[str, Any] = field(repr=False)
    client: Any
    stack: contextlib.ExitStack
    process: int
    rests_since_s: float = 0.0

    def suits(self, servers: str, security: Mapping[str, Any]) -> bool:
        # Two processes that write to one TLS connection would tear its stream.
        return (self.process, self.servers, self.security) == (os.getpid(), servers, security)


class KeptClients:
    """Kept connections to clusters, with the questions of `admin.ask`.

    Args:
        connect: makes a client.
        now_s: a clock, in seconds.
    """

    def __init__(
        self,
        connect: Callable[..., contextlib.AbstractContextManager[Any]] = connect,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._now_s = now_s
        self._lock = threading.Lock()
        self._resting: list[_Kept] = []
        # Never freed: the garbage collector would run their cleanup, which closes connections and
        # waits for a thread, and both are the parent's.
        self._of_others: list[_Kept] = []

    def ask(
        self,
        bootstrap_servers: str,
        question: Callable[[Any], T],
        timeout: float = DEFAULT_TIMEOUT,
        **security: Any,
    ) -> T:
        """Ask a cluster. See `admin.ask`.

        A kept connection that does not answer uses up its own time-out before another is made.
        """
        kept = self._take(bootstrap_servers, security)
        if kept is not None:
            try:
                return self._ask(kept, question)
            except KafkaError:
                # Not raised: questions change nothing, so the same one may be asked again.
                _LOG.debug("a kept connection to %s failed", bootstrap_servers, exc_info=True)

        def once() -> T:
            # A stack, because the client lives longer than this call, if its answer is good.
            stack = contextlib.ExitStack()
            client = stack.enter_context(self._connect(bootstrap_servers, timeout, **security))
            return self._ask(
                _Kept(bootstrap_servers, security, client, stack, os.getpid()), question
            )

        return again_while_passing(once, timeout)

    def close(self) -> None:
        """Close the clients that are not in use. The next question makes another one."""
        with self._lock:
            resting, self._resting = self._resting, []
        self._close(resting)

    def _ask(self, kept: _Kept, question: Callable[[Any], T]) -> T:
        try:
            with our_errors(kept.servers):
                answer = question(kept.client)
        # Ctrl-C as well: the connection may still owe the answer to this question.
        except BaseException:
            kept.stack.close()
            raise
        self._keep(kept)
        return answer

    def _take(self, servers: str, security: Mapping[str, Any]) -> _Kept | None:
        oldest_s = self._now_s() - _MOST_REST_S
        with self._lock:
            old = [kept for kept in self._resting if kept.rests_since_s < oldest_s]
            self._resting = [kept for kept in self._resting if kept not in old]
            found = next((one for one in self._resting if one.suits(servers, security)), None)
            if found is not None:
                self._resting.remove(found)
        # Outside the lock: a close waits for the network, and other threads would wait with it.
        self._close(old)
        return found

    def _keep(self, kept: _Kept) -> None:
        kept.rests_since_s = self._now_s()
        with self._lock:
            # The one used last goes first: it is least likely to have been closed by a broker or
            # proxy.
            self._resting.insert(0, kept)
            surplus, self._resting = self._resting[_MOST_KEPT:], self._resting[:_MOST_KEPT]
        self._close(surplus)

    def _close(self, clients: list[_Kept]) -> None:
        for kept in clients:
            if kept.process == os.getpid():
                kept.stack.close()
            else:
                self._of_others.append(kept)
