"""A cluster in memory with each version of transactions, and a client of its coordinators."""

from __future__ import annotations

import threading

import pytest

from tests.spark.coordinator.leases import made
from tests.waiting import becomes_true
from txnproducer.testing import InMemoryKafka


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


@pytest.fixture
def kafka(version):
    with InMemoryKafka({"orders": 20}, nodes=3, transaction_version=version) as cluster:
        yield cluster


@pytest.fixture
def client(kafka):
    with made(kafka.listen()) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_left():
    def threads():
        return {each for each in threading.enumerate() if each.name.startswith("txnproducer")}

    before = threads()
    yield
    becomes_true(lambda: threads() <= before)
    assert threads() <= before
