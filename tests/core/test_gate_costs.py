"""Whether to ask for markers is decided by the costs of asking and of not asking."""

from __future__ import annotations

import random

import pytest

from txnproducer._core.sending.gate_costs import (
    ALLOWED_LOSS_MS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_RUN,
    WINDOW,
    GateCosts,
)

SLEPT_MS = 21


def play(costs, transactions, asking_ms, going_ms):
    """Play transactions. Return how many asked, and the cost of all."""
    asked = total_ms = 0
    for _ in range(transactions):
        if costs.must_ask:
            asked += 1
            cost_ms = asking_ms()
            costs.asked(cost_ms)
        else:
            cost_ms = going_ms()
            costs.went(cost_ms)
        total_ms += cost_ms
    return asked, total_ms


def ask(costs, transactions, cost_ms=1):
    for _ in range(transactions):
        assert costs.must_ask
        costs.asked(cost_ms)


def test_it_asks_until_it_knows_the_cost_and_then_tries_without():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE)
    assert not costs.must_ask


def test_each_failed_trial_doubles_the_time_to_the_next():
    costs, pause = GateCosts(), FIRST_PAUSE
    for _ in range(12):
        ask(costs, pause)
        costs.went(1)
        assert not costs.must_ask
        costs.went(SLEPT_MS)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE


def test_a_loss_that_is_allowed_ends_no_run():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE)
    costs.went(1 + ALLOWED_LOSS_MS)
    assert not costs.must_ask
    costs.went(2)
    assert costs.must_ask


def test_only_the_last_costs_count():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, 3)
    for _ in range(WINDOW):
        costs.went(2)  # each saves a millisecond
    for _ in range(WINDOW):
        costs.went(3)  # these save nothing
    costs.went(3 + ALLOWED_LOSS_MS)
    assert not costs.must_ask
    costs.went(4)
    assert costs.must_ask


def test_a_long_run_ends_so_that_the_cost_of_asking_is_known_again():
    costs = GateCosts()
    for _ in range(2):
        ask(costs, FIRST_PAUSE, 5)
        for _ in range(LONGEST_RUN):
            assert not costs.must_ask
            costs.went(1)
    ask(costs, FIRST_PAUSE, 1)
    costs.went(2 + ALLOWED_LOSS_MS)  # the former cost of asking would have allowed it
    assert costs.must_ask


def milliseconds(mean_ms, rng):
    """Return whole milliseconds that have this mean, as those of a clock have."""
    return int(mean_ms + rng.random())


@pytest.mark.parametrize(
    ("slept", "most_asked", "most_lost"),
    [
        (0.0, 0.10, 0.03),  # markers are in time: hardly any asks
        (0.002, 0.30, 0.03),
        (0.03, 1.0, 0.03),  # 3 % would cost three times as much as asking
        (1.0, 1.0, 0.03),  # three brokers
    ],
)
def test_it_costs_hardly_more_than_the_better_way(slept, most_asked, most_lost):
    rng = random.Random(1)

    def going_ms():
        return milliseconds(1.0, rng) + (20 if rng.random() < slept else 0)

    count = 50_000
    asked, total_ms = play(GateCosts(), count, lambda: milliseconds(1.2, rng), going_ms)
    better_ms = min(1.2, 1.0 + 20 * slept)
    assert asked <= most_asked * count
    assert total_ms <= (1 + most_lost) * better_ms * count
