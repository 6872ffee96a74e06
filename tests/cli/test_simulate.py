"""`txnproducer simulate`: what it prints, what it keeps, how it exits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from txnproducer.cli import simulate
from txnproducer.cli.main import main
from txnproducer.sim.campaign import ResultsFile, Totals, fingerprint


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_it_tells_what_was_run_and_that_nothing_was_wrong():
    done = run("--seed", "1", "--seeds", "2", "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert "2 seeds," in done.output
    assert "no violation" in done.output
    assert f"from seed 1, version {fingerprint()}" in done.output


def test_the_trace_of_a_seed_begins_with_what_the_seed_drew():
    done = run("--seed", "1", "--trace")
    assert done.exit_code == 0
    assert done.output.startswith("options of seed 1:\n  seed: 1\n  cluster: ClusterOptions(")
    assert "InitProducerIdRequest(transactional_id='txn-0'" in done.output


def test_a_trace_is_of_one_seed():
    done = run("--trace", "--seeds", "3")
    assert done.exit_code == 2
    assert "--trace shows one seed" in done.output


def test_a_campaign_goes_on_where_it_stopped(tmp_path):
    results = tmp_path / "sim.jsonl"
    arguments = ("--seed", "1", "--requests", "10", "--jobs", "1", "--results", str(results))
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    again = run(*arguments)
    assert "this time 0 seeds and 0 requests" in again.output
    (line,) = results.read_text("utf-8").splitlines()
    assert json.loads(line)["version"] == fingerprint()


def test_results_of_another_version_of_the_code_do_not_count(tmp_path):
    results = tmp_path / "sim.jsonl"
    ResultsFile(results, "another").append(1, Totals(seeds=7))
    totals, firsts = ResultsFile(results, fingerprint()).read()
    assert (totals.seeds, firsts) == (0, set())


def test_a_violation_is_told_with_the_command_that_replays_it(monkeypatch):
    failed = Totals(seeds=1, requests=1, failures=[(42, "committed", "one is missing")])
    monkeypatch.setattr(simulate, "_run", lambda *_: (failed, Totals()))
    done = run("--seed", "42")
    assert done.exit_code == 1
    assert "txnproducer simulate --trace --seed 42   # committed: one is missing" in done.output


@pytest.mark.parametrize(("seeds", "code"), [(999, 0), (1000, 1)])
def test_a_fault_that_never_took_effect_fails_a_run_of_a_thousand_seeds(monkeypatch, seeds, code):
    monkeypatch.setattr(simulate, "_run", lambda *_: (Totals(seeds=seeds), Totals()))
    done = run("--seed", "1", "--seeds", str(seeds))
    assert done.exit_code == code
    assert ("never took effect: request lost" in done.output) is bool(code)
