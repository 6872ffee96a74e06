"""The kept results of a campaign, and the tables that the page makes of them."""

from __future__ import annotations

import json

import pytest

from tests.sim.campaign_page import CORE, STACK, campaign_table, joined
from txnproducer.sim.campaign import ResultsFile, Totals


def line(first: int, count: int, version: str = "v", requests: int = 10) -> str:
    place = {"version": version, "first_seed": first, "seed_count": count}
    return json.dumps(place | Totals(count, requests).to_json())


def test_stretches_side_by_side_become_one_and_a_gap_stays():
    stretches = [json.loads(each) for each in joined([line(21, 20), line(1, 20), line(61, 5)])]
    assert [(each["first_seed"], each["seed_count"]) for each in stretches] == [(1, 40), (61, 5)]
    assert [(each["seeds"], each["requests"]) for each in stretches] == [(40, 20), (5, 10)]


def test_seeds_that_two_commands_ran_count_once():
    (stretch,) = map(json.loads, joined([line(1, 20), line(11, 20), line(21, 20)]))
    assert (stretch["seed_count"], stretch["requests"]) == (40, 20)


def test_versions_are_not_mixed():
    with pytest.raises(ValueError, match="several versions"):
        joined([line(1, 20), line(21, 20, version="w")])


def test_a_campaign_goes_on_from_the_kept_results(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(joined([line(1, 20), line(21, 20), line(61, 5)])))
    noted = ResultsFile(path, "v").read()
    assert noted.seeds == {*range(1, 41), *range(61, 66)}
    assert noted.totals.requests == 30


@pytest.mark.parametrize("kept", [CORE, STACK], ids=["core", "stack"])
def test_the_page_shows_the_kept_results(kept):
    wanted = f"<!-- campaign -->\n{campaign_table(*kept.results())}\n<!-- end campaign -->"
    assert wanted in kept.page.read_text("utf-8"), "run: python -m tests.sim.campaign_page"
