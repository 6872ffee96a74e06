"""Fast codecs for EndTxn and DescribeTransactions, for which a short transaction waits.

Why it exists: a transaction of a few records takes two or three round trips, and the generic codec
takes a tenth of that time.
Owns: the layout of EndTxn 3 to 5 and of DescribeTransactions 0. Must not know: sockets, time, the
meaning of answers. An answer with anything unexpected in it (a tag, a missing part) belongs to the
schema codec: the decoders return None for it.
Rule: byte-identical with kafka-python's encoding (tested).
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error

from txnproducer._protocol.messages import (
    ApiKey,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    TransactionDescription,
)
from txnproducer.records import TopicPartition

from .answer_checks import MOST_PARTITIONS
from .compact import (
    ANSWER_HEAD_BYTES,
    FRAME_HEAD,
    NO_TAGS,
    client_id_and_tags,
    compact_string,
    put_uvarint,
    read_compact_count,
    read_compact_string,
)

FIRST_FLEXIBLE_END_TXN = 3
# From this version on the answer brings the id and epoch of the next transaction (KIP-890).
_END_TXN_WITH_IDENTITY = 5

_END_TXN = Struct(">qh?B")  # producer id, epoch, whether to commit, tags
_END_ANSWER = Struct(">ihB")  # throttle time, error, tags
_END_ANSWER_WITH_IDENTITY = Struct(">ihqhB")  # throttle time, error, producer id, epoch, tags
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_DESCRIPTION = Struct(">iqqh")  # time-out, start, producer id, epoch


class EndEncoder:
    """Encoder of one client's EndTxn and DescribeTransactions requests.

    Args:
        client_id: the name that the broker sees in its quotas and logs.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id_and_tags(client_id)

    def end_txn(self, body: EndTxnRequest, version: int, correlation_id: int) -> bytes:
        """Return a framed EndTxn request of version 3 to 5."""
        end = _END_TXN.pack(body.producer_id, body.producer_epoch, body.is_commit, NO_TAGS)
        content = compact_string(body.transactional_id) + end
        return self._framed(ApiKey.END_TXN, version, correlation_id, content)

    def describe(self, body: DescribeTransactionsRequest, correlation_id: int) -> bytes:
        """Return a framed DescribeTransactions request of version 0."""
        content = bytearray()
        put_uvarint(content, len(body.transactional_ids) + 1)
        for transactional_id in body.transactional_ids:
            content += compact_string(transactional_id)
        content.append(NO_TAGS)
        return self._framed(ApiKey.DESCRIBE_TRANSACTIONS, 0, correlation_id, content)

    def _framed(
        self, api_key: ApiKey, version: int, correlation_id: int, content: bytes | bytearray
    ) -> bytes:
        # The size does not count its own four bytes.
        size = FRAME_HEAD.size - _INT32.size + len(self._client_id) + len(content)
        head = FRAME_HEAD.pack(size, api_key, version, correlation_id)
        return b"".join((head, self._client_id, content))


def decode_end_txn(version: int, payload: memoryview) -> EndTxnResponse | None:
    """Decode the answer to EndTxn 3 to 5, or return None if it has anything unexpected."""
    has_identity = version >= _END_TXN_WITH_IDENTITY
    layout = _END_ANSWER_WITH_IDENTITY if has_identity else _END_ANSWER
    # The layout has no part of variable length, so any other size shows something unexpected.
    if len(payload) != ANSWER_HEAD_BYTES + layout.size:
        return None
    if payload[4] != NO_TAGS or payload[-1] != NO_TAGS:
        return None
    fields = layout.unpack_from(payload, ANSWER_HEAD_BYTES)
    throttle_ms, error_code = fields[:2]
    if not has_identity:
        return EndTxnResponse(error_code, throttle_time_ms=throttle_ms)
    producer_id, epoch = fields[2:4]
    return EndTxnResponse(error_code, producer_id, epoch, throttle_ms)


def decode_describe(
    body: DescribeTransactionsRequest, payload: memoryview
) -> DescribeTransactionsResponse | None:
    """Decode the answer to DescribeTransactions, or return None if it has anything unexpected."""
    try:
        return _decode_describe(body, payload)
    except (IndexError, ValueError, struct_error):
        return None


def _decode_describe(
    body: DescribeTransactionsRequest, payload: memoryview
) -> DescribeTransactionsResponse | None:
    if payload[4] != NO_TAGS:
        return None
    (throttle_ms,) = _INT32.unpack_from(payload, ANSWER_HEAD_BYTES)
    # A damaged count must not make this read, and allocate, more than was asked for.
    most = len(body.transactional_ids)
    count, at = read_compact_count(payload, ANSWER_HEAD_BYTES + _INT32.size, most)
    described: list[TransactionDescription] = []
    for _ in range(count):
        (error_code,) = _INT16.unpack_from(payload, at)
        transactional_id, at = read_compact_string(payload, at + _INT16.size)
        state, at = read_compact_string(payload, at)
        timeout_ms, start_ms, producer_id, epoch = _DESCRIPTION.unpack_from(payload, at)
        partitions, at = _partitions(payload, at + _DESCRIPTION.size)
        if payload[at] != NO_TAGS:
            return None
        at += 1
        described.append(
            TransactionDescription(
                error_code,
                transactional_id,
                state,
                producer_id,
                epoch,
                timeout_ms,
                start_ms,
                partitions,
            )
        )
    # Bytes that are left over show a layout that this does not know.
    if payload[at] != NO_TAGS or len(payload) != at + 1:
        return None
    return DescribeTransactionsResponse(tuple(described), throttle_ms)


def _partitions(payload: memoryview, at: int) -> tuple[tuple[TopicPartition, ...], int]:
    """Return a transaction's partitions, and the position after them.

    Raises:
        ValueError: a part is null, or has tags, which no version defines.
    """
    partitions: list[TopicPartition] = []
    topic_count, at = read_compact_count(payload, at, MOST_PARTITIONS)
    for _ in range(topic_count):
        topic, at = read_compact_string(payload, at)
        # The limit is for all topics together.
        count, at = read_compact_count(payload, at, MOST_PARTITIONS - len(partitions))
        for _ in range(count):
            partitions.append(TopicPartition(topic, *_INT32.unpack_from(payload, at)))
            at += _INT32.size
        if payload[at] != NO_TAGS:
            raise ValueError("a topic has tags")
        at += 1
    return tuple(partitions), at
