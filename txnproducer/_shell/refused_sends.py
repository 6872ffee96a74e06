"""Sends that were refused in delivery callbacks, until the callbacks have ended.

Why it exists: what leaves a delivery callback is only logged. A record whose refusal leaves one is
lost without notice, and its transaction must not be committed. A refusal that the callback has
caught is for the callback to handle, as on any other thread.
Owns: the refusals of the callbacks that run now. Must not know: a core, a lock. It is used on the
I/O thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnproducer._shell import refusals
from txnproducer.errors import KafkaError

__all__ = ["RefusedSends"]


class RefusedSends:
    """Refusals by topic."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, BaseException]] = []

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, topic: str, error: BaseException) -> None:
        """Remember what `send` is about to raise in a callback."""
        self._noted.append((topic, error))

    def take_lost(self, raised: Sequence[BaseException]) -> KafkaError | None:
        """Forget all refusals; return why the transaction is incomplete, or None if it is not.

        Args:
            raised: what has left the callbacks.
        """
        noted, self._noted = self._noted, []
        left = _with_causes(raised)
        for topic, error in noted:
            if id(error) in left:
                return refusals.lost_in_callback(topic, error)
        return None


def _with_causes(errors: Sequence[BaseException]) -> set[int]:
    """Return the ids of errors, of their causes and contexts, and of the members of groups."""
    found: set[int] = set()
    rest: list[BaseException | None] = [*errors]
    while rest:
        error = rest.pop()
        if error is None or id(error) in found:
            continue
        found.add(id(error))
        rest += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            rest += error.exceptions
    return found
