"""Every deliberate bug of prepared parts is found, by the seed that found it before.

Five are tried each time, each in an interpreter of its own; all with `make parts-mutants`.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.mutation import PACKAGE, mutated
from tests.sim.simulator_page import replaced
from tests.spark.parts.mutants import MISSED, MUTANTS
from tests.spark.parts.mutation import MOST_SEEDS, ask, known
from tests.spark.parts.page import PAGE, parts

KNOWN = known()
ALL = {mutant.name: mutant for mutant in MUTANTS}
MISSING = {mutant.name: mutant for mutant in MISSED}
# The four that the simulator was built for, and one of the tasks.
ALWAYS = frozenset(
    {
        "no-claim",
        "take-over-before-the-decision-is-read",
        "half-a-decision-counts",
        "ends-before-the-decision",
        "entry-left-out",
    }
)
LONG = pytest.mark.skipif(
    "TXNPRODUCER_PARTS_MUTANTS" not in os.environ, reason="a part of `make parts-mutants`"
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=LONG) for n in sorted(ALL)]
)
def test_a_deliberate_bug_is_found(name):
    row = KNOWN[name]
    found = ask(name, row["seed"], 1)
    assert found is not None, f"seed {row['seed']} does not find {name} any more"
    assert found["check"] == row["check"]


@pytest.mark.parametrize("name", sorted(ALL | MISSING))
def test_a_mutants_place_is_in_the_code(name):
    mutant = (ALL | MISSING)[name]
    source = (PACKAGE / mutant.file).read_text("utf-8")
    compile(mutated(mutant, source), mutant.file, "exec")


def test_each_mutant_was_found_within_the_seeds():
    assert set(KNOWN) == set(ALL)
    assert all(row["seed"] <= MOST_SEEDS for row in KNOWN.values())


def test_the_page_has_the_tables():
    page = PAGE.read_text("utf-8")
    for name, content in parts().items():
        assert replaced(page, name, content) == page, "run: python -m tests.spark.parts.page"
