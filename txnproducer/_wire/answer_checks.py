"""Checks of the values in an answer, before the core gets it.

Why it exists: bytes that follow the schema can still make no sense. A leader -2 would be the
second bootstrap address, an empty host the client's own machine, and partition 2^31-1 would
allocate a table of 34 GB.
Owns: a check for each type of answer, and the largest number of its elements.
Must not know: bytes, versions, the core's state.
Rules: an answer names only the parts of the request, each at most once (the core handles parts
that are left out); an address can be connected to; a success carries its value. Each violation is
a `ValueError`, for which the connection is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from txnproducer._protocol import messages as m
from txnproducer.errors import ErrorCode

_LARGEST_PORT = 65_535
_NO_ID = -1
# Brokers that use ZooKeeper leave out partitions that never had a leader, so there may be gaps.
_MOST_MISSING_PARTITIONS = 100_000
# Real clusters have a few hundred. The client remembers each broker, so the number is bounded.
_MOST_BROKERS = 10_000
# Of a Metadata answer or a transaction. A cluster may have more, the topics of one producer do
# not.
MOST_PARTITIONS = 250_000
_RECORD_COUNT_AT = 57  # the position of the number of records in a batch
_PLACE = attrgetter("topic_partition")  # in place of loops, which cost calls for each batch


def most_elements(request: m.Request) -> int:
    """Return the largest total number of array elements in the answer to a request.

    An answer has entries for the parts of the request, and for brokers. An answer to Produce may
    also have a reason for each record.
    """
    most = _MOST_BROKERS
    if isinstance(request, m.MetadataRequest | m.DescribeTransactionsRequest):
        most += MOST_PARTITIONS
    elif isinstance(request, m.AddPartitionsToTxnRequest):
        most += 2 * len(request.partitions)  # each may be in a topic of its own
    elif isinstance(request, m.TxnOffsetCommitRequest):
        most += 2 * len(request.offsets)
    elif isinstance(request, m.ProduceRequest):
        most += sum(2 + _record_count(partition.records) for partition in request.partitions)
    return most


def _record_count(batch: bytes | bytearray | memoryview) -> int:
    return int.from_bytes(memoryview(batch)[_RECORD_COUNT_AT : _RECORD_COUNT_AT + 4], "big")


def check_answer(request: m.Request, answer: m.Response) -> None:
    """Refuse an answer that makes no sense as the answer to a request.

    Raises:
        ValueError: the answer makes no sense; the text says why.
    """
    check = _CHECKS.get(type(request))
    if check is not None:
        check(request, answer)


def _check_metadata(_: m.MetadataRequest, answer: m.MetadataResponse) -> None:
    if len(answer.brokers) > _MOST_BROKERS:
        raise ValueError(f"{len(answer.brokers)} brokers, but {_MOST_BROKERS} are accepted")
    _check_nodes(answer.brokers)
    _check_unique((topic.topic for topic in answer.topics), "topic")
    missing = 0
    for topic in answer.topics:
        numbers = [partition.partition for partition in topic.partitions]
        _check_unique(numbers, f"{topic.topic!r}'s partition")
        for partition in topic.partitions:
            _check_partition(topic.topic, partition)
        missing += max(numbers, default=-1) + 1 - len(numbers)
    if missing > _MOST_MISSING_PARTITIONS:
        raise ValueError(f"{missing} partitions are left out")


def _check_partition(topic: str, partition: m.PartitionMetadata) -> None:
    number = partition.partition
    if number < 0:
        raise ValueError(f"partition {number} of topic {topic!r}: its number must be 0 or more")
    if min(partition.leader_id, partition.leader_epoch) < _NO_ID:
        raise ValueError(
            f"partition {number} of topic {topic!r}: leader id and leader epoch must be -1 or "
            f"more, not {partition.leader_id} and {partition.leader_epoch}"
        )


def _check_coordinator(
    request: m.FindCoordinatorRequest, answer: m.FindCoordinatorResponse
) -> None:
    keys = [coordinator.key for coordinator in answer.coordinators]
    if keys != [request.key]:
        raise ValueError(f"the coordinators of {keys} in place of {request.key!r}'s")
    if answer.coordinators[0].error_code == ErrorCode.NONE:
        _check_nodes([answer.coordinators[0].node])


def _check_producer_id(_: m.InitProducerIdRequest, answer: m.InitProducerIdResponse) -> None:
    if answer.error_code == ErrorCode.NONE:
        _check_identity(answer.producer_id, answer.producer_epoch)


def _check_end(_: m.EndTxnRequest, answer: m.EndTxnResponse) -> None:
    # As in the Java client, a success without an identity means that the identity stays the same.
    if answer.error_code == ErrorCode.NONE and answer.producer_id != m.NO_PRODUCER_ID:
        _check_identity(answer.producer_id, answer.producer_epoch)


def _check_identity(producer_id: int, epoch: int) -> None:
    if producer_id < 0 or epoch < 0:
        raise ValueError(
            "a successful answer must have a producer id and an epoch of 0 or more, not "
            f"{producer_id} and {epoch}"
        )


def _check_added(
    request: m.AddPartitionsToTxnRequest, answer: m.AddPartitionsToTxnResponse
) -> None:
    _check_asked(request.partitions, [result.topic_partition for result in answer.results])


def _check_offsets(request: m.TxnOffsetCommitRequest, answer: m.TxnOffsetCommitResponse) -> None:
    asked = [topic_partition for topic_partition, _ in request.offsets]
    _check_asked(asked, [result.topic_partition for result in answer.results])


def _check_described(
    request: m.DescribeTransactionsRequest, answer: m.DescribeTransactionsResponse
) -> None:
    told = [transaction.transactional_id for transaction in answer.transactions]
    _check_asked(request.transactional_ids, told)


def _check_produced(request: m.ProduceRequest, answer: m.ProduceResponse) -> None:
    asked = list(map(_PLACE, request.partitions))
    told = list(map(_PLACE, answer.partitions))
    if asked != told:
        _check_asked(asked, told)
    if answer.nodes:
        _check_nodes(answer.nodes)


_CHECKS: dict[type, Callable[[Any, Any], None]] = {
    m.MetadataRequest: _check_metadata,
    m.FindCoordinatorRequest: _check_coordinator,
    m.InitProducerIdRequest: _check_producer_id,
    m.EndTxnRequest: _check_end,
    m.AddPartitionsToTxnRequest: _check_added,
    m.TxnOffsetCommitRequest: _check_offsets,
    m.DescribeTransactionsRequest: _check_described,
    m.ProduceRequest: _check_produced,
}


# --- shared checks ------------------------------------------------------------------------------


def _check_asked(asked: Iterable[Hashable], told: list[Any]) -> None:
    """Refuse an answer with an entry that was not requested, or that occurs twice."""
    left = set(asked)
    for key in told:
        if key not in left:
            raise ValueError(f"{key} was not asked about, or occurs twice")
        # Removed, so that a second entry for the same key is refused as well.
        left.remove(key)


def _check_unique(keys: Iterable[Hashable], what: str) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"{what} {key!r} occurs twice")
        seen.add(key)


def _check_nodes(nodes: Sequence[m.BrokerNode]) -> None:
    _check_unique((node.node_id for node in nodes), "broker")
    for node in nodes:
        if node.node_id < 0 or not node.host or not 0 < node.port <= _LARGEST_PORT:
            raise ValueError(
                f"broker {node.node_id}: its id must be 0 or more, and its address a host and a "
                f"port of 1 to {_LARGEST_PORT}, not {node.host!r}:{node.port}"
            )
