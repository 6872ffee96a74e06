"""The options of runs with logins by token.

Owns: `TokenOptions`, the kinds of faults that only logins by tokens meet. Must not know: the other
options of a run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["ENDLESS", "FAILS", "HANGS", "REFUSED", "TOKEN_EVENTS", "TOKEN_FAULTS", "TokenOptions"]

FAILS: Final = "token provider fails"
HANGS: Final = "token provider hangs"
REFUSED: Final = "refused token"
ENDLESS: Final = "login without an end"
# By name, the highest rate of a fault at a call of the token provider.
TOKEN_FAULTS: Final[Mapping[str, float]] = {FAILS: 0.5, HANGS: 0.5, REFUSED: 0.2}
# By name, the shortest and the longest mean time between two events, in seconds.
TOKEN_EVENTS: Final[Mapping[str, tuple[float, float]]] = {ENDLESS: (1, 15)}
_SHARE: Final = 0.5
_LONGEST_UNDISTURBED_MS: Final = 50


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """The options of the tokens of a run.

    Attributes:
        provider_ms: the longest time of a call of the token provider that meets no fault.
        lifetime_ms: of a token.
        rates: of the faults at calls of the provider.
        event_s: the mean time between two events, by name.
    """

    provider_ms: int
    lifetime_ms: int
    rates: Mapping[str, float]
    event_s: Mapping[str, float]

    @classmethod
    def draw(cls, rng: random.Random) -> TokenOptions:
        """Draw the options of a run that has faults."""
        return cls(
            rng.choice((1, 20, 200)),
            rng.choice((500, 3_000, 20_000)),
            {
                name: most * rng.random() ** 2
                for name, most in TOKEN_FAULTS.items()
                if rng.random() < _SHARE
            },
            {
                name: rng.uniform(*bounds)
                for name, bounds in TOKEN_EVENTS.items()
                if rng.random() < _SHARE
            },
        )

    def undisturbed(self) -> TokenOptions:
        """Return the options without a fault, and with a provider that is quick."""
        most_ms = min(self.provider_ms, _LONGEST_UNDISTURBED_MS)
        return replace(self, provider_ms=most_ms, rates={}, event_s={})
