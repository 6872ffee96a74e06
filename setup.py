"""The compiled parts: optional, and no reason for an installation to fail.

Without a C compiler the pure Python twins take over; all else of the package is described in
pyproject.toml. `TXNPRODUCER_IMPL` decides here as it does later: with `python` nothing is
compiled, with `cython` (for whoever builds wheels) what does not compile fails the build.
"""

from __future__ import annotations

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

WANTED = os.environ.get("TXNPRODUCER_IMPL", "").strip().lower()
FLAGS = ["-O3", "-fno-strict-aliasing"]
HEADERS = ["txnproducer/_record/_varint.h", "txnproducer/_record/_murmur2.h"]
# A module, and what it is made of: a source of its own, or the very twin, with types in a .pxd.
SOURCES = {
    "txnproducer._record._speedups": "txnproducer/_record/_speedups.pyx",
    "txnproducer._core._record_future": "txnproducer/_core/record_future.py",
    "txnproducer._core._usual_records": "txnproducer/_core/usual_records.py",
    "txnproducer._usual_send": "txnproducer/_usual_send.pyx",
}
DIRECTIVES = {
    "language_level": 3,
    # A twin's annotations are for mypy; what is typed is said in the .pxd.
    "annotation_typing": False,
    "freethreading_compatible": True,
    "boundscheck": False,
    "wraparound": False,
}


def extensions() -> list[Extension]:
    """Return what is compiled."""
    if WANTED == "python":
        return []
    is_optional = WANTED != "cython"
    return cythonize(  # type: ignore[no-any-return]
        [
            Extension(
                module, [source], extra_compile_args=FLAGS, depends=HEADERS, optional=is_optional
            )
            for module, source in SOURCES.items()
        ],
        compiler_directives=DIRECTIVES,
        quiet=True,
    )


setup(ext_modules=extensions())
