"""Leaders and the coordinator killed with -9 under way: the short form of `make chaos`."""

from __future__ import annotations

from typing import cast

import pytest

from integration.chaos.faults import KILL_COORDINATOR, KILL_LEADER
from integration.chaos.run import Account, Plan, check, run
from integration.readers import Read
from txnproducer.testing import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def test_nothing_is_lost_doubled_torn_or_out_of_order_while_brokers_are_killed():
    kinds = (KILL_LEADER, KILL_COORDINATOR)
    with EmbeddedKafka(nodes=3) as kafka:
        result = run(kafka, Plan(20, 500, 3, 2, kinds), "short")
    assert result["wrong"] == []
    assert result["outcomes"] == {**cast(dict, result["outcomes"]), "committed": 20}
    assert result["new_producers"] == {}  # a fault costs an abort at most


COMMITTED = [Read(i % 6, i // 6, None, b"%06d:%04d" % (0, i)) for i in range(12)]


@pytest.mark.parametrize(
    ("reads", "outcome", "told"),
    [
        (COMMITTED, "aborted", "was aborted and is there"),
        ([], "committed", "is not there"),
        (COMMITTED[:-1], "committed", "11 of 12"),
        (COMMITTED[:-1], "unknown", "11 of 12"),
        ([*COMMITTED, COMMITTED[-1]], "committed", "after"),
        ([COMMITTED[6], COMMITTED[0], *COMMITTED[1:6], *COMMITTED[7:]], "committed", "after"),
    ],
)
def test_the_check_finds_each_kind_of_violation(reads, outcome, told):
    wrong = check(reads, Account(outcomes={0: outcome}), 12)
    assert any(told in line for line in wrong), wrong


def test_the_check_passes_correct_reads():
    assert check(COMMITTED, Account(outcomes={0: "committed", 1: "aborted"}), 12) == []
    assert check(COMMITTED, Account(outcomes={0: "unknown", 1: "unknown"}), 12) == []
