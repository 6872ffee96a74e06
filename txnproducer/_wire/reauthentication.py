"""A repeated login on a living connection, on threads of its own.

Why it exists: a step of a login calls foreign code (a token provider, Kerberos) or computes
thousands of hashes (SCRAM). On the loop's thread it would stop every connection of the client.
Owns: the exchange, and the thread of the current step.
Must not know: sockets, the time of the next login.
Rules: one step at a time, each on a short-lived thread; any exception of a step ends the login.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from txnproducer.errors import DisconnectError, KafkaError

from .handshake import Exchange, ExchangeStep, SaslLogin, exchange_login
from .platform import Platform
from .sasl_mechanisms import shown


class Reauthentication:
    """One repeated login (KIP-368).

    Args:
        login: the connection's first login.
        correlation_ids: the connection's numbers; no request may take one meanwhile.
        on_done: called on a step's thread once there is something to `collect`.
        platform: has the threads.

    Attributes:
        step: the last step.
    """

    def __init__(
        self,
        login: SaslLogin,
        correlation_ids: Iterator[int],
        on_done: Callable[[], None],
        platform: Platform,
    ) -> None:
        self._exchange: Exchange[int] = exchange_login(login, correlation_ids)
        self._on_done = on_done
        self._platform = platform
        self._outcome: bytes | int | KafkaError | None = None
        self.is_in_step = False
        self.step: ExchangeStep | None = None

    def begin(self) -> bytes:
        """Return the first request, for which no foreign code is called."""
        return next(self._exchange)

    def answer(self, payload: memoryview, now_ms: int) -> None:
        """Begin the step that follows an answer.

        Raises:
            DisconnectError: the broker answers without a question, or no thread can be started.
        """
        if self.is_in_step:
            raise DisconnectError("the broker sent an answer that the client did not ask for")
        # Before the thread starts: a second answer must not begin a step beside it.
        self.is_in_step = True
        step = self.step = ExchangeStep(now_ms)
        thread = self._platform.thread(partial(self._run, payload, step), "txnproducer-login")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is about to end
            step.is_over = True
            raise DisconnectError(f"cannot start to log in again: {error}") from error

    def collect(self) -> bytes | int | None:
        """Return the next request, at the end the session's lifetime in ms, or None if not yet.

        Raises:
            KafkaError: the login failed.
        """
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return None
        # Only now: an answer that came before would be one that no request asked for.
        self.is_in_step = False
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def _run(self, payload: memoryview, step: ExchangeStep) -> None:
        try:
            self._outcome = self._exchange.send(payload)
        except StopIteration as end:
            self._outcome = end.value  # the session's lifetime: the exchange has ended
        except KafkaError as error:
            self._outcome = error
        except BaseException as error:  # noqa: BLE001 - the loop must learn of it
            told = DisconnectError(f"cannot log in again: {shown(error)}")
            told.__cause__ = error
            self._outcome = told
        # Last, and before the wake-up: the loop then finds the outcome.
        step.is_over = True
        self._on_done()
