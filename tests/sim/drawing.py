"""Draws mutants that nobody thought of: `python -m tests.sim.drawing --count 10 --seed 1`.

Why it exists: bugs chosen by hand are those that the checkers were written for. Cosmic Ray knows
nothing of either. (It is no dependency of the tests: `pip install cosmic-ray` where you draw.)
Owns: the files that are drawn from, which are the core's, or with `--of stack` those around it,
and the short text that tells mutants apart. Must not know: what catches a mutant.

Each place that an operator fits is as likely as any other, and so is each operator that fits it.
Left out is what can't matter, or shows by itself: texts, log lines, annotations, metrics, what can
not even be imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.ast
import cosmic_ray.mutating
import cosmic_ray.plugins

from tests.sim.mutants import Mutant
from tests.sim.mutation import DRAWN, PACKAGE, ROOT, STACK_DRAWN


class Pool(NamedTuple):
    """The files that mutants are drawn from.

    Attributes:
        patterns: of the files, in the package.
        left_out: the names of the files among them that are not drawn from.
        module: is imported to see whether a mutant can be.
        drawn: the file of the mutants that were drawn.
    """

    patterns: tuple[str, ...]
    left_out: frozenset[str]
    module: str
    drawn: Path


POOLS: Mapping[str, Pool] = {
    # Counting decides nothing, and interfaces do nothing. Any partition is as good as any other
    # for exactly once. Which one a key gets is compared with Java's in the partitioner's tests.
    "core": Pool(
        ("_core/**/*.py",),
        frozenset({"__init__.py", "metrics.py", "partitioner.py", "ports.py"}),
        "txnproducer.sim.simulator",
        DRAWN,
    ),
    # The files left out make system calls, or use other libraries. No virtual time runs them.
    "stack": Pool(
        ("_shell/*.py", "_wire/*.py", "producer.py", "transaction.py"),
        frozenset(
            {"__init__.py", "io_calls.py", "kafka_python.py", "sasl_mechanisms.py", "tls.py"}
        ),
        "txnproducer.sim.stack.run",
        STACK_DRAWN,
    ),
}
# They need arguments, or break a property at once.
_OPERATORS_LEFT_OUT = {"VariableInserter", "VariableReplacer", "RemoveDecorator"}
_SAME_BUT_FOR_IDENTITY = ("_Is", "_IsNot")
_LONGEST_SHOWN = 160


def _operators() -> Iterator[str]:
    for name in sorted(cosmic_ray.plugins.operator_names()):
        short = name.removeprefix("core/")
        from_identity = short.removeprefix("ReplaceComparisonOperator_").startswith(
            ("Is_", "IsNot_")
        )
        is_about_identity = short.endswith(_SAME_BUT_FOR_IDENTITY) or from_identity
        negates = short.endswith(("_Is_IsNot", "_IsNot_Is"))
        if short not in _OPERATORS_LEFT_OUT and (negates or not is_about_identity):
            yield name


def _places(source: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return the places where operators fit, each with the operators and their occurrences."""
    nodes = list(cosmic_ray.ast.ast_nodes(cosmic_ray.ast.get_ast(source)))
    places = defaultdict(list)
    for name in _operators():
        operator = cosmic_ray.plugins.get_operator(name)()
        occurrence = 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                places[start].append((name, occurrence))
                occurrence += 1
    return places


def _lines_left_out(source: str) -> set[int]:
    """Return the lines that only make texts, and decorators."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign)
        is_log = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "_LOG"
        )
        is_repr = isinstance(node, ast.FunctionDef) and node.name == "__repr__"
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            left_out.update(decorator.lineno for decorator in node.decorator_list)
        if isinstance(node, ast.stmt | ast.expr) and (is_text or is_log or is_repr):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return left_out


class _WithoutTexts(ast.NodeTransformer):
    """A transformer that takes annotations out, which an interpreter ignores."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _code(source: str) -> str:
    return ast.dump(_WithoutTexts().visit(ast.parse(source)))


def _difference(source: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, with as many before them as make their text unique."""
    before, after = source.splitlines(keepends=True), mutated.splitlines(keepends=True)
    first = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    same_at_end = 0
    while before[-1 - same_at_end] == after[-1 - same_at_end]:
        same_at_end += 1
    ends = len(before) - same_at_end, len(after) - same_at_end
    while source.count("".join(before[first : ends[0]])) > 1:
        first -= 1
    return "".join(before[first : ends[0]]), "".join(after[first : ends[1]])


def _function_of(source: str, line: int) -> str:
    names = [
        (node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or line)
    ]
    return max(names, default=(0, "the module"))[1]


def _mutant(file: str, source: str, line: int, operator: str, occurrence: int) -> Mutant | None:
    """Return a mutant, or None where it would be none."""
    made = cosmic_ray.plugins.get_operator(operator)()
    mutated = cosmic_ray.mutating.mutate_code(source, made, occurrence)
    try:
        if mutated is None or _code(mutated) == _code(source):
            return None
    except SyntaxError:
        return None
    old, new = _difference(source, mutated)
    short = operator.removeprefix("core/")
    name = f"{short} in {file.removesuffix('.py')}:{_function_of(source, line)}"
    shown = " ".join(new.splitlines()[-1].split()).replace("|", "\\|")
    return Mutant(f"{name}", file, old, new, f"`{shown[:_LONGEST_SHOWN]}`")


def _can_be_imported(mutant: Mutant, module: str) -> bool:
    """Try, in an interpreter of its own."""
    script = (
        "import json, sys\n"
        "from tests.sim.mutation import install\n"
        "from tests.sim.mutants import Mutant\n"
        "install(Mutant(**json.load(sys.stdin)))\n"
        f"import {module}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(mutant._asdict()),
        cwd=ROOT,
        env={**os.environ, "TXNPRODUCER_IMPL": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0


def draw(seed: int, pool: Pool) -> Iterator[Mutant]:
    """Draw mutants one after the other, the same ones for the same seed and files."""
    rng = random.Random(f"mutants {seed}")
    sources = {
        str(path.relative_to(PACKAGE)): path.read_text("utf-8")
        for path in sorted(path for each in pool.patterns for path in PACKAGE.glob(each))
        if path.name not in pool.left_out
    }
    places = []
    for file, source in sources.items():
        left_out = _lines_left_out(source)
        places += [
            (file, place, fitting)
            for place, fitting in sorted(_places(source).items())
            if place[0] not in left_out
        ]
    rng.shuffle(places)
    names: set[str] = set()
    for file, place, fitting in places:
        operator, occurrence = rng.choice(fitting)
        mutant = _mutant(file, sources[file], place[0], operator, occurrence)
        if mutant is None or mutant.name in names:
            continue
        if _can_be_imported(mutant, pool.module):
            names.add(mutant.name)
            yield mutant


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.drawing", description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="NAME", help="shown to change nothing"
    )
    parser.add_argument("--of", choices=sorted(POOLS), default="core", help="the files")
    parser.add_argument("--write", action="store_true", help="the file of the tests")
    arguments = parser.parse_args()
    pool = POOLS[arguments.of]
    drawn: list[Mutant] = []
    for mutant in draw(arguments.seed, pool):
        if len(drawn) == arguments.count:
            break
        if mutant.name not in arguments.without:
            drawn.append(mutant)
            print(f"{mutant.name}\n- {mutant.old.rstrip()}\n+ {mutant.new.rstrip()}\n")  # noqa: T201
    if arguments.write:
        texts = [mutant._asdict() for mutant in drawn]
        pool.drawn.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
