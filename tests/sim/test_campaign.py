"""The fingerprint of a campaign covers all judged code, and a broken judge fails its seed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txnproducer
from tests.sim.compiled import copy_sources
from txnproducer._core.sending import sender
from txnproducer.sim import campaign, run_seed
from txnproducer.sim.campaign import Totals, judged_files, run_seeds

PACKAGE = Path(txnproducer.__file__).parent


def imported_files(path: Path) -> set[Path]:
    """Return the package's files that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("txn"):
            continue
        place = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
        names = [place / alias.name for alias in node.names]
        candidates = [
            place / "__init__.py",
            *(name.with_suffix(".py") for name in [place, *names]),
        ]
        found |= {candidate for candidate in candidates if candidate.is_file()}
    return found


def test_the_fingerprint_covers_all_that_the_judged_code_imports():
    judged = set(judged_files())
    imported = set().union(*map(imported_files, judged))
    assert {PACKAGE / "errors" / "__init__.py", PACKAGE / "records.py"} < imported
    # The package itself imports everything, and decides nothing.
    assert imported - judged - {PACKAGE / "__init__.py"} == set()


def test_the_fingerprint_changes_with_each_judged_file(monkeypatch):
    whole = campaign.fingerprint()
    files = judged_files()
    names = {path.relative_to(PACKAGE).as_posix() for path in files}
    assert {"errors/kinds.py", "records.py", "config/_settings.py"} < names
    monkeypatch.setattr(campaign, "judged_files", lambda: files[1:])
    assert campaign.fingerprint() != whole


def test_the_fingerprint_changes_with_the_sources_of_the_compiled_parts(monkeypatch):
    whole = campaign.fingerprint()
    names = {path.name for path in campaign._files(campaign._COMPILED_FROM)}
    assert {"_speedups.pyx", "_varint.h", "producer_batch.pxd"} < names
    monkeypatch.setattr(campaign, "_COMPILED_FROM", ())
    assert campaign.fingerprint() != whole


@pytest.mark.parametrize(
    ("impl", "module", "told"),
    [
        ("python", "sender.py", "python"),
        ("cython", "sender.py", "cython"),
        ("python", "sender.so", "mypyc"),
    ],
)
def test_the_fingerprint_says_how_the_code_ran(monkeypatch, impl, module, told):
    monkeypatch.setattr(campaign, "IMPL", impl)
    monkeypatch.setattr(sender, "__file__", module)
    assert campaign.fingerprint().endswith(f"-{told}")


def test_the_copy_that_is_compiled_has_the_version_of_its_sources(tmp_path):
    copy_sources(tmp_path)
    asked = "from txnproducer.sim.campaign import fingerprint; print(fingerprint())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TXNPRODUCER_IMPL": "python"}
    told = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.partition("-")[0] == campaign.fingerprint().partition("-")[0]


def test_an_error_in_the_judge_is_a_failure_of_that_seed(monkeypatch):
    def broken_at_seven(seed):
        if seed == 7:
            raise KeyError("no such attempt")
        return run_seed(1)

    monkeypatch.setattr(campaign, "run_seed", broken_at_seven)
    totals = run_seeds([6, 7, 8])
    assert totals.seeds == 3
    ((seed, checker, text),) = totals.failures
    assert (seed, checker) == (7, "crash")
    assert text.startswith("KeyError: 'no such attempt' (test_campaign.py, line ")


def test_totals_survive_the_results_file():
    totals = run_seeds([1])
    totals.seconds = 1.25
    totals.failures.append((1, "order", "two before one"))
    assert Totals.from_json(totals.to_json()) == totals
