"""Every seed that ever failed passes. `make test` runs a part of them, `make core-mutants` all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.turns import of_this_turn
from txnproducer.sim import RunKind, run_seed

LINES = (Path(__file__).parent / "seeds.txt").read_text("utf-8").splitlines()
SEEDS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("seed", "comment"), of_this_turn([(int(number), text) for number, text in SEEDS])
)
def test_a_seed_that_failed_once_passes(seed, comment):
    kind = next((each for each in RunKind if comment.startswith(f"{each}: ")), None)
    result = run_seed(seed, kind=kind)
    assert result.violations == []
    assert result.requests >= 300
    assert result.transactions.total() >= 20


def test_every_seed_has_a_comment():
    assert all(comment.strip() for _, comment in SEEDS)
