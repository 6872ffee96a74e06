"""The environment and the installation decide which implementation encodes records."""

from __future__ import annotations

import ast
import importlib
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.needs import needs_compiled, needs_compiler
from txnproducer._record import implementation
from txnproducer._record.compiled_sources import (
    is_checkout,
    mark_of_sources,
    module_of_other_sources,
)
from txnproducer.sim.apps.interrupts import COUNTED_MODULES

ROOT = Path(__file__).parent.parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def no_compiled_parts(name):
    if name == "txnproducer._record._speedups":
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
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
    assert implementation.implementation_name(None) == "python"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "without its compiled parts" in record.message


def test_compiled_parts_that_cannot_be_loaded_are_no_silent_loss(monkeypatch):
    def broken_parts(name):
        raise ImportError("undefined symbol: PyOld_Name", name=name)

    monkeypatch.setattr(implementation, "import_module", broken_parts)
    with pytest.warns(RuntimeWarning, match="does not use its compiled parts .*PyOld_Name"):
        assert implementation.implementation_name(None) == "python"


def test_an_implementation_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ImportError, match=r"TXNPRODUCER_IMPL must be python or cython, not 'rust'"
    ):
        implementation.implementation_name("rust")


def test_an_implementation_that_is_not_installed_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(implementation, "import_module", no_compiled_parts)
    with pytest.raises(ImportError, match=r"TXNPRODUCER_IMPL=cython demands .* unset it"):
        implementation.implementation_name("cython")


SOURCES = [
    "txnproducer/_core/batches/results.py",
    "compiled/txnproducer/_core/batches/results.pxd",
    "txnproducer/_shell/_fast_send.pyx",
    "txnproducer/_record/_varint.h",
]
COMPILED = [
    f"txnproducer/_core/batches/_compiled/results{SUFFIX}",
    f"txnproducer/_shell/_fast_send{SUFFIX}",
]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a checkout with compiled parts that were made of its sources."""
    for name in [*SOURCES, *COMPILED]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in COMPILED:
        (tmp_path / name).write_text(f"code {mark_of_sources(tmp_path)} code")
    monkeypatch.setattr(implementation, "import_module", any_parts)
    monkeypatch.setattr(implementation, "_ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_has_changed_is_not_passed_over(checkout, source):
    assert implementation.implementation_name(None) == "cython"

    (checkout / source).write_text("changed")
    os.utime(checkout / source, (1_000, 1_000))  # as after a copy that keeps times

    other = rf"\.so was made of other sources than those in {checkout}"
    with pytest.warns(RuntimeWarning, match=other):
        assert implementation.implementation_name(None) == "python"
    with pytest.raises(ImportError, match=f"demands .*{other}"):
        implementation.implementation_name("cython")
    assert implementation.implementation_name("python") == "python"


@pytest.mark.parametrize("compiled", COMPILED)
def test_one_compiled_part_of_another_build_is_not_used(checkout, compiled):
    (checkout / compiled).write_text("code txnproducer compiled from 00000000 code")
    with pytest.warns(RuntimeWarning, match=f"{Path(compiled).name} was made of other sources"):
        assert implementation.implementation_name(None) == "python"


def test_a_source_that_was_only_touched_has_not_changed(checkout):
    later = time.time() + 1_000  # as after a change of branches and back
    for name in SOURCES:
        os.utime(checkout / name, (later, later))
    assert implementation.implementation_name(None) == "cython"


def test_compiled_parts_of_another_interpreter_do_not_count(checkout):
    name = "results.cpython-27-any.so"
    (checkout / "txnproducer/_core/batches/_compiled" / name).write_text("code")
    assert implementation.implementation_name(None) == "cython"


def test_an_installed_copy_may_have_any_sources(checkout):
    shutil.rmtree(checkout / "compiled")
    for name in COMPILED:
        (checkout / name).write_text("code")
    assert implementation.implementation_name(None) == "cython"


@needs_compiled
def test_the_compiled_parts_in_use_have_the_mark_of_their_sources():
    path = Path(str(importlib.import_module("txnproducer._record._speedups").__file__))
    if is_checkout(path.parent.parent.parent):
        assert module_of_other_sources(path.parent.parent.parent) is None
    assert b"txnproducer compiled from " in path.read_bytes()


@pytest.mark.skipif(
    os.environ.get("TXNPRODUCER_IMPL", "").strip().lower() == "python",
    reason="TXNPRODUCER_IMPL=python asks for the pure Python parts",
)
@needs_compiler
def test_a_run_of_these_tests_is_not_silently_of_the_python_parts():
    # Else both runs of `make unit` would be of the same code, and say nothing of the other.
    assert implementation.IMPL == "cython", (
        "there is a C compiler, and no compiled parts: what did not compile? `make env` makes"
        " them, and TXNPRODUCER_IMPL=cython then says what is wrong"
    )


def test_modules_are_looked_for_among_the_compiled_ones_first(monkeypatch):
    monkeypatch.setattr(implementation, "IMPL", "cython")
    assert implementation.places_of_modules(["a"]) == ["a/_compiled", "a"]
    monkeypatch.setattr(implementation, "IMPL", "python")
    assert implementation.places_of_modules(["a"]) == ["a"]


def said_in_setup_py(name):
    """Return the object that a name stands for there."""
    setup = ast.parse((ROOT / "setup.py").read_text("utf-8"))
    (said,) = (
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return said


def test_compiled_modules_say_that_they_do_without_the_gil():
    assert said_in_setup_py("DIRECTIVES")["freethreading_compatible"] is True


def test_modules_read_without_a_lock_can_be_left_interpreted():
    # No other compiled module may need its types.
    left = said_in_setup_py("READ_WITHOUT_LOCK")
    assert left < {name for names in said_in_setup_py("AS_THEY_ARE").values() for name in names}
    sources = [*(ROOT / "compiled").rglob("*.pxd"), *(ROOT / "txnproducer").rglob("*.pyx")]
    assert len(sources) > len(left)
    for types in sources:
        for module in left:
            assert f".{module} cimport" not in types.read_text("utf-8"), types


def test_modules_whose_calls_the_simulator_counts_are_never_compiled():
    # A seed would mean another run there: compiled calls are not counted.
    packages = said_in_setup_py("AS_THEY_ARE").items()
    compiled = {f"{package}.{module}" for package, modules in packages for module in modules}
    assert compiled.isdisjoint(COUNTED_MODULES)
    for name in COUNTED_MODULES:
        assert ROOT.joinpath(*name.split(".")).with_suffix(".py").exists(), name


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"),
    reason="needs a free-threaded interpreter, as python3.14t",
)
def test_importing_everything_leaves_the_gil_off():
    script = "import sys, txnproducer.testing; print(sys._is_gil_enabled())"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "False\n"


@needs_compiled
def test_modules_compiled_as_they_are_are_those_that_setup_py_lists():
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    interpreted = set() if has_gil else said_in_setup_py("READ_WITHOUT_LOCK")
    for package, modules in said_in_setup_py("AS_THEY_ARE").items():
        for module in set(modules) - interpreted:
            path = importlib.import_module(f"{package}.{module}").__file__
            assert path is not None
            assert path.endswith(".so"), f"{package}.{module}"


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
