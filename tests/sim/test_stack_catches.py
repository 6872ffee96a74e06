"""Every deliberate bug around the core is found, by the seed or the test that found it before.

Twelve are tried each time, each in an interpreter of its own; all with `make stack-mutants`.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.mutation import PACKAGE, STACK_DRAWN, drawn_mutants, mutated
from tests.sim.simulator_page import replaced
from tests.sim.stack_mutants import EQUIVALENT, FEARED, MUTANTS
from tests.sim.stack_mutants_page import PAGE, parts
from tests.sim.stack_mutation import MOST_SEEDS, all_mutants, ask, is_found_by_test, known

KNOWN = known()
ALL = {mutant.name: mutant for mutant in all_mutants()}
# Found by different checks, and fast. No share of a slow machine leaves one out.
ALWAYS = frozenset(
    {
        "record-lost-in-a-callback",
        "commit-begins-in-a-callback",
        "woken-before-the-end-is-noted",
        "polling-noted-after-the-release",
        "wake-up-cleared-after-the-look",
        "interrupted-block-stays-open",
        "requests-during-a-login",
        "no-deadline-of-requests",
        "socket-of-an-abandoned-attempt",
        "answers-without-a-look-at-their-number",
        "a-block-is-anybodys",
        "a-flush-joins-the-one-under-way",
    }
)
LONG = pytest.mark.skipif(
    "TXNPRODUCER_STACK_MUTANTS" not in os.environ, reason="a part of `make stack-mutants`"
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.each_time if name in ALWAYS else LONG)
        for name in sorted(ALL)
    ],
)
def test_a_deliberate_bug_is_found(name):
    assert name in KNOWN, f"python -m tests.sim.stack_mutation {name}"
    row = KNOWN[name]
    if "test" in row:
        assert is_found_by_test(name, row["test"])
        return
    found = ask(name, row["seed"], 1)
    assert found is not None, f"seed {row['seed']} does not find {name} any more"
    assert found["check"] == row["check"]


def test_each_deliberate_bug_is_known_and_some_were_drawn_by_a_tool():
    assert len(drawn_mutants(STACK_DRAWN)) >= 29
    assert len(MUTANTS) + len(FEARED) >= 44
    assert all(row.get("seed", 0) <= MOST_SEEDS for row in KNOWN.values())
    assert set(KNOWN) == set(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_mutants_place_is_in_the_code(name):
    mutant = ALL[name]
    source = (PACKAGE / mutant.file).read_text("utf-8")
    compile(mutated(mutant, source), mutant.file, "exec")


def test_no_mutant_is_one_that_changes_nothing():
    assert not EQUIVALENT.keys() & ALL.keys()


def test_the_page_has_the_tables():
    page = PAGE.read_text("utf-8")
    for name, content in parts().items():
        assert replaced(page, name, content) == page, "run: python -m tests.sim.stack_mutants_page"
