"""A session with a consumer of the tests. Tests of confluent-kafka are left out without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.session.consumers import Consumer, joined

# There are no wheels for a free-threaded interpreter.
collect_ignore = [] if find_spec("confluent_kafka") else ["test_confluent.py"]


@pytest.fixture
def consumer():
    return Consumer()


@pytest.fixture
def session(consumer, ready):
    return joined(consumer, ready)
