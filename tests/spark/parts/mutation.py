"""Run prepared parts with one deliberate bug.

`python -m tests.spark.parts.mutation NAME` looks for the first seed that catches it, `--all` for
each bug without a result.

Owns: the hunt, and `tests/data/parts_mutants.json`. Must not know: how a bug is put into its file
(`tests.sim.mutation`).

Rule: a seed that also fails without the bug does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from tests.sim import mutants, mutation
from tests.sim.mutation import ROOT, install
from tests.spark.parts.mutants import HELPERS, MISSED, MUTANTS, NAMED

RESULTS = ROOT / "tests" / "data" / "parts_mutants.json"
MOST_SEEDS = 1000
_LONGEST_SEED_S = 60
_CHUNK = 50
# In place of a bug's name: runs with names, and without a bug.
_NAMES_ALONE = "names"

# The reader of mutants looks for them there.
mutants.HELPERS.update(HELPERS)
ask = partial(mutation.ask, module="tests.spark.parts.mutation")


def known() -> dict[str, dict[str, Any]]:
    """Return the result of each mutant."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def run_mutant(name: str, seeds: Iterable[int]) -> dict[str, Any] | None:
    """Run seeds with a bug (or without, see `hunt`). Return the first that fails, or None."""
    if name not in ("", _NAMES_ALONE):
        install(next(each for each in (*MUTANTS, *MISSED) if each.name == name))
    from tests.spark.parts.run import run_seed

    for seed in seeds:
        _limit(seed)
        began = time.process_time()
        violations = run_seed(seed, has_names=name in NAMED | {_NAMES_ALONE}).violations
        signal.setitimer(signal.ITIMER_PROF, 0)
        if violations:
            check, text = violations[0]
            seconds = round(time.process_time() - began, 1)
            return {"seed": seed, "check": check, "seconds": seconds, "text": text[:200]}
    return None


def _limit(seed: int) -> None:
    signal.signal(signal.SIGPROF, lambda *_: _give_up(seed))
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_SEED_S)


def _give_up(seed: int) -> None:
    """End the interpreter: its other threads cannot be ended."""
    text = f"one seed takes longer than {_LONGEST_SEED_S} s"
    found = {"seed": seed, "check": "hangs", "seconds": _LONGEST_SEED_S, "text": text}
    print(json.dumps(found), flush=True)
    os._exit(0)


def hunt(name: str, first: int, end: int) -> dict[str, Any] | None:
    """Return the first seed that catches a bug, and the check, or None."""
    healthy = _NAMES_ALONE if name in NAMED else ""
    while first < end:
        count = min(_CHUNK, end - first)
        found = ask(name, first, count)
        if found is None:
            first += count
        elif ask(healthy, int(found["seed"]), 1) is None:
            return found
        else:
            first = int(found["seed"]) + 1
    return None


def note(name: str, found: dict[str, Any]) -> None:
    """Write one result down."""
    results = known() | {name: found}
    written = RESULTS.with_suffix(".new")
    written.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    written.replace(RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.parts.mutation")
    parser.add_argument("name", nargs="*", help="mutants")
    parser.add_argument("--all", action="store_true", help="look for those without a result")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="how many of them")
    parser.add_argument("--run", nargs=3, metavar=("NAME", "FIRST", "COUNT"))
    parser.add_argument("--kind", help="not used: all seeds draw all kinds")
    arguments = parser.parse_args()
    if arguments.run:
        name, first, count = arguments.run
        found = run_mutant(name, range(int(first), int(first) + int(count)))
        print(json.dumps(found) if found else "")
        return
    results = known()
    for mutant in (*MUTANTS, *MISSED):
        name = mutant.name
        if name in arguments.name or (arguments.all and name not in results):
            found = hunt(name, arguments.first, arguments.first + arguments.seeds)
            print(name, found, flush=True)
            if found is not None:
                note(name, found)


if __name__ == "__main__":
    main()
