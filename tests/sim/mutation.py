"""Run the simulator on a core with one deliberate bug: `python -m tests.sim.mutation NAME`.

The bug is put into the source when the module is imported, in an interpreter of its own; no file
is changed. `--all` looks for the first seed that catches each mutant (a seed that also fails
without the bug does not count) and writes `tests/data/mutants.json`. A mutant that no seed catches
is tried again with runs of one kind alone, of which there are few else; those of shared
transactions are tried with shared runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.sim.mutants import HELPERS, MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "txnproducer"
RESULTS = ROOT / "tests" / "data" / "mutants.json"
DRAWN = ROOT / "tests" / "data" / "drawn_mutants.json"
STACK_DRAWN = DRAWN.with_name("drawn_stack_mutants.json")
MOST_SEEDS = 2000
# Their bugs show where transactions are shared, which few runs do.
OF_SHARED_TRANSACTIONS = (
    "_core/transactions/claims.py",
    "_core/transactions/leasing.py",
    "_core/transactions/share.py",
)
# These show in a changing world alone.
OF_A_CHANGING_WORLD = (
    "abortable-adding-is-fatal",
    "one-refusal-is-everybodys",
    "a-topic-never-grows",
    "refusal-by-another-broker",
    "one-refusal-leaves-none",
)
# These in runs with exceptions at inner calls alone.
OF_INTERRUPTED_CALLS = (
    "interrupted-call-is-not-finished",
    "interrupted-start-goes-no-further",
    "half-of-a-call-is-committed",
    "sender-begins-amid-a-call",
)
_CHUNK = 25
_LONGEST_SEED_S = 100


class _MutatingLoader(SourceFileLoader):
    """Compiles the mutated source, past the cache of compiled files."""

    mutant: Mutant

    def get_code(self, fullname):
        source = mutated(self.mutant, Path(self.path).read_text("utf-8"))
        return compile(source, self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"txnproducer.{mutant.file.removesuffix('.py').replace('/', '.')}"

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _MutatingLoader(fullname, spec.origin)
        spec.loader.mutant = self._mutant
        return spec


def mutated(mutant: Mutant, source: str) -> str:
    """Return a file's source with the bug in it."""
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name}: {found} places in {mutant.file}, not one")
    return source.replace(mutant.old, mutant.new) + HELPERS.get(mutant.name, "")


def install(mutant: Mutant) -> None:
    """Put a bug into its file for this interpreter, which must not have imported it yet."""
    sys.meta_path.insert(0, _Finder(mutant))


def drawn_mutants(file: Path = DRAWN) -> tuple[Mutant, ...]:
    """Return the mutants that a tool has drawn."""
    if not file.exists():
        return ()
    return tuple(Mutant(**values) for values in json.loads(file.read_text("utf-8")))


def all_mutants() -> tuple[Mutant, ...]:
    """Return those written by hand and those drawn."""
    return (*MUTANTS, *drawn_mutants())


# --- inside the interpreter with the bug --------------------------------------------------------


def run_mutant(name: str, seeds: Iterable[int], kind: str = "") -> dict[str, object] | None:
    """Install a bug and run seeds, and return the first that is caught, or None."""
    if name:
        (mutant,) = (m for m in all_mutants() if m.name == name)
        install(mutant)
    # The package's own imports, sockets and another client, are no part of this world, and
    # takes half of the time until it begins.
    sys.modules["txnproducer"] = package = ModuleType("txnproducer")
    package.__path__ = [str(ROOT / "txnproducer")]
    from txnproducer.sim import RunKind, run_seed

    signal.signal(signal.SIGALRM, _stop)
    for seed in seeds:
        signal.alarm(_LONGEST_SEED_S)
        violations = run_seed(seed, kind=RunKind(kind) if kind else None).violations
        signal.alarm(0)
        if violations:
            checker, text = violations[0]
            return {"seed": seed, "checker": checker, "text": text[:200]}
    return None


def _stop(number: int, frame: object) -> None:
    # Raised in any endless work of the core; the simulator reports what the core raises.
    raise TimeoutError(f"one seed took longer than {_LONGEST_SEED_S} s")


# --- outside ------------------------------------------------------------------------------------


def ask(
    name: str, first: int, count: int, kind: str = "", *, module: str = "tests.sim.mutation"
) -> dict[str, Any] | None:
    """Run seeds on a mutant (no name: on the code as it is) in an interpreter of its own."""
    asked = ["--run", name, str(first), str(count), "--kind", kind]
    done = subprocess.run(
        [sys.executable, "-m", module, *asked],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        # The source is mutated; a compiled module would be taken in its place.
        env={**os.environ, "TXNPRODUCER_IMPL": "python"},
        timeout=3600,
    )
    if done.returncode:
        # A mutant that can't even be imported shows nothing of the judge, nor one it dies of.
        raise RuntimeError(f"{name}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout) if done.stdout.strip() else None


def hunt(mutant: Mutant) -> dict[str, object] | None:
    """Return the checker that catches a mutant within `MOST_SEEDS` seeds, and the seeds used."""
    if mutant.name in OF_A_CHANGING_WORLD:
        return _hunt(mutant, "changing")
    if mutant.name in OF_INTERRUPTED_CALLS:
        return _hunt(mutant, "interrupted")
    if mutant.file in OF_SHARED_TRANSACTIONS:
        return _hunt(mutant, "shared")
    hunts = (
        _hunt(mutant, kind)
        for kind in ("", "many-batches", "late-delivery", "stalled-leaders", "changing")
    )
    return next(filter(None, hunts), None)


def _hunt(mutant: Mutant, kind: str) -> dict[str, object] | None:
    start, end = 1, 1 + MOST_SEEDS
    while start < end:
        count = min(_CHUNK if start > 1 else 3, end - start)
        caught = ask(mutant.name, start, count, kind)
        if caught is None:
            start += count
            continue
        seed = int(str(caught["seed"]))
        if ask("", seed, 1, kind) is None:
            return {**caught, "seeds_needed": seed, "kind": kind}
        start = seed + 1
    return None


def known() -> dict[str, dict[str, Any]]:
    """Return the notes on each mutant."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutation", description=__doc__)
    parser.add_argument("name", nargs="?", help="one mutant")
    parser.add_argument("--all", action="store_true", help="look for those not caught yet")
    parser.add_argument("--refresh", action="store_true", help="look again for all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--run", nargs=3, metavar=("NAME", "FIRST", "COUNT"))
    parser.add_argument("--kind", default="", help="with --run: of every run")
    arguments = parser.parse_args()
    if arguments.run:
        name, first, count = arguments.run
        seeds = range(int(first), int(first) + int(count))
        caught = run_mutant(name, seeds, arguments.kind)
        print(json.dumps(caught) if caught else "")
        return
    results = {} if arguments.refresh else known()
    wanted = [
        m
        for m in all_mutants()
        if (arguments.name == m.name) or (arguments.all and m.name not in results)
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        hunts = {pool.submit(hunt, mutant): mutant for mutant in wanted}
        for done in as_completed(hunts):
            mutant = hunts[done]
            if (broken := done.exception()) is not None:
                print(mutant.name, "BROKEN", broken, flush=True)
                continue
            caught = done.result()
            print(mutant.name, caught, flush=True)
            if caught is not None:
                results[mutant.name] = caught
                RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
