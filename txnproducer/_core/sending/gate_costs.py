"""Decides whether to ask for the markers of the last transaction, by the costs of both ways.

Why it exists: a question holds each transaction for a round trip. Without it, each transaction
that comes too early is put to sleep in the broker. Which costs more depends on the coordinator and
on the machine: 3 % came too early on one machine, and none of 2,000 on another.

Owns: the costs, and the choice. Must not know: requests, transactions.

Rules:
* Time counts in milliseconds, as the core's clock has it. That is enough for the average of many
  questions: the phases of the clock even out.
* It asks at first. After some transactions it tries without, and goes back to asking when the
  transactions that slept have cost more than the questions would have, or are more than one in a
  hundred: the 99th percentile should not be a sleep.
* Each failed trial doubles the time to the next one, so that trials cost next to nothing where
  they always fail.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Transactions that ask before a trial, at first and at the most. A trial that fails puts one to
# sleep. With trials after 64 these were one in a hundred at first, and so the p99 was a sleep.
FIRST_PAUSE: Final = 256
LONGEST_PAUSE: Final = 8_192
# Transactions without a question whose sleep counts for the cost.
WINDOW: Final = 200
# Of so many may so many sleep, however much a question costs. In fewer, chance would decide.
LONG_WINDOW: Final = 1_000
MOST_SLEPT: Final = LONG_WINDOW // 100
# Transactions in a row without a question. Then a few ask again, to know the cost of that.
LONGEST_RUN: Final = 2_000
SHORT_PAUSE: Final = 64
# The broker's pause before it looks again (add.partitions.to.txn.retry.backoff.ms).
SLEEP_MS: Final = 20
# The loss that ends a run. Below one sleep, or the first of a trial would not end it.
ALLOWED_LOSS_MS: Final = 15


class GateCosts:
    """The costs of both ways, and the choice."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._questions = 0
        self._held_ms = 0
        self._run = 0
        # The places in the run of those that slept, within the long window.
        self._sleeps: deque[int] = deque()

    @property
    def must_ask(self) -> bool:
        """Whether the next transaction should ask."""
        return self._questions < self._pause

    def note_question(self, held_ms: int) -> None:
        """Note the time for which a question has held a transaction."""
        self._questions += 1
        self._held_ms += held_ms

    def note_without_question(self, *, has_slept: bool) -> None:
        """Note whether a transaction that did not ask was put to sleep."""
        self._run += 1
        sleeps, run = self._sleeps, self._run
        if has_slept:
            sleeps.append(run)
        if sleeps and sleeps[0] <= run - LONG_WINDOW:
            sleeps.popleft()
        question_ms = self._held_ms / self._questions
        slept = sum(place > run - WINDOW for place in sleeps)
        loss_ms = slept * SLEEP_MS - min(run, WINDOW) * question_ms
        # Where a question takes as long, it is the network that makes a transaction late.
        is_often = len(sleeps) > MOST_SLEPT and question_ms < SLEEP_MS / 2
        if is_often or loss_ms > ALLOWED_LOSS_MS:
            self._ask_again(min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE))
        elif self._run >= LONGEST_RUN:
            self._ask_again(SHORT_PAUSE)

    def _ask_again(self, pause: int) -> None:
        self._pause = pause
        # From the beginning: the coordinator may be a quicker one now.
        self._questions = self._held_ms = self._run = 0
        self._sleeps.clear()
