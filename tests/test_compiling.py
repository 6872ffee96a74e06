"""The build in a checkout makes modules of the present sources, or leaves none of other sources.

It runs as `setup.py` says, but of two small sources: compiling all takes a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs_compiler
from txnproducer._record.compiled_sources import sources

pytestmark = needs_compiler

ROOT = Path(__file__).parent.parent
SMALL = {
    "WRITTEN": {"txnproducer._record._speedups": "txnproducer/_record/_speedups.pyx"},
    "AS_THEY_ARE": {"txnproducer.core": ("small",)},
    "HEADERS": ["txnproducer/_record/_small.h"],
}
VALUES = "import small, _speedups; print([small.value(), _speedups.fast()])"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a checkout of two small sources, compiled."""
    checkout = tmp_path_factory.mktemp("compiled")
    setup = (ROOT / "setup.py").read_text("utf-8")
    setup = re.sub(r"\nif hasattr\(select.*?\n(?=#)", "\n", setup, flags=re.DOTALL)
    for name, value in SMALL.items():
        setup, count = re.subn(
            rf"^{name} = .*?^[}}\]]$", f"{name} = {value}", setup, flags=re.DOTALL | re.MULTILINE
        )
        assert count == 1, name
    files = {
        "setup.py": setup,
        "README.md": "Small.",
        "pyproject.toml": (
            '[project]\nname = "small"\nversion = "1"\ndynamic = ["readme"]\n'
            '[tool.setuptools.packages.find]\ninclude = ["txnproducer*"]\n'
        ),
        "txnproducer/__init__.py": "",
        "txnproducer/_record/__init__.py": "",
        "txnproducer/_record/_speedups.pyx": (
            'cdef extern from "_small.h":\n    int SMALL\ndef fast():\n    return SMALL\n'
        ),
        "txnproducer/_record/_small.h": "#define SMALL 1\n",
        "txnproducer/core/__init__.py": "",
        "txnproducer/core/_compiled/__init__.py": "",
        "txnproducer/core/small.py": "def value():\n    return 1\n",
        "compiled/txnproducer/__init__.pxd": "",
        "compiled/txnproducer/core/__init__.pxd": "",
        "compiled/txnproducer/core/small.pxd": "cpdef int value()\n",
    }
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text, "utf-8")
    name = "compiled_sources.py"
    shutil.copy(ROOT / "txnproducer" / "_record" / name, checkout / "txnproducer" / "_record")
    build(checkout)
    assert values(checkout) == "[1, 1]"
    return checkout


@pytest.fixture
def checkout(compiled, tmp_path):
    """Return a copy of the compiled checkout, for one test."""
    return shutil.copytree(compiled, tmp_path / "checkout")


def build(checkout: Path, **environment: str) -> None:
    """Compile in place."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=checkout,
        env={**os.environ, "TXNPRODUCER_IMPL": "", **environment},
        capture_output=True,
        timeout=100,
        check=True,
    )


def values(checkout: Path) -> str:
    """Return the values of the compiled modules. The sources are not in the path."""
    folders = ["txnproducer/core/_compiled", "txnproducer/_record"]
    run = subprocess.run(
        [sys.executable, "-c", VALUES],
        env={"PYTHONPATH": ":".join(str(checkout / folder) for folder in folders)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return run.stdout.strip()


def write(checkout: Path, name: str, text: str) -> None:
    """Change a source and keep its time, as a copy of another version may."""
    times = (checkout / name).stat()
    (checkout / name).write_text(text, "utf-8")
    os.utime(checkout / name, (times.st_atime, times.st_mtime))


def modules(checkout: Path) -> list[Path]:
    """Return the compiled modules in the source tree."""
    return sorted((checkout / "txnproducer").rglob("*.so"))


def test_changed_sources_are_compiled_again_even_if_their_times_are_old(checkout):
    write(checkout, "txnproducer/core/small.py", "def value():\n    return 2\n")
    write(checkout, "txnproducer/_record/_small.h", "#define SMALL 2\n")

    build(checkout)

    assert values(checkout) == "[2, 2]"


def test_a_build_of_unchanged_sources_compiles_nothing(checkout):
    made = [*modules(checkout), *(checkout / "build").rglob("*.c")]
    before = [path.stat().st_mtime_ns for path in made]
    assert len(before) == 4

    build(checkout)

    assert [path.stat().st_mtime_ns for path in made] == before


def test_a_build_that_fails_leaves_no_module_of_other_sources(checkout):
    write(checkout, "txnproducer/_record/_small.h", "#define SMALL no number\n")

    build(checkout)

    assert modules(checkout) == []


def test_a_build_without_a_compiler_leaves_no_module_of_other_sources(checkout):
    write(checkout, "txnproducer/core/small.py", "def value():\n    return 2\n")

    build(checkout, CC="/no/compiler")

    assert modules(checkout) == []


def test_make_compiles_again_after_a_change_of_any_source():
    given = ["make", "--no-print-directory", "--eval=shown: ; @echo $(COMPILED)", "shown"]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, check=True)
    known = set(done.stdout.split())
    assert {path.relative_to(ROOT).as_posix() for path in sources(ROOT)} <= known
