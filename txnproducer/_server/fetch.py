"""The answer to Fetch, which the server offers and always refuses.

Why it exists: librdkafka writes record batches only to a broker that offers Produce 3 and Fetch 4
together. The model has no consumers, so a client that does fetch gets an error.
Owns: the versions that are offered, the refusal. Must not know: connections.
"""

from __future__ import annotations

from typing import Any, Final

from txnproducer._protocol.versions import ApiVersionRange
from txnproducer._server import schemas as s
from txnproducer.errors import ErrorCode

FETCH: Final = 1
# Below 12 the request has no tagged fields, and topics are named and have no ids.
FETCH_VERSIONS: Final = ApiVersionRange(4, 11)
_CODE: Final = ErrorCode.INVALID_REQUEST


def refuse_fetch(asked: Any) -> Any:
    """Return the answer that refuses a Fetch request for each partition that it names."""
    topic_type = s.FetchResponse.FetchableTopicResponse
    partition_type = topic_type.PartitionData
    return s.FetchResponse(
        version=asked.version,
        # At each partition as well: versions before 7 have no code for the whole answer.
        error_code=_CODE,
        responses=[
            topic_type(
                topic=topic.topic,
                partitions=[
                    partition_type(
                        partition_index=each.partition,
                        error_code=_CODE,
                        high_watermark=-1,
                        last_stable_offset=-1,
                        log_start_offset=-1,
                        aborted_transactions=None,
                        preferred_read_replica=-1,
                        records=None,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )
