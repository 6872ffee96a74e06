"""Marks of tests that need a part which not every run has."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from txnproducer._record.implementation import IMPL

NO_COMPILED_PARTS = (
    "this run is of the pure Python parts: `make env` compiles the others,"
    " and TXNPRODUCER_IMPL=python leaves them out"
)
needs_compiled = pytest.mark.skipif(IMPL != "cython", reason=NO_COMPILED_PARTS)
in_python = pytest.mark.skipif(
    IMPL != "python",
    reason="virtual time needs the parts in Python: run with TXNPRODUCER_IMPL=python",
)


def why_nothing_can_be_compiled() -> str:
    """Return the tools that are missing for compiling, or nothing."""
    command, *_ = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(command) is None:
        return f"there is no C compiler ({command}): install one, as gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return ""
    return f"there is no {header}: install the headers of this interpreter"


needs_compiler = pytest.mark.skipif(
    bool(why_nothing_can_be_compiled()), reason=why_nothing_can_be_compiled()
)
