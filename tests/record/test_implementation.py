"""Which implementation of the batch builder runs, and who decides it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import txnproducer._record as record
from txnproducer._record.batch_builder import RecordBatchBuilder


@pytest.mark.parametrize("wanted", [None, "", "python", " Python "])
def test_python_is_the_implementation_unless_another_is_asked_for(wanted):
    assert record.implementation_name(wanted) == "python"
    assert record.load_builder("python") is RecordBatchBuilder


def test_cython_can_be_asked_for():
    assert record.implementation_name("cython") == "cython"


def test_an_implementation_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ImportError, match=r"TXNPRODUCER_IMPL must be python or cython, not 'rust'"
    ):
        record.implementation_name("rust")


def test_an_implementation_that_is_not_installed_says_how_to_go_on(monkeypatch):
    def nothing_there(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(record, "import_module", nothing_there)

    with pytest.raises(ImportError, match=r"TXNPRODUCER_IMPL=cython asks .* unset it"):
        record.load_builder("cython")


def test_the_environment_decides_at_import():
    script = "import txnproducer._record as r; print(r.IMPL, r.RecordBatchBuilder.__module__)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"TXNPRODUCER_IMPL": "python"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert run.stdout.split() == ["python", "txnproducer._record.batch_builder"]


def test_the_readers_names_are_exported():
    module = importlib.import_module("txnproducer._record")

    assert all(hasattr(module, name) for name in module.__all__)
