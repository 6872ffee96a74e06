"""Answers that refuse a request with one error code, before the model has seen it.

Owns: `refuse`, for scripted faults. Must not know: which code fits which request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from txnproducer._protocol import messages as m

_NOWHERE: Final = m.BrokerNode(-1, "", -1)


def refuse(request: m.Request, code: int) -> m.Response:
    """Return the answer that refuses all of a request.

    Args:
        request: it changes nothing in the cluster.
        code: the error, for each partition or key that the request names.
    """
    return _REFUSALS[type(request)](request, code)


def _topics(request: m.MetadataRequest, code: int) -> m.Response:
    topics = (m.TopicMetadata(name, (), error_code=code) for name in request.topics)
    return m.MetadataResponse((), tuple(topics))


def _coordinator(request: m.FindCoordinatorRequest, code: int) -> m.Response:
    return m.FindCoordinatorResponse((m.Coordinator(request.key, _NOWHERE, code),))


def _partitions(request: m.AddPartitionsToTxnRequest, code: int) -> m.Response:
    results = (m.PartitionErrorCode(place, code) for place in request.partitions)
    return m.AddPartitionsToTxnResponse(tuple(results))


def _offsets(request: m.TxnOffsetCommitRequest, code: int) -> m.Response:
    results = (m.PartitionErrorCode(place, code) for place, _ in request.offsets)
    return m.TxnOffsetCommitResponse(tuple(results))


def _transactions(request: m.DescribeTransactionsRequest, code: int) -> m.Response:
    described = (m.TransactionDescription(code, name, "") for name in request.transactional_ids)
    return m.DescribeTransactionsResponse(tuple(described))


def _batches(request: m.ProduceRequest, code: int) -> m.Response:
    refused = (m.ProducePartitionResponse(p.topic_partition, code) for p in request.partitions)
    return m.ProduceResponse(tuple(refused))


_REFUSALS: Final[Mapping[type, Callable[[Any, int], m.Response]]] = MappingProxyType(
    {
        m.MetadataRequest: _topics,
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
