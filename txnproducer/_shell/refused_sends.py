"""Sends that were refused in delivery callbacks, until the callbacks have ended.

Why it exists: an exception that leaves a delivery callback is only logged. If it is the refusal of
a record, the record is lost without notice, and its transaction must not be committed. If the
callback catches the refusal, it handles the loss itself, as code on any other thread does.
Owns: the refusals of the callbacks that run now. Must not know: a core, a lock. Only the I/O
thread uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnproducer._shell import refusals
from txnproducer.errors import KafkaError

__all__ = ["RefusedSends"]


class RefusedSends:
    """Refusals in the callbacks that run now, with their topics."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, BaseException]] = []

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, topic: str, error: BaseException) -> None:
        """Remember an error that `send` is about to raise in a callback."""
        self._noted.append((topic, error))

    def take_lost(self, raised: Sequence[BaseException]) -> KafkaError | None:
        """Forget all refusals. Return the error of the incomplete transaction, or None.

        Args:
            raised: the exceptions that have left the callbacks.
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
