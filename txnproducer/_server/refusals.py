"""Answers that refuse a request with one error code, without any change in the model.

Owns: the answers, for scripted faults and for clients in the midst of a login. Must not know:
which code fits which request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from txnproducer._protocol import messages as m
from txnproducer._server.api import Ask

_NOWHERE: Final = m.BrokerNode(-1, "", -1)
_NO_CLUSTER: Final = m.MetadataResponse((), ())


def refuse(request: m.Request, code: int, model: Ask) -> m.Response | None:
    """Return the answer that refuses all of a request, or None if it names nothing to refuse.

    Args:
        request: it changes nothing in the cluster.
        code: the error, for each partition or key that the request names.
        model: answers requests that only read.
    """
    # The only one of them that needs the model: its answer also names brokers.
    if isinstance(request, m.MetadataRequest):
        return _topics(request, code, model)
    return _REFUSALS[type(request)](request, code)


def refuse_without_a_word(request: m.Request, code: int) -> m.Response | None:
    """Return the answer that refuses a request and tells nothing about the cluster.

    Args:
        request: of a client that is not logged in.
        code: the error.

    Returns:
        None if the answer has no place for the error.
    """
    answer = refuse(request, code, lambda _: _NO_CLUSTER)
    return _NO_CLUSTER if answer is None and isinstance(request, m.MetadataRequest) else answer


def _topics(request: m.MetadataRequest, code: int, model: Ask) -> m.Response | None:
    # A request for brokers alone has no field that could carry the code.
    if not request.topics:
        return None
    topics = tuple(m.TopicMetadata(name, (), error_code=code) for name in request.topics)
    # The brokers are true: without them a client would take the cluster for one of none.
    answer: m.MetadataResponse = model(m.MetadataRequest(()))
    return replace(answer, topics=topics)


def _coordinator(request: m.FindCoordinatorRequest, code: int) -> m.Response:
    # As brokers answer: an error comes without a node.
    return m.FindCoordinatorResponse((m.Coordinator(request.key, _NOWHERE, code),))


def _partitions(request: m.AddPartitionsToTxnRequest, code: int) -> m.Response | None:
    results = tuple(m.PartitionErrorCode(place, code) for place in request.partitions)
    return m.AddPartitionsToTxnResponse(results) if results else None


def _offsets(request: m.TxnOffsetCommitRequest, code: int) -> m.Response | None:
    results = tuple(m.PartitionErrorCode(place, code) for place, _ in request.offsets)
    return m.TxnOffsetCommitResponse(results) if results else None


def _transactions(request: m.DescribeTransactionsRequest, code: int) -> m.Response | None:
    names = request.transactional_ids
    described = tuple(m.TransactionDescription(code, name, "") for name in names)
    return m.DescribeTransactionsResponse(described) if described else None


def _batches(request: m.ProduceRequest, code: int) -> m.Response | None:
    # The code stands at each partition: the answer has none for the whole request.
    places = (partition.topic_partition for partition in request.partitions)
    refused = tuple(m.ProducePartitionResponse(place, code) for place in places)
    return m.ProduceResponse(refused) if refused else None


_REFUSALS: Final[Mapping[type, Callable[[Any, int], m.Response | None]]] = MappingProxyType(
    {
        m.FindCoordinatorRequest: _coordinator,
        m.InitProducerIdRequest: lambda _, code: m.InitProducerIdResponse(code),
        m.AddPartitionsToTxnRequest: _partitions,
        m.AddOffsetsToTxnRequest: lambda _, code: m.AddOffsetsToTxnResponse(code),
        m.TxnOffsetCommitRequest: _offsets,
        m.EndTxnRequest: lambda _, code: m.EndTxnResponse(code),
        m.DescribeTransactionsRequest: _transactions,
        m.ProduceRequest: _batches,
    }
)
