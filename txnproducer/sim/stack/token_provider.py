"""The token provider of a service: a user's code, which takes time, fails, or hangs.

Owns: what a call of the provider does. Must not know: which connection logs in, the brokers.
"""

from __future__ import annotations

import random
from typing import Final

from txnproducer._wire.kafka_python import AbstractTokenProvider
from txnproducer.sim.stack.token_options import FAILS, HANGS, REFUSED, TokenOptions
from txnproducer.sim.stack.token_watch import TokenWatch
from txnproducer.sim.stack.world import StackWorld

__all__ = ["ServiceTokens"]

# Each order of magnitude as often: some calls return after the client has given their login up.
_HANGS_S: Final = (-1.0, 1.8)


class ServiceTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Give one producer its tokens.

    Args:
        world: where it runs.
        options: of the tokens.
        watch: judges the calls.
        rng: draws the time and the faults of each call.
    """

    def __init__(
        self,
        world: StackWorld,
        options: TokenOptions,
        watch: TokenWatch,
        rng: random.Random,
    ) -> None:
        super().__init__()
        self._world = world
        self._options = options
        self._watch = watch
        self._rng = rng

    def token(self) -> str | None:
        """Return a token, None for none."""
        baton, rng = self._world.baton, self._rng
        thread = baton.current
        self._watch.call_begins(thread, baton.now_ms)
        try:
            self._take_time()
        finally:
            # Also at the end of the process.
            self._watch.call_ends(thread, baton.now_ms)
        if self._strikes(FAILS):
            if rng.random() < 0.5:
                return None
            raise OSError("the identity provider is away")
        if self._strikes(REFUSED):
            return rng.choice(("of another provider", self._world.tokens.issue(0)))
        return self._world.tokens.issue(self._options.lifetime_ms)

    def _take_time(self) -> None:
        world, rng = self._world, self._rng
        if self._strikes(HANGS):
            # Until the end of the faults at most: a call that goes on is a fault under way.
            world.baton.wait(lambda: world.is_healed, 10 ** rng.uniform(*_HANGS_S))
        world.baton.wait(lambda: False, rng.uniform(0, self._options.provider_ms) / 1_000)

    def _strikes(self, fault: str) -> bool:
        rates = self._options.rates
        if self._world.is_healed or fault not in rates or self._rng.random() >= rates[fault]:
            return False
        # The brokers count the tokens that they refuse.
        if fault != REFUSED:
            self._world.counts[fault] += 1
        return True
