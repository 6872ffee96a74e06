"""The source of randomness of the core, the wire and the broker model.

Owns: the protocol. Must not know: what is drawn. The shell passes a `random.Random`; the simulator
and the tests pass one with a seed.
"""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """A source of random numbers, such as a `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return an integer from 0 to below `stop`."""
        ...
