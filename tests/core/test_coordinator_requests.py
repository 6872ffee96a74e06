"""In which order the requests to coordinators leave their queue."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.core.txn_driver import GROUP, PRODUCER, TP0, TxnDriver
from txnproducer._core.transactions.coordinator_requests import (
    CoordinatorRequests,
    TxnRequestQueue,
)
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.requests import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
)
from txnproducer._protocol.messages import BrokerNode, CoordinatorType
from txnproducer.records import OffsetAndMetadata

RESULT = TransactionalRequestResult("operation")


def of_each_kind():
    """Return a request of each kind, in the order in which they have to go."""
    progress = TxnDriver().manager.progress
    commit = TxnOffsetCommitHandler(
        progress, RESULT, {TP0: OffsetAndMetadata(1)}, GROUP, is_transaction_v2_enabled=False
    )
    return {
        "look-up": FindCoordinatorHandler(progress, "t", CoordinatorType.TRANSACTION),
        "first id": InitProducerIdHandler(progress, RESULT),
        "partitions": AddPartitionsToTxnHandler(progress, frozenset({TP0})),
        "offsets": AddOffsetsToTxnHandler(progress, commit),
        "offsets' commit": commit,
        "end": EndTxnHandler(progress, RESULT, is_commit=True, is_transaction_v2_enabled=False),
        "bump": InitProducerIdHandler(
            progress, RESULT, current=PRODUCER, on_bump_end=lambda: None
        ),
    }


def leave(queue):
    return [queue.pop() for _ in range(len(queue))]


@pytest.mark.conformance("3.02")
@pytest.mark.parametrize("middle", ["partitions", "offsets", "offsets' commit"])
def test_requests_leave_the_queue_by_priority_and_not_by_arrival(middle):
    names = ["look-up", "first id", middle, "end", "bump"]
    for order in permutations(names):
        handlers = of_each_kind()
        queue = TxnRequestQueue()
        for name in order:
            queue.push(handlers[name])
        assert queue.peek() is handlers["look-up"]
        assert leave(queue) == [handlers[name] for name in names]


@pytest.mark.conformance("3.02")
def test_partitions_and_offsets_go_in_the_order_in_which_they_were_first_queued():
    for order in permutations(["partitions", "offsets", "offsets' commit"]):
        handlers = of_each_kind()
        queue = TxnRequestQueue()
        for name in order:
            queue.push(handlers[name])
        queue.push(queue.pop())  # one that is repeated keeps its place
        assert leave(queue) == [handlers[name] for name in order]


def test_each_of_many_coordinators_is_logged_and_not_remembered_for_ever(caplog):
    caplog.set_level("INFO")
    requests = CoordinatorRequests("producer", lambda key, key_type: pytest.fail(f"{key_type}"))
    node = BrokerNode(1, "broker", 9092)
    for number in range(250):
        for _ in range(2):
            requests.coordinator_found(CoordinatorType.GROUP, f"group-{number}", node)
    assert len(caplog.messages) == 250
    assert len(requests._logged) <= 100
