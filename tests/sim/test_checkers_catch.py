"""Every deliberate bug of the core is caught, with the seed that caught it before.

Each is run in an interpreter of its own. `make test` runs a part of them, `make core-mutants` all.
"""

from __future__ import annotations

import pytest

from tests.sim.mutation import MOST_SEEDS, PACKAGE, all_mutants, ask, drawn_mutants, known, mutated
from tests.sim.simulator_page import MUTANTS_PAGE, PAGE, fault_list, mutant_table
from tests.turns import of_this_turn

KNOWN = known()
MUTANTS = {mutant.name: mutant for mutant in all_mutants()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", of_this_turn(sorted(MUTANTS)))
def test_a_deliberate_bug_is_caught(name):
    caught = ask(name, int(KNOWN[name]["seed"]), 1, KNOWN[name]["kind"])
    assert caught is not None, f"seed {KNOWN[name]['seed']} does not catch {name} any more"
    assert caught["checker"] == KNOWN[name]["checker"]


def test_every_deliberate_bug_has_been_caught_once():
    assert set(KNOWN) == set(MUTANTS), "python -m tests.sim.mutation NAME"


def test_there_are_forty_and_ten_were_drawn_by_a_tool():
    drawn = {mutant.name for mutant in drawn_mutants()}
    # Without those that only runs of one kind have met.
    usual = {name for name in MUTANTS if KNOWN[name]["kind"] in ("", "shared")}
    assert len(usual & drawn) >= 10
    assert len(usual - drawn) >= 40
    assert all(int(KNOWN[name]["seeds_needed"]) <= MOST_SEEDS for name in MUTANTS)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutants_place_is_in_the_code(name):
    mutant = MUTANTS[name]
    source = (PACKAGE / mutant.file).read_text("utf-8")
    compile(mutated(mutant, source), mutant.file, "exec")


def test_the_page_has_the_table_of_mutants():
    assert mutant_table(KNOWN) in MUTANTS_PAGE.read_text("utf-8")


def test_the_page_has_the_list_of_faults():
    wanted = f"<!-- faults -->\n{fault_list()}\n<!-- end faults -->"
    assert wanted in PAGE.read_text("utf-8"), "run: python -m tests.sim.simulator_page"
