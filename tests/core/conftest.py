"""Fixtures of the core's tests."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

LOGGER = "txnproducer._core.failed_tries"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function for the warnings of failed tries so far."""
    caplog.set_level(logging.WARNING, LOGGER)
    return lambda: [r.getMessage() for r in caplog.records if r.name == LOGGER]
