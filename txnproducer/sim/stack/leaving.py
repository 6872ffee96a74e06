"""A broker that leaves the cluster for good: it takes no part any more, and no answer names it.

Owns: which broker leaves, and whether it has left. Must not know: when.
"""

from __future__ import annotations

from txnproducer.sim.stack.world import StackWorld

__all__ = ["LeavingBroker"]


class LeavingBroker:
    """The broker of a run that leaves, if one does.

    Args:
        world: of the run.
    """

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self._has_left = False

    def leave(self) -> bool:
        """Let it leave. Return whether it does so now."""
        world, node_id = self._world, self._world.options.leaver
        if node_id is None or self._has_left:
            return False
        self._has_left = True
        # The others take over what it had, unless it was down, when they have done so before.
        world.cluster.stop_node(node_id, world.baton.now_ms)
        world.network.cut(node_id)
        return True

    def has_left(self, node_id: int) -> bool:
        """Return whether a broker has left: it gets nothing to do and never comes back."""
        return self._has_left and node_id == self._world.options.leaver
