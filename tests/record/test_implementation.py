"""Which implementation encodes records, and who decides it."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys

import pytest

from txnproducer._record import implementation


def no_compiled_parts(name):
    if name == "txnproducer._record._speedups":
        raise ModuleNotFoundError(f"No module named {name!r}")
    return importlib.import_module(name)


def any_parts(name):
    return None


@pytest.mark.parametrize("wanted", ["python", " Python "])
def test_python_can_be_asked_for(wanted):
    assert implementation.implementation_name(wanted) == "python"


@pytest.mark.parametrize("wanted", [None, "", "cython"])
def test_the_compiled_one_is_taken_where_there_is_one(monkeypatch, wanted):
    monkeypatch.setattr(implementation, "import_module", any_parts)
    assert implementation.implementation_name(wanted) == "cython"


def test_the_python_one_takes_over_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(implementation, "import_module", no_compiled_parts)
    with caplog.at_level(logging.INFO):
        assert implementation.implementation_name(None) == "python"
    (record,) = caplog.records
    assert "without its compiled parts" in record.message


def test_an_implementation_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ImportError, match=r"TXNPRODUCER_IMPL must be python or cython, not 'rust'"
    ):
        implementation.implementation_name("rust")


def test_an_implementation_that_is_not_installed_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(implementation, "import_module", no_compiled_parts)
    with pytest.raises(ImportError, match=r"TXNPRODUCER_IMPL=cython asks .* unset it"):
        implementation.implementation_name("cython")


def test_the_environment_decides_at_import():
    script = "import txnproducer._record as r; print(r.IMPL, r.RecordBatchBuilder.buffer_class)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"TXNPRODUCER_IMPL": "python"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    name, _, buffer_class = run.stdout.partition(" ")
    assert name == "python"
    assert "txnproducer._record.record_buffer" in buffer_class


def test_the_readers_names_are_exported():
    module = importlib.import_module("txnproducer._record")

    assert all(hasattr(module, name) for name in module.__all__)
