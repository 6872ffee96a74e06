"""Connections over pairs of sockets, closed after the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.wire.wire_pair import Wire


@pytest.fixture
def open_wire() -> Iterator[Callable[..., Wire]]:
    with contextlib.ExitStack() as stack:

        def make(**options: int) -> Wire:
            wire = Wire(**options)
            stack.callback(wire.close)
            return wire

        yield make


@pytest.fixture
def wire(open_wire: Callable[..., Wire]) -> Wire:
    return open_wire()
