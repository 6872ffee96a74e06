"""Whether to ask for markers is decided by the costs of asking and of not asking."""

from __future__ import annotations

import random

import pytest

from txnproducer._core.sending.gate_costs import (
    ALLOWED_LOSS_MS,
    FIRST_PAUSE,
    LONG_WINDOW,
    LONGEST_PAUSE,
    LONGEST_RUN,
    MOST_SLEPT,
    SHORT_PAUSE,
    SLEEP_MS,
    WINDOW,
    GateCosts,
)


def ask(costs, transactions, held_ms=0):
    for _ in range(transactions):
        assert costs.must_ask
        costs.note_question(held_ms)


def go(costs, transactions, *, has_slept=False):
    for _ in range(transactions):
        assert not costs.must_ask
        costs.note_without_question(has_slept=has_slept)


def test_it_asks_until_it_knows_the_cost_and_then_tries_without():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE)
    assert not costs.must_ask


def test_each_failed_trial_doubles_the_time_to_the_next():
    costs, pause = GateCosts(), FIRST_PAUSE
    for _ in range(12):
        ask(costs, pause)
        go(costs, 1)
        go(costs, 1, has_slept=True)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE


def test_a_sleep_that_the_saved_questions_pay_for_ends_no_run():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, held_ms=1)
    go(costs, SLEEP_MS - ALLOWED_LOSS_MS - 1)
    go(costs, 1, has_slept=True)
    assert not costs.must_ask
    go(costs, 1, has_slept=True)
    assert costs.must_ask


def test_only_the_last_transactions_count():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE // 2, held_ms=1)
    ask(costs, FIRST_PAUSE // 2)
    affordable = (WINDOW // 2 + ALLOWED_LOSS_MS) // SLEEP_MS
    go(costs, 2 * WINDOW)
    go(costs, affordable, has_slept=True)
    assert not costs.must_ask
    go(costs, 1, has_slept=True)
    assert costs.must_ask


def test_no_more_than_one_in_a_hundred_sleeps_even_if_that_costs_less_than_to_ask():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, held_ms=SLEEP_MS // 2 - 1)
    go(costs, LONG_WINDOW - MOST_SLEPT)
    go(costs, MOST_SLEPT, has_slept=True)
    assert not costs.must_ask
    go(costs, 1, has_slept=True)
    assert costs.must_ask


def test_one_in_a_hundred_may_sleep():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, held_ms=SLEEP_MS // 2 - 1)
    for _ in range(LONGEST_RUN // 100 - 1):
        go(costs, 99)
        go(costs, 1, has_slept=True)
    assert not costs.must_ask


def test_where_the_network_takes_as_long_sleeps_do_not_count():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, held_ms=30)
    go(costs, LONGEST_RUN - 1, has_slept=True)
    assert not costs.must_ask


def test_sleeps_that_cost_more_than_the_questions_end_a_run_before():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE)
    go(costs, WINDOW)
    go(costs, 1, has_slept=True)
    assert costs.must_ask


def test_a_long_run_ends_so_that_the_cost_of_asking_is_known_again():
    costs = GateCosts()
    ask(costs, FIRST_PAUSE, held_ms=50)
    go(costs, LONGEST_RUN)
    ask(costs, SHORT_PAUSE, held_ms=50)
    go(costs, LONGEST_RUN)
    ask(costs, SHORT_PAUSE, held_ms=0)
    # The former cost of asking would have paid for it, and so would the long run.
    go(costs, 1, has_slept=True)
    ask(costs, FIRST_PAUSE)
    assert not costs.must_ask


def play(costs, transactions, sleeps):
    """Play transactions, with questions of 0.2 ms. Return how many asked, and the cost in ms."""
    rng = random.Random(1)
    asked, cost_ms = 0, 0.0
    for _ in range(transactions):
        if costs.must_ask:
            asked += 1
            cost_ms += 0.2
            # As a clock of milliseconds sees it.
            costs.note_question(int(0.2 + rng.random()))
        else:
            has_slept = sleeps(rng)
            cost_ms += SLEEP_MS * has_slept
            costs.note_without_question(has_slept=has_slept)
    return asked, cost_ms


@pytest.mark.parametrize(
    ("slept", "most_asked"),
    [
        (0.0, 0.10),  # markers are in time: hardly any asks
        (0.002, 0.30),
        (0.03, 1.0),  # 3 % would cost three times as much as asking
        (1.0, 1.0),  # three brokers
    ],
)
def test_it_costs_hardly_more_than_the_better_way(slept, most_asked):
    count = 50_000
    asked, cost_ms = play(GateCosts(), count, lambda rng: rng.random() < slept)
    assert asked <= most_asked * count
    # A transaction takes a millisecond at least: a twentieth of that is hardly more.
    assert cost_ms <= min(0.2, SLEEP_MS * slept) * count + 0.05 * count


def test_a_coordinator_that_becomes_slow_is_noticed_at_once():
    costs = GateCosts()
    play(costs, 1_000, lambda _: False)
    assert not costs.must_ask
    slow, cost_ms = play(costs, 2_000, lambda _: True)
    assert slow > 1_900
    assert cost_ms < 2_000 * 0.2 + 20 * SLEEP_MS
