"""Marks of tests that need a part which not every run has."""

from __future__ import annotations

import pytest

from txnproducer._record.implementation import IMPL

NO_COMPILED_PARTS = (
    "this run is of the pure Python parts: `make env` compiles the others,"
    " and TXNPRODUCER_IMPL=python leaves them out"
)
needs_compiled = pytest.mark.skipif(IMPL != "cython", reason=NO_COMPILED_PARTS)
