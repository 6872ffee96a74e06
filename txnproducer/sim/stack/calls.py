"""The calls of a service: each timed and judged, some interrupted.

Owns: interrupts, as signal handlers raise them, and how often a call is repeated. Must not know:
transactions.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.world import StackWorld

__all__ = ["FORCED_MS", "InterruptError", "ServiceCalls"]

# The time that a forced close may take beyond its limit.
FORCED_MS: Final = 5_000
# The times that a call is made while there are faults. Later it is made until it ends.
_PATIENCE: Final = 6
_MOST_INNER_CALLS: Final = 300
_AT_A_WAIT: Final = "interrupt at a wait"
_AT_A_CALL: Final = "interrupt at a call"
_PACKAGE: Final = "/txnproducer/"
_SIMULATOR: Final = "/txnproducer/sim/"


class InterruptError(BaseException):
    """The exception that a signal handler raises."""


class ServiceCalls:
    """Time and judge a service's calls, and interrupt some of them.

    Args:
        world: of the service.
        judge: of the calls.
        name: the service's.
        rng: draws the faults.

    Attributes:
        rng: likewise.
        producer: may be closed on another thread while a call is under way; None for none.
        was_interrupted: whether the last call that was repeated had been interrupted.
    """

    def __init__(
        self, world: StackWorld, judge: StackJudge, name: str, rng: random.Random
    ) -> None:
        self._world = world
        self._judge = judge
        self._name = name
        self.rng = rng
        self.producer: TransactionalProducer | None = None
        self.was_interrupted = False

    def strikes(self, fault: str) -> bool:
        """Return whether a fault happens here."""
        rates = self._world.options.call_rates
        if self._world.is_healed or fault not in rates or self.rng.random() >= rates[fault]:
            return False
        # Whether an interrupt finds a call to raise in shows later.
        if fault not in (_AT_A_WAIT, _AT_A_CALL):
            self._world.counts[fault] += 1
        return True

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._world.baton.wait(lambda: False, seconds)

    def call(
        self, name: str, limit_ms: float, call: Callable[[], Any]
    ) -> tuple[Any, BaseException | None]:
        """Make a call, perhaps interrupted. Return its result and its error.

        Args:
            name: its name.
            limit_ms: how long it may take.
            call: the call.
        """
        self._world.trace(f"{self._name}: {name}")
        if name != "send":  # of which there are too many
            self._close_on_another_thread()
        begin = self._judge.begun()
        result, error = None, None
        try:
            result = self._interrupted(call)
        # Not the end of the process or of the run, which have to end the thread. Any other error
        # than one of Kafka's is a finding of the judge.
        except (InterruptError, Exception) as raised:  # noqa: BLE001
            error = raised
        self._judge.returned(self._name, name, begin, limit_ms, error)
        return result, error

    def repeat(self, name: str, call: Callable[[], Any]) -> BaseException | None:
        """Make a call, and again while the next step is to resume. Return its error."""
        calls = 0
        self.was_interrupted = False
        while True:
            calls += 1
            _, error = self.call(name, self._world.max_block_ms, call)
            # An interrupt ends only the wait: the same call, made again, waits for the same end.
            if isinstance(error, InterruptError):
                self.was_interrupted = True
                continue
            if not (isinstance(error, KafkaError) and error.recovery == "resume"):
                return error
            if not self._world.is_healed and calls >= _PATIENCE:
                return error

    def _close_on_another_thread(self) -> None:
        """Close the producer, perhaps, beside the call that follows or one after it."""
        producer = self.producer
        if producer is None or not self.strikes("close on another thread"):
            return
        world, judge, rng = self._world, self._judge, self.rng
        timeout = rng.choice((None, 0.0))
        delay_s = rng.choice((0.0, 0.0, 10 ** rng.uniform(-4, 0.5)))

        def close() -> None:
            self.sleep(delay_s)
            begin = judge.begun()
            # Not guarded: it raises nothing, and the judge finds an exception that ends a thread.
            producer.close(timeout)
            limit_ms = world.delivery_ms if timeout is None else 0
            judge.returned(self._name, "close", begin, limit_ms + FORCED_MS, None)

        world.platform.thread(close, f"{self._name}-closer").start()

    def _interrupted(self, call: Callable[[], Any]) -> Any:
        if self.strikes(_AT_A_WAIT):
            # Each order of magnitude as often, since most calls are short.
            return self._interrupted_later(call, 10 ** self.rng.uniform(-1, 3.5))
        if self.strikes(_AT_A_CALL):
            # A short call has few.
            number = int(_MOST_INNER_CALLS ** self.rng.random()) - 1
            return self._interrupted_inside(call, number)
        return call()

    def _interrupted_later(self, call: Callable[[], Any], delay_ms: float) -> Any:
        """Make a call, and raise in it where it waits after a time."""
        baton = self._world.baton
        thread = baton.current
        is_under_way = [True]

        def interrupt() -> None:
            # Between two calls nothing would handle it.
            if is_under_way and baton.interrupt(thread, InterruptError()):
                self._world.counts[_AT_A_WAIT] += 1

        baton.call_after(delay_ms, interrupt)
        try:
            return call()
        finally:
            is_under_way.clear()

    def _interrupted_inside(self, call: Callable[[], Any], number: int) -> Any:
        """Make a call, and raise where it enters the n-th function of the shell or the core.

        CPython looks for signals where a function begins. The functions of the virtual platform
        stand for calls of the system, which no signal interrupts there.
        """
        left, baton, counts = [number], self._world.baton, self._world.counts

        def trace(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call" or baton.is_passing or code.co_flags & inspect.CO_GENERATOR:
                return
            if _PACKAGE in code.co_filename and _SIMULATOR not in code.co_filename:
                left[0] -= 1
                if left[0] < 0:
                    # Before the raise, since a signal comes once.
                    sys.settrace(before)
                    counts[_AT_A_CALL] += 1
                    raise InterruptError

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(before)
