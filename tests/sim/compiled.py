"""Compile the simulated world for long campaigns: `python -m tests.sim.compiled FOLDER`.

Why it exists: a hundred million requests take an interpreter all night. mypyc compiles the very
sources, which are typed throughout, and runs them about twice as fast.
Owns: the copy of the package in FOLDER, compiled, and the proof that it runs as the sources do:
some seeds have to send as much, meet the same faults and take the same virtual time in both.
Must not know: what a campaign is. `make sim-compiled` runs one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_COMPILED = ("_core", "_broker", "_protocol", "_record", "sim")
_SEEDS_COMPARED = 40
# So are those that choose implementations as they are imported: mypyc takes their types at their
# word, and to it that choice is unreachable. Futures are made without their constructor.
_LEFT_OUT = {"__init__.py", "record_future.py"}
# The whole stack runs as sources, for its shell does; and mypyc makes `_thread` a word of C.
_NEVER_COMPILED = "stack"
_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(sys.argv[1:], opt_level="2", debug_level="0", multi_file=True)
arguments = ["build_ext", "--inplace", "--parallel=2", "--quiet"]
# The readme is said here, since pyproject.toml leaves it to setup.py, which is not copied.
described = {"packages": [], "long_description": "-"}
setup(name="txnproducer", **described, ext_modules=extensions, script_args=arguments)
"""
_RUN = f"""
import json
from txnproducer._core.sending import sender
from txnproducer.sim.campaign import run_seeds

totals = [run_seeds([seed]).to_json() for seed in range({_SEEDS_COMPARED})]
print(json.dumps([sender.__file__.endswith(".py"), totals]))
"""


def copy_sources(folder: Path) -> None:
    """Copy the package to a folder, with all files that make its version.

    The types of Cython's modules are not used here. Without them the copy would have another
    version than the checkout, and its results would count for no sources.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    for name in ("txnproducer", "compiled"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)


def modules_of(folder: Path) -> list[str]:
    """Return the paths of the modules to compile, in a copy of the package, relative to it."""
    return [
        str(path.relative_to(folder))
        for package in _COMPILED
        for path in sorted((folder / "txnproducer" / package).rglob("*.py"))
        if path.name not in _LEFT_OUT
        and path.parent.name != _NEVER_COMPILED
        and "= chosen(" not in path.read_text("utf-8")
    ]


def build(folder: Path) -> None:
    """Copy the package to a folder, and compile it there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_sources(folder)
    build_it = [sys.executable, "-c", _BUILD, *modules_of(folder)]
    # mypyc says on the standard output why it does not compile.
    subprocess.run(build_it, cwd=folder, check=True, stdout=sys.stderr)


def what_seeds_show(folder: Path) -> tuple[bool, object]:
    """Return whether the package in a folder is interpreted, and the results of some seeds."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=folder,
        # Compared with what is interpreted; the parts that users have compiled are not copied.
        env={**os.environ, "PYTHONPATH": str(folder), "TXNPRODUCER_IMPL": "python"},
        capture_output=True,
        text=True,
        check=True,
    )
    is_interpreted, totals = json.loads(done.stdout)
    return is_interpreted, totals


def main() -> None:
    """Compile, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    build(folder)
    is_interpreted, compiled = what_seeds_show(folder)
    if is_interpreted:
        sys.exit("the core was not compiled")
    if what_seeds_show(ROOT) != (True, compiled):
        sys.exit("compiled, the simulator does not run as its sources do")
    sys.stdout.write(f"compiled to {folder}; {_SEEDS_COMPARED} seeds run as interpreted\n")


if __name__ == "__main__":
    main()
