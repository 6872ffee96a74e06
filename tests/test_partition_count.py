"""A topic that is not there has no partitions; one that may not be looked at is an error."""

from __future__ import annotations

import pytest

from txnproducer.admin import _topics, partition_count
from txnproducer.errors import (
    InvalidTopicError,
    LeaderNotAvailableError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def count(monkeypatch):
    """Return a function that asks a cluster which answers with a code."""

    def ask(code):
        answer = [{"error_code": code, "partitions": [] if code else [0, 1]}]
        monkeypatch.setattr(_topics, "ask", lambda *_, **__: answer)
        return partition_count("servers", "orders")

    return ask


def test_the_partitions_of_a_topic_are_counted(count):
    assert count(0) == 2


@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError, InvalidTopicError])
def test_a_topic_that_is_not_there_has_none(count, error):
    assert count(error.code) is None


@pytest.mark.parametrize("error", [TopicAuthorizationError, LeaderNotAvailableError])
def test_a_topic_that_may_be_there_is_not_taken_for_absent(count, error):
    with pytest.raises(error, match="topic orders"):
        count(error.code)
