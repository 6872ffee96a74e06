"""Run the whole stack with one deliberate bug around the core.

`python -m tests.sim.stack_mutation NAME` looks for the first seed that finds it, `--all` for each
bug without a result. `--kind FAULT,...` leaves out the seeds that do not draw a fault. Of the kind
"undisturbed" are seeds without a fault that delays a call, of "login" those whose sessions end, of
"companions" those whose producers have one, of "PLAIN" those that log in by it. A bug that no seed
finds can be given to tests: `--tests NAME FILE...`.

Owns: the hunt, and `tests/data/stack_mutants.json`. Must not know: how a bug is put into its file
(`mutation`).

Rules:
* A seed that also fails without the bug does not count.
* No seed takes longer than a minute of the processor, or four in all: an endless loop shows as
  `hangs`. A busy machine seldom takes so long.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

from tests.sim import mutation
from tests.sim.mutants import Mutant
from tests.sim.mutation import ROOT, STACK_DRAWN, drawn_mutants, install
from tests.sim.stack_mutants import FEARED, MUTANTS

RESULTS = ROOT / "tests" / "data" / "stack_mutants.json"
MOST_SEEDS = 2000
# Of the processor's time, and of real time for threads that all wait.
_LIMITS_S = {signal.ITIMER_PROF: 60, signal.ITIMER_REAL: 240}
_SIGNALS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
_LONGEST_CHUNK = 200


def all_mutants() -> tuple[Mutant, ...]:
    """Return those written by hand and those drawn."""
    return (*MUTANTS, *FEARED, *drawn_mutants(STACK_DRAWN))


def known() -> dict[str, dict[str, Any]]:
    """Return the result of each mutant."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


# --- inside the interpreter with the bug --------------------------------------------------------


def _install(name: str) -> None:
    if name:
        (mutant,) = (each for each in all_mutants() if each.name == name)
        install(mutant)


def run_mutant(name: str, seeds: Iterable[int], kind: str = "") -> dict[str, Any] | None:
    """Run seeds with a bug (no name: without). Return the first that fails, or None.

    Args:
        name: of the bug.
        seeds: to run.
        kind: a fault, or one of the other kinds; other seeds are passed over.
    """
    _install(name)
    from txnproducer.sim.stack.options import StackOptions
    from txnproducer.sim.stack.run import run_stack_seed

    for seed in seeds:
        options = StackOptions.draw(seed)
        kinds = {*options.byte_rates, *options.event_s, *options.call_rates}
        kinds |= {"undisturbed"} if options.is_undisturbed else set()
        kinds |= {"login"} if options.session_ms else set()
        kinds |= {"companions"} if options.has_companions else set()
        kinds |= {options.mechanism} if options.users else set()
        kinds |= set() if options.tokens is None else {*options.tokens.rates}
        if not kinds.issuperset(kind.split(",") if kind else ()):
            continue
        _limit(seed)
        began = time.process_time()
        violations = run_stack_seed(seed).violations
        for timer in _LIMITS_S:
            signal.setitimer(timer, 0)
        if violations:
            check, text = violations[0]
            seconds = round(time.process_time() - began, 1)
            return {"seed": seed, "check": check, "seconds": seconds, "text": text[:200]}
    return None


def _limit(seed: int) -> None:
    for timer, seconds in _LIMITS_S.items():
        signal.signal(_SIGNALS[timer], lambda *_, seconds=seconds: _give_up(seed, seconds))
        signal.setitimer(timer, seconds)


def _give_up(seed: int, seconds: int) -> None:
    """End the interpreter: its other threads cannot be ended."""
    text = f"one seed takes longer than {seconds} s"
    found = {"seed": seed, "check": "hangs", "seconds": seconds, "text": text}
    print(json.dumps(found), flush=True)
    os._exit(0)


def run_tests(name: str, arguments: list[str]) -> int:
    """Run tests with a bug, and return their exit code."""
    _install(name)
    import pytest

    # Plain, since rewriting loads the modules of a package that has a plugin past the bug.
    plain = ["-q", "-x", "-p", "no:cacheprovider", "--assert=plain"]
    return int(pytest.main([*plain, *arguments]))


# --- outside ------------------------------------------------------------------------------------


ask = partial(mutation.ask, module="tests.sim.stack_mutation")


def is_found_by_test(name: str, test: str) -> bool:
    """Return whether a test fails with a bug, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.stack_mutation", "--tests", name, test],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TXNPRODUCER_IMPL": "python"},
        timeout=300,
    )
    # 1: a test has failed. Others would say that it is not there, or cannot be imported.
    return done.returncode == 1


def hunt(name: str, first: int, end: int, kind: str = "") -> dict[str, Any] | None:
    """Return the first seed that finds a bug, and the check, or None."""
    start, chunk = first, 200 if kind else 20
    while start < end:
        count = min(chunk, end - start)
        found = ask(name, start, count, kind)
        if found is None:
            start, chunk = start + count, min(2 * chunk, _LONGEST_CHUNK)
            continue
        if ask("", int(found["seed"]), 1) is None:
            return found
        start = int(found["seed"]) + 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.stack_mutation")
    parser.add_argument("name", nargs="*", help="mutants")
    parser.add_argument("--all", action="store_true", help="look for those without a result")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="how many of them")
    parser.add_argument("--kind", default="", help="only seeds that draw these faults")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--run", nargs=3, metavar=("NAME", "FIRST", "COUNT"))
    parser.add_argument("--tests", nargs="+", metavar="NAME FILE")
    arguments = parser.parse_args()
    if arguments.run:
        name, first, count = arguments.run
        found = run_mutant(name, range(int(first), int(first) + int(count)), arguments.kind)
        print(json.dumps(found) if found else "")
        return
    if arguments.tests:
        sys.exit(run_tests(arguments.tests[0], arguments.tests[1:]))
    results = known()
    names = [each.name for each in all_mutants()]
    wanted = [n for n in names if n in arguments.name or (arguments.all and n not in results)]
    end = arguments.first + arguments.seeds
    with ThreadPoolExecutor(arguments.jobs) as pool:
        hunts = {
            pool.submit(hunt, name, arguments.first, end, arguments.kind): name for name in wanted
        }
        for done in as_completed(hunts):
            name = hunts[done]
            if (broken := done.exception()) is not None:
                print(name, "BROKEN", broken, flush=True)
                continue
            found = done.result()
            print(name, found, flush=True)
            if found is not None:
                note(name, found)


def note(name: str, found: dict[str, Any]) -> None:
    """Write one result down."""
    results = known() | {name: found}
    # In one step: another hunt may read the file meanwhile.
    written = RESULTS.with_suffix(".new")
    written.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    written.replace(RESULTS)


if __name__ == "__main__":
    main()
