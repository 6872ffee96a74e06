"""The end of one producer, which has to be in good order until a call's time is up.

Why it exists: an end by force loses nothing that a service was promised, and it takes less time
than one in good order. So neither the logs nor the length of a call show one that comes too early.
Owns: when a producer may end by force first. Must not know: why its service closes or drops it.

    forced    a producer that is closed or dropped ends in good order. By force it ends when the
              time of a close is over, at once in a delivery callback, and half a minute after it
              was dropped
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.world import StackWorld

__all__ = ["EndWatch", "WatchedProducer"]

_DROPPED_S: Final = 30.0


class EndWatch:
    """Judge when a producer ends by force.

    Args:
        world: of its service.

    Attributes:
        is_finalizing: whether a finalizer calls it, on whichever thread.
    """

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self._from_ms = math.inf
        self.is_finalizing = False

    def may_force_in(self, seconds: float) -> None:
        """Note that the producer may end by force after a time, at the earliest."""
        self._from_ms = min(self._from_ms, self._world.baton.now_ms + seconds * 1000)

    def is_dropped(self) -> None:
        """Note that nobody refers to the producer any more."""
        self.may_force_in(_DROPPED_S)

    def forces(self, name: str) -> None:
        """Judge an end by force."""
        now_ms = self._world.baton.now_ms
        if now_ms < self._from_ms:
            allowed = "never" if self._from_ms == math.inf else f"from {self._from_ms:.0f} ms on"
            self._world.history.violate(
                "forced", f"{name} ends by force at {now_ms} ms, which may happen {allowed}"
            )


class WatchedProducer(TransactionalProducer):
    """A producer that tells of its closes, and of its end by force.

    Attributes:
        end: judges it.
    """

    end: EndWatch

    def watch_force(self) -> None:
        """Tell the judge of each end by force from now on."""
        core: Any = self._core
        force: Callable[[int], None] = core.force_close

        def force_close(now_ms: int) -> None:
            # One that has ended has nothing left that could fail.
            if not core.is_closed:
                self.end.forces(self._config.transactional_id or "")
            force(now_ms)

        core.force_close = force_close

    def close(self, timeout: float | None = None) -> None:
        """Close, and note when the end may be by force."""
        if self._io.is_current:
            self._note_close_on_the_loop()
        else:
            self.end.may_force_in(self._delivery_s if timeout is None else timeout)
        super().close(timeout)

    def _note_close_on_the_loop(self) -> None:
        if self.end.is_finalizing:
            self.end.is_dropped()
        elif self._refusal is None:  # of two closes in callbacks the second does nothing
            self.end.may_force_in(0)
