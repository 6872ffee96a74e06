"""`txnproducer simulate`: its output, its results file, its exit codes."""

from __future__ import annotations

import errno
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.waiting import wait_until
from txnproducer._record.compression import codec_for
from txnproducer.cli import _core_coverage, _seed_pool, simulate
from txnproducer.cli._core_coverage import Reached
from txnproducer.cli.main import main
from txnproducer.sim.campaign import Noted, ResultsFile, SeedsToRun, Totals, fingerprint


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *arguments])


def fake_pool(monkeypatch, found: Totals):
    """Give the command these results in place of a pool's."""

    class FakePool:
        def __init__(self, to_run, totals, file, **goal):
            self.totals = totals

        def run(self):
            self.totals.add(found)

    monkeypatch.setattr(simulate, "SeedPool", FakePool)


class PoolOfThisProcess:
    """A pool that runs each function at once in this process, and notes it."""

    def __init__(self, requests_of_a_seed=800, seconds_of_a_seed=0.0):
        self.requests_of_a_seed = requests_of_a_seed
        self.seconds_of_a_seed = seconds_of_a_seed
        self.chunks = []

    def __call__(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, _, chunk):
        future: Future[Totals] = Future()
        self.chunks.append(chunk)
        count = len(chunk)
        future.set_result(
            Totals(count, count * self.requests_of_a_seed, seconds=count * self.seconds_of_a_seed)
        )
        return future


@pytest.fixture
def pool(monkeypatch):
    pool = PoolOfThisProcess()
    monkeypatch.setattr(_seed_pool, "ProcessPoolExecutor", pool)
    return pool


def seeds_run(pool):
    return [seed for chunk in pool.chunks for seed in chunk]


# --- what it prints -----------------------------------------------------------------------------


def test_the_report_shows_the_seeds_that_ran_and_that_there_is_no_violation():
    done = run("--seed", "1", "--seeds", "2", "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert "2 seeds," in done.output
    assert "no violation" in done.output
    assert f"from seed 1, version {fingerprint()}" in done.output


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("many-batches", "has_many_batches"),
        ("stalled-leaders", "has_stalled_leaders"),
        ("late-delivery", "is_late_delivery_frequent"),
        ("shared", "is_shared"),
    ],
)
def test_a_seeds_run_is_made_of_a_kind_on_demand(kind, option):
    runs = [run("--seed", "5", "--trace", *more).output for more in ((), ("--kind", kind))]
    assert [f"{option}: True" in output for output in runs] == [False, True]
    refused = run("--seed", "5", "--kind", kind)
    assert refused.exit_code == 2
    assert "--kind needs --trace" in refused.output


def test_the_trace_of_a_seed_begins_with_the_options_it_drew():
    done = run("--seed", "1", "--trace")
    assert done.exit_code == 0
    assert done.output.startswith("options of seed 1:\n  seed: 1\n  cluster: ClusterOptions(")
    assert "InitProducerIdRequest(transactional_id='txn-0'" in done.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seeds", "3"),
        ("--requests", "0"),
        ("--jobs", "1"),
        ("--results", "sim.jsonl"),
        ("--coverage", "0"),
        ("--least-branches", "0"),
    ],
)
def test_a_trace_refuses_the_options_that_it_would_ignore(option, value):
    done = run("--trace", option, value)
    assert done.exit_code == 2
    assert f"--trace shows one seed: leave out {option}" in done.output


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "x"), OSError(errno.EIO, "x")])
def test_a_trace_that_cannot_be_written_is_no_violation(monkeypatch, error):
    lines = []

    def fail_at_the_third(line, **_):
        lines.append(line)
        if len(lines) == 3:
            raise error

    monkeypatch.setattr(click, "echo", fail_at_the_third)
    done = CliRunner().invoke(simulate.command, ["--seed", "1", "--trace"])
    assert done.exit_code == 1
    assert "VIOLATION" not in "".join(lines)
    assert len(lines) == 3
    assert done.exception is error or isinstance(error, BrokenPipeError)


def test_a_violation_is_reported_with_the_command_that_replays_it(monkeypatch):
    failed = Totals(seeds=1, requests=1, failures=[(42, "committed", "one is missing")])
    fake_pool(monkeypatch, failed)
    done = run("--seed", "42")
    assert done.exit_code == 1
    assert "txnproducer simulate --trace --seed 42   # committed: one is missing" in done.output


def test_a_violation_of_the_whole_stack_is_replayed_there(monkeypatch):
    monkeypatch.setattr(simulate, "IMPL", "python")
    fake_pool(monkeypatch, Totals(seeds=1, requests=1, failures=[(42, "told", "one is missing")]))
    done = run("--stack", "--seed", "42")
    assert done.exit_code == 1
    assert "txnproducer simulate --stack --trace --seed 42   # told: one is" in done.output


@pytest.mark.parametrize(("seeds", "code"), [(999, 0), (1000, 1)])
def test_a_fault_that_never_took_effect_fails_a_run_of_a_thousand_seeds(monkeypatch, seeds, code):
    fake_pool(monkeypatch, Totals(seeds=seeds))
    done = run("--seed", "1", "--seeds", str(seeds))
    assert done.exit_code == code
    assert ("never took effect: request lost" in done.output) is bool(code)


def test_progress_is_printed_every_half_minute_without_a_terminal():
    now, out, totals = [100.0], StringIO(), Totals(seeds=10, requests=7_000)
    with _seed_pool.ProgressDisplay(totals, Console(file=out), lambda: now[0]) as display:
        display.show(0.1)
        now[0] += 29.9
        display.show(0.2)
        assert out.getvalue() == ""
        now[0] += 0.1
        totals.add(Totals(seeds=2, requests=3_000))
        display.show(0.25)
        display.show(0.25)
    assert out.getvalue() == "25%: 12 seeds, 10,000 requests, 100 requests/s\n"


def test_the_stack_asks_for_the_codecs_that_its_seeds_draw_before_any_run(monkeypatch):
    monkeypatch.setattr(simulate, "IMPL", "python")
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    codec_for.cache_clear()
    for options in ((), ("--trace",)):
        done = run("--stack", "--seed", "3", *options)
        assert done.exit_code == 4
        assert done.stdout == ""
        assert "--stack draws compression_type among none, lz4" in done.stderr
        assert "pip install 'txnproducer[lz4]'" in done.stderr


# --- which seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_seeds_are_run_than_asked_for(pool, jobs):
    done = run("--seed", "1", "--seeds", "65", "--jobs", str(jobs))
    assert seeds_run(pool) == list(range(1, 66))
    assert "this time 65 seeds and 52,000 requests" in done.output


def test_few_seeds_are_shared_among_the_processes(pool):
    run("--seed", "1", "--seeds", "10", "--jobs", "2")
    assert pool.chunks == [range(1, 2), range(2, 3), range(3, 7), range(7, 11)]


def test_no_more_seeds_are_run_than_it_takes_for_the_requests(pool):
    run("--seed", "1", "--requests", "80001", "--jobs", "2")
    assert seeds_run(pool) == list(range(1, 102))


def test_the_first_chunk_of_each_process_is_one_seed_and_the_next_ones_take_about_two_seconds(
    monkeypatch,
):
    pool = PoolOfThisProcess(seconds_of_a_seed=0.4)
    monkeypatch.setattr(_seed_pool, "ProcessPoolExecutor", pool)
    run("--seed", "1", "--seeds", "30", "--jobs", "2")
    assert [len(chunk) for chunk in pool.chunks[:4]] == [1, 1, 5, 5]
    assert seeds_run(pool) == list(range(1, 31))


def test_a_judge_that_fails_every_seed_ends_the_run(monkeypatch):
    class FailingPool(PoolOfThisProcess):
        def submit(self, task, chunk):
            future = super().submit(task, chunk)
            future.result().requests = 0
            future.result().failures = [(seed, "crash", "broken") for seed in chunk]
            return future

    monkeypatch.setattr(_seed_pool, "ProcessPoolExecutor", FailingPool())
    done = run("--seed", "1", "--requests", "1000000", "--jobs", "1")
    assert done.exit_code == 1
    assert "1,001 seeds with a violation" in done.output
    assert "so many that no more seeds were run" in done.output


# --- the results file ---------------------------------------------------------------------------


def test_a_campaign_goes_on_where_it_stopped(tmp_path):
    results = tmp_path / "sim.jsonl"
    arguments = ("--seed", "1", "--requests", "10", "--jobs", "1", "--results", str(results))
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    again = run(*arguments)
    assert "this time 0 seeds and 0 requests" in again.output
    (line,) = map(json.loads, results.read_text("utf-8").splitlines())
    assert line["version"] == fingerprint()
    assert line["seconds"] > 0


def test_the_next_sitting_runs_the_seeds_that_the_first_left_out(pool, tmp_path):
    results = str(tmp_path / "sim.jsonl")
    run("--seed", "1", "--seeds", "3", "--results", results)
    pool.chunks.clear()
    run("--seed", "1", "--seeds", "8", "--results", results)
    assert seeds_run(pool) == [4, 5, 6, 7, 8]


def test_a_seed_that_was_run_is_not_run_again_from_another_first_seed(pool, tmp_path):
    results = str(tmp_path / "sim.jsonl")
    run("--seed", "5", "--seeds", "3", "--results", results)
    pool.chunks.clear()
    done = run("--seed", "3", "--seeds", "8", "--results", results)
    assert seeds_run(pool) == [3, 4, 8, 9, 10]
    assert "\n8 seeds, 6,400 requests" in done.output


def test_without_a_first_seed_a_campaign_goes_on_from_its_own(pool, tmp_path):
    results = str(tmp_path / "sim.jsonl")
    run("--seed", "5", "--seeds", "2", "--results", results)
    done = run("--seeds", "3", "--results", results)
    assert "from seed 5," in done.output
    assert seeds_run(pool) == [5, 6, 7]


def test_a_seed_that_two_sittings_ran_at_the_same_time_counts_once(tmp_path):
    file = ResultsFile(tmp_path / "sim.jsonl", "this")
    file.append(range(1, 11), Totals(10, 100))
    file.append(range(5, 15), Totals(10, 100))
    file.append(range(11, 21), Totals(10, 100))
    noted = file.read()
    assert noted.seeds == set(range(1, 21))
    assert (noted.totals.seeds, noted.totals.requests) == (20, 200)


def test_results_of_another_version_of_the_code_do_not_count(tmp_path, monkeypatch):
    results = tmp_path / "sim.jsonl"
    ResultsFile(results, "another").append(range(1, 8), Totals(seeds=7))
    assert ResultsFile(results, fingerprint()).read() == Noted(other_versions=1)
    fake_pool(monkeypatch, Totals(1))
    done = run("--results", str(results))
    assert "lines of another version, left out: 1" in done.output


@pytest.mark.parametrize("half", [b'{"version": "th', b'{"version"', b"\0\0\0\0", b"\xff"])
def test_half_a_line_of_a_killed_process_is_skipped_and_stays_alone(tmp_path, half):
    path = tmp_path / "sim.jsonl"
    file = ResultsFile(path, "this")
    file.append(range(1, 3), Totals(2))
    with path.open("ab") as raw:
        raw.write(half)
    assert file.read() == Noted(Totals(2), {1, 2}, unreadable=1)
    file.append(range(3, 5), Totals(2))
    assert file.read() == Noted(Totals(4), {1, 2, 3, 4}, unreadable=1)


@pytest.mark.parametrize("content", ["a text\nof mine\n", '{"version": "1.0"}\n', "\n"])
def test_a_file_that_has_no_results_is_refused_and_left_as_it_is(tmp_path, pool, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    done = run("--results", str(path))
    assert done.exit_code == 2
    assert f"{path} is no file of results: it has no line of `simulate`" in done.stderr
    assert path.read_text() == content
    assert pool.chunks == []


def test_an_empty_file_takes_results(tmp_path, pool):
    path = tmp_path / "sim.jsonl"
    path.touch()
    assert run("--results", str(path)).exit_code == 0
    assert len(path.read_text().splitlines()) == 1


def test_the_report_has_the_rates_over_all_sittings(tmp_path, monkeypatch):
    results = tmp_path / "sim.jsonl"
    ResultsFile(results, fingerprint()).append(range(100), Totals(100, 9_000, seconds=9.0))
    fake_pool(monkeypatch, Totals(20, 3_000, seconds=3.0))
    done = run("--results", str(results))
    text = "in all sittings 120 seeds and 12,000 requests in 12 s: 10.0 seeds/s, 1,000 requests/s"
    assert text in done.output


def test_seeds_to_run_are_handed_out_side_by_side_and_only_once():
    to_run = SeedsToRun(3, {4, 7, 8})
    assert [to_run.take(2) for _ in range(4)] == [
        range(3, 4),
        range(5, 7),
        range(9, 11),
        range(11, 13),
    ]


# --- the workers --------------------------------------------------------------------------------


def test_ctrl_c_reports_the_work_done_and_leaves_no_worker(monkeypatch, tmp_path):
    def slow(_):
        threading.Event().wait(10)  # a worker that is not ended goes on after it
        (tmp_path / "went on").touch()

    def interrupted(*_):
        raise KeyboardInterrupt

    results = tmp_path / "sim.jsonl"
    ResultsFile(results, fingerprint()).append(range(3), Totals(3, 2_000))
    monkeypatch.setattr(_seed_pool, "run_seeds", slow)
    monkeypatch.setattr(_seed_pool, "wait", interrupted)
    done = run("--seeds", "100", "--jobs", "2", "--results", str(results))
    assert done.exit_code == 130
    assert "interrupted" in done.output
    assert "3 seeds, 2,000 requests" in done.output
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "went on").exists()


def test_a_worker_that_is_killed_names_the_seeds_that_were_running(monkeypatch):
    monkeypatch.setattr(_seed_pool, "run_seeds", lambda _: os._exit(9))
    done = run("--seed", "1", "--seeds", "30", "--jobs", "2")
    assert done.exit_code == 1
    assert "a worker was killed; running were: 1, 2" in done.output
    assert "0 seeds, 0 requests" in done.output
    assert "no violation" not in done.output
    assert "no seed was finished" in done.output


@pytest.mark.skipif(
    sys.platform != "linux", reason="looks for the workers in /proc, which Linux has"
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_killed_command(number):
    command = [sys.executable, "-m", "txnproducer", "simulate", "--seeds", "100000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 2 or process.poll() is not None)
        process.send_signal(number)
        # The workers have this pipe as well: it ends when the last of them does.
        process.communicate(timeout=60)
    assert process.returncode == -number


# --- branches -----------------------------------------------------------------------------------

SOME_OF_THE_CORE = Reached.from_json(
    {
        "totals": {
            "covered_lines": 90,
            "num_statements": 100,
            "covered_branches": 834,
            "num_branches": 950,
        },
        "files": {
            "core/sender.py": {"missing_branches": [[9, 12], [9, -1]]},
            "core/drain.py": {"missing_branches": [[104, 105], [100, 101], [104, 109]]},
            "core/ports.py": {"missing_branches": []},
        },
    }
)


def test_branches_and_lines_are_counted_apart_with_the_places_not_reached():
    assert SOME_OF_THE_CORE.describe().splitlines() == [
        "834 of 950 branches, 87.8 %; 90 of 100 lines, 90.0 %",
        "  drain.py: 3 not taken, from line 100, 104",
        "  sender.py: 2 not taken, from line 9",
    ]


def test_only_the_first_of_many_lines_are_named():
    many = Reached((1, 1), (0, 20), {"drain.py": list(range(1, 21))})
    assert many.describe().endswith("from line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 8 more")


@pytest.mark.parametrize(("least", "code"), [("0", 0), ("87.7", 0), ("87.8", 1)])
def test_too_few_branches_fail_the_run(monkeypatch, least, code):
    fake_pool(monkeypatch, Totals(1))
    monkeypatch.setattr(simulate, "measure", lambda *_: SOME_OF_THE_CORE)
    done = run("--coverage", "3", "--least-branches", least)
    assert done.exit_code == code
    assert "3 seeds reach of the core 834 of 950 branches" in done.output
    assert (f"87.79 % of the branches, not {least} % as asked for" in done.output) is bool(code)


def test_least_branches_are_asked_for_where_branches_are_counted():
    done = run("--least-branches", "80")
    assert done.exit_code == 2
    assert "--least-branches needs --coverage" in done.output


def test_a_missing_coverage_package_is_reported_before_any_run(monkeypatch, pool):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = run("--coverage", "3")
    assert done.exit_code == 4
    assert "`--coverage` needs coverage, which is not installed" in done.output
    assert pool.chunks == []


def test_two_processes_together_reach_the_coverage_of_one():
    alone, together = (_core_coverage.measure(1, 2, jobs) for jobs in (1, 2))
    assert together.branches == alone.branches


def test_a_seed_reaches_some_branches_of_the_core_and_not_all():
    reached = _core_coverage.measure(1, 1)
    assert 0 < reached.branches[0] < reached.branches[1]
    assert reached.branches[0] / reached.branches[1] < reached.lines[0] / reached.lines[1] < 1
    assert "sequence_manager.py" in reached.unreached
