"""A call as steps: a generator that yields each wait, for a thread or a task to perform.

Why it exists: one call for many records waits in several places, deep in its loops. A thread
blocks there, and a task of an event loop must not. Both drive the same generator.
Owns: the driving. Must not know: the waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

__all__ = ["Steps", "run_steps", "run_steps_in_loop"]

_Wait = TypeVar("_Wait")
_Result = TypeVar("_Result")

# Yields waits, and gets their outcomes.
Steps: TypeAlias = Generator[_Wait, Any, _Result]


def run_steps(steps: Steps[_Wait, _Result], perform: Callable[[_Wait], Any]) -> _Result:
    """Take all steps on the calling thread.

    Args:
        steps: the call; the errors of its waits are raised where it yielded them.
        perform: performs a wait, and returns its outcome.
    """
    try:
        wait = next(steps)
        while True:
            try:
                outcome = perform(wait)
            except BaseException as error:  # noqa: BLE001 - the steps see it, and raise it again
                wait = steps.throw(error)
            else:
                wait = steps.send(outcome)
    except StopIteration as stop:
        result: _Result = stop.value
        return result


async def run_steps_in_loop(
    steps: Steps[_Wait, _Result], perform: Callable[[_Wait], Awaitable[Any]]
) -> _Result:
    """Take all steps in a task of an event loop, as `run_steps` does."""
    try:
        wait = next(steps)
        while True:
            try:
                outcome = await perform(wait)
            except BaseException as error:  # noqa: BLE001 - as above; also a cancelled task's
                wait = steps.throw(error)
            else:
                wait = steps.send(outcome)
    except StopIteration as stop:
        result: _Result = stop.value
        return result
