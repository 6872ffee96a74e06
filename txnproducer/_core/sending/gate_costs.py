"""Decides whether to ask for the markers of the last transaction, by the costs of both ways.

Why it exists: a question costs each transaction a round trip. Without it, each transaction that
comes too early costs 20 ms in the broker. Which is more depends on the coordinator and on the
machine: 3 % came too early on one machine, and none of 2,000 on another.

Owns: the costs, and the choice. Must not know: requests, transactions.

Rules:
* The cost of a transaction is the time from the moment in which its first request waited until
  that was answered. The core's clock has milliseconds, which is enough for an average: the phases
  of the clock even out.
* It asks at first. After some transactions it tries to go without, and goes back to asking as soon
  as the last of these have cost more than asking would have. Each failed trial doubles the time to
  the next one, so that trials cost next to nothing where they always fail.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Transactions that ask before a trial, at the least and at the most.
FIRST_PAUSE: Final = 64
LONGEST_PAUSE: Final = 8_192
# Costs that count, in transactions.
WINDOW: Final = 200
# Transactions in a row that do not ask. Then some ask again, to know what that costs now.
LONGEST_RUN: Final = 2_000
# What a run may cost more than asking. A request that is put to sleep takes 20 ms.
ALLOWED_LOSS_MS: Final = 15


class GateCosts:
    """The costs of both ways, and the choice."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._asked: _Window = _Window()
        self._went: _Window = _Window()
        self._is_going = False

    @property
    def must_ask(self) -> bool:
        """Whether the next transaction should ask."""
        return not self._is_going

    def asked(self, cost_ms: int) -> None:
        """Note the cost of a transaction that asked."""
        self._asked.add(cost_ms)
        if self._asked.count >= self._pause:
            self._went = _Window()
            self._is_going = True

    def went(self, cost_ms: int) -> None:
        """Note the cost of a transaction that did not ask."""
        went = self._went
        went.add(cost_ms)
        if went.loss_ms(self._asked) > ALLOWED_LOSS_MS:
            self._ask_again(min(2 * self._pause, LONGEST_PAUSE))
        elif went.count >= LONGEST_RUN:
            self._ask_again(FIRST_PAUSE)

    def _ask_again(self, pause: int) -> None:
        self._pause = pause
        # The costs of before may be out of date.
        self._asked = _Window()
        self._is_going = False


class _Window:
    """The sum of the last costs.

    Attributes:
        count: of all costs.
    """

    def __init__(self) -> None:
        self.count = 0
        self._costs: deque[int] = deque(maxlen=WINDOW)
        self._sum_ms = 0

    def add(self, cost_ms: int) -> None:
        self.count += 1
        if len(self._costs) == WINDOW:
            self._sum_ms -= self._costs[0]
        self._costs.append(cost_ms)
        self._sum_ms += cost_ms

    def loss_ms(self, other: _Window) -> float:
        """Return the sum of these costs above as many of the other's average."""
        average_ms = other._sum_ms / len(other._costs)
        return self._sum_ms - len(self._costs) * average_ms
