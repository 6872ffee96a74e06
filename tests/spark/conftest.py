"""Fixtures of several tests of the sink without Spark."""

from __future__ import annotations

import pytest


@pytest.fixture
def whole(monkeypatch):
    """Return a maker of `BatchTransactions` with fakes, and the log of all that happens."""
    # Only here: it needs xxhash, which tests of other modules may be without.
    from tests.spark.whole_batches import fake_batches

    return fake_batches(monkeypatch)
