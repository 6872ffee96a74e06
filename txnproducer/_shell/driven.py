"""The core and the client, as the loop of the I/O thread needs them.

Why it exists: the loop can be read, and tested, without either of them.
Owns: the calls that the loop makes, and which of them need the lock. Must not know: the
classes that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from txnproducer._protocol.events import ClientEvent
from txnproducer.errors import KafkaError

__all__ = ["DrivenCore", "DueCallbacks", "FullBatch", "PolledClient"]


class DrivenCore(Protocol):
    """The core, as the loop needs it."""

    needs_wakeup: bool

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to do and every waiting call has been answered."""
        ...

    def run_once(self, now_ms: int) -> int:
        """Take one step. Return the milliseconds until the next one is due."""
        ...

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Process an answer, or news of a connection."""
        ...

    @property
    def has_full_batches(self) -> bool:
        """Whether there are batches to compress."""
        ...

    def take_full_batches(self) -> Sequence[FullBatch]:
        """Return the full batches, which are then compressed without the lock."""
        ...

    def lend_full_batch(self, now_ms: int) -> FullBatch | None:
        """Return a full batch, for another thread than the loop's to compress."""
        ...

    @property
    def awaits_codec(self) -> bool:
        """Whether a step is due once a batch was compressed."""
        ...

    def take_callbacks(self) -> Sequence[DueCallbacks]:
        """Return the batches of callbacks that are due, and forget them.

        The returned list is no longer the core's: a batch that another thread adds after the lock
        is released would be run twice.
        """
        ...

    def lose_record(self, error: KafkaError) -> None:
        """Note that a record of the open transaction is lost."""
        ...

    def initiate_close(self, now_ms: int) -> None:
        """Begin to end in good order."""
        ...

    def force_close(self, now_ms: int) -> None:
        """Fail everything that is left, at once."""
        ...


class DueCallbacks(Protocol):
    """Users' functions that are due together.

    Attributes:
        raised: the exceptions of those that have run.
    """

    raised: tuple[BaseException, ...]

    def run(self) -> None:
        """Call each of them."""
        ...

    def on_finished(self) -> None:
        """Release the callers that waited for them."""
        ...


class FullBatch(Protocol):
    """The records of a full batch, as the loop needs them."""

    def compress(self) -> None:
        """Compress the records, before the step that sends them."""
        ...


class PolledClient(Protocol):
    """The client, as the loop needs it."""

    def poll(self, timeout_ms: int, now_ms: int) -> Sequence[ClientEvent]:
        """Move bytes until something happens or the time is up. Return the events."""
        ...

    def wakeup(self) -> None:
        """End a `poll` that is under way, from another thread."""
        ...

    def hurry(self) -> None:
        """Give up attempts to connect that take more than a second, from now on."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
