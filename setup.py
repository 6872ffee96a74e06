"""The compiled parts, which are optional: an installation never fails because of them.

Without a working C compiler the sources are interpreted, and pure Python twins take over. The rest
of the package is described in pyproject.toml. `TXNPRODUCER_IMPL` decides here as it does at run
time: `python` compiles nothing; `cython`, for release builds, fails the build if a part does not
compile.
"""

from __future__ import annotations

import os
import re
import select
import sysconfig
from multiprocessing import get_start_method
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

WANTED = os.environ.get("TXNPRODUCER_IMPL", "").strip().lower()
IS_OPTIONAL = WANTED != "cython"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# Without the interpreter's own -g: what a debugger needs would be most of a wheel.
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing"]
HEADERS = [
    "txnproducer/_record/_varint.h",
    "txnproducer/_record/_murmur2.h",
    "txnproducer/_record/_record_hash.h",
]
# Written in Cython.
WRITTEN = {
    "txnproducer._record._speedups": "txnproducer/_record/_speedups.pyx",
    "txnproducer._sync._core_lock": "txnproducer/_sync/_core_lock.pyx",
    "txnproducer._shell._fast_send": "txnproducer/_shell/_fast_send.pyx",
}
if hasattr(select, "epoll"):
    # Without epoll (macOS) the loop uses Python's own calls beside the other compiled parts.
    WRITTEN["txnproducer._wire._io_calls"] = "txnproducer/_wire/_io_calls.pyx"
# Compiled as they are, with the types of a .pxd in the folder `compiled`. They lie in a package's
# `_compiled`, where they are found under their own names; so they can be interpreted all the same.
# The rest of the core stays interpreted: compiled, it saves less than 5 % of the CPU time
# (docs/benchmarks-analysis.md, "The compiled modules").
TYPES = "compiled"
BUILD = "build"
AS_THEY_ARE = {
    "txnproducer._record": ("batch_builder",),
    "txnproducer._core.append": ("fast_append",),
    "txnproducer._core.batches": (
        "partition_queues",
        "producer_batch",
        "record_accumulator",
        "record_future",
        "results",
    ),
    "txnproducer._core.sequences": ("partition_map", "sequence_manager"),
    "txnproducer._core.transactions": ("state",),
}
# Several threads read these without a lock. If they were compiled, only the GIL would keep the
# reads whole and in order. Interpreted, the interpreter does.
READ_WITHOUT_LOCK = {"results"}
HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
DIRECTIVES = {
    "language_level": 3,
    # None of them relies on the GIL: see docs/speed.md.
    "freethreading_compatible": True,
    # A source's annotations are for mypy; what is typed is said in the .pxd.
    "annotation_typing": False,
}
UNCHECKED = {"boundscheck": False, "wraparound": False}


# The file alone: to import the package takes the libraries that it depends on.
MARKS = SimpleNamespace(**run_path("txnproducer/_record/compiled_sources.py"))
MARK = MARKS.mark_of_sources(Path())


class BuildAll(build_ext):
    """Build all of them, or none, since they rely on each other."""

    def run(self) -> None:
        """Build, and copy into the source tree if that is wanted."""
        if self.inplace:
            self.drop_stale()
        super().run()
        if self.inplace and self.extensions:
            self.keep_all_or_none()

    def build_extensions(self) -> None:
        """Build on all processors, in the folder for builds."""
        self.parallel = os.cpu_count()
        self.drop_stale()
        super().build_extensions()
        self.keep_all_or_none()

    def paths(self) -> list[Path]:
        """Return the places of the built modules."""
        return [Path(self.get_ext_fullpath(each.name)) for each in self.extensions]

    def drop_stale(self) -> None:
        """Delete modules of other sources: where one does not compile, the old one would stay."""
        for path in self.paths():
            if path.exists() and not MARKS.has_mark(path, MARK):
                path.unlink()

    def keep_all_or_none(self) -> None:
        """Delete the modules if one is missing, and those that only an earlier version compiled.

        The latter would be packaged, and count as compiled parts of other sources.
        """
        built = {path for path in self.paths() if path.exists()}
        kept = built if len(built) == len(self.extensions) else set()
        package = Path(self.get_ext_fullpath("txnproducer._")).parent
        for path in {*built, *package.rglob(f"_compiled/*{SUFFIX}")}.difference(kept):
            path.unlink()


class SourceDistribution(sdist):
    """Pack the types as well, whether or not this machine compiles them."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the packed files. `files` has only those of packages."""
        types = sorted(str(path) for path in Path(TYPES).rglob("*.pxd"))
        super().make_release_tree(base_dir, [*files, *types])


def extensions() -> list[Extension]:
    """Return the extensions to build: all of them, or none."""
    if WANTED == "python":
        return []
    written = compiled(WRITTEN, {**DIRECTIVES, **UNCHECKED})
    names = [
        f"{package}.{module}"
        for package, modules in AS_THEY_ARE.items()
        for module in modules
        if HAS_GIL or module not in READ_WITHOUT_LOCK
    ]
    interpreted = compiled({name: name.replace(".", "/") + ".py" for name in names}, DIRECTIVES)
    for each in interpreted:
        package, _, module = each.name.rpartition(".")
        each.name = f"{package}._compiled.{module}"
    made = [*written, *interpreted]
    # Cython leaves out a source that it cannot translate, unless the build must fail.
    return made if len(made) == len(WRITTEN) + len(names) else []


def drop_stale(source: str) -> None:
    """Delete C of other sources. Cython looks at times, and for types beside the C alone."""
    made = Path(BUILD, source).with_suffix(".c")
    if made.exists() and not MARKS.has_mark(made, MARK):
        made.unlink()
        # Cython copies the headers to the C, if they are newer.
        for header in HEADERS:
            Path(BUILD, header).unlink(missing_ok=True)


def add_mark(made: Path) -> None:
    """Add the mark of the sources to C, and so to the module that is compiled from it."""
    if not MARKS.has_mark(made, MARK):
        with made.open("a", encoding="utf-8") as code:
            code.write(f'\nconst char txnproducer_compiled_from[] = "{MARK}";\n')


def compiled(sources: dict[str, str], directives: dict[str, object]) -> list[Extension]:
    """Translate sources to C, and return their extensions."""
    for source in sources.values():
        drop_stale(source)
    made = cythonize(
        [
            Extension(
                name,
                [source],
                extra_compile_args=FLAGS,
                include_dirs=[str(Path(HEADERS[0]).parent)],
                depends=HEADERS,
            )
            for name, source in sources.items()
        ],
        compiler_directives=directives,
        include_path=[TYPES],
        # Generated C does not belong into the package.
        build_dir=BUILD,
        exclude_failures=IS_OPTIONAL,
        quiet=True,
        # With another start method each worker process would run this file again.
        nthreads=(os.cpu_count() or 1) if get_start_method() == "fork" else 0,
    )
    for each in made:
        add_mark(Path(each.sources[0]))
        # Set here, because cythonize makes new extensions and does not keep it.
        each.optional = IS_OPTIONAL
    return made  # type: ignore[no-any-return]


def description() -> str:
    """Return the README without its links into the checkout, which a package index would break."""
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"\[(\S+)\]\(\1\)", r"`\1`", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)", r"\1 (`\2`)", text)


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildAll, "sdist": SourceDistribution},
    long_description=description(),
    long_description_content_type="text/markdown",
)
