"""The event that lets listeners ask for a login of clients that have none.

Owns: which brokers' listeners ask, from when and for how long. Must not know: the effect on a
connection (`network`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from txnproducer.sim.stack.faults import Ending
from txnproducer.sim.stack.listeners import ASKS, Listeners
from txnproducer.sim.stack.world import StackWorld

__all__ = ["ForeignListeners"]

_ALL: Final = 0.3
_LONGEST_MS: Final = 8_000.0
# A question has a second.
_LONGEST_LATE_MS: Final = 900.0


class ForeignListeners:
    """Let listeners ask for a login, and end it.

    Args:
        world: of the run.
        rng: draws the brokers and the times.
        count: called for each connection that one closes.
    """

    def __init__(
        self, world: StackWorld, rng: random.Random, count: Callable[[str], None]
    ) -> None:
        self._world = world
        self._rng = rng
        self._listeners = world.network.listeners = Listeners(count)

    def start(self) -> None:
        """Begin at once, perhaps: a client that was served before knows that none asks."""
        if ASKS in self._world.options.event_s and self._rng.random() < 0.5:
            self.begin()

    def begin(self) -> bool:
        """Let listeners ask from now on. Return False: whether a client notices shows later."""
        world, rng = self._world, self._rng
        if world.options.users:
            return False
        nodes = tuple(world.cluster.nodes)
        if rng.random() >= _ALL:
            nodes = (rng.choice(nodes),)
        self._listeners.late_ms = rng.uniform(0.0, _LONGEST_LATE_MS)
        self._listeners.begin(nodes)
        self._restart(nodes)
        world.baton.call_after(rng.uniform(100.0, _LONGEST_MS), partial(self._end, nodes))
        return False

    def _end(self, nodes: tuple[int, ...]) -> None:
        self._restart(self._listeners.end(nodes, self._world.baton.now_ms))

    def heal(self) -> None:
        """Let all listeners take requests without a login."""
        while asking := self._listeners.asking:
            self._end(tuple(asking))

    def _restart(self, nodes: Iterable[int]) -> None:
        # A listener gets another protocol with a restart of its broker.
        for node_id in nodes:
            self._world.network.cut(node_id, Ending.RESET)
