"""A broker's quota as the reason of a wait, in words.

Why it exists: a broker that throttles a client refuses nothing, so a time-out would have no cause.
Owns: the words. Must not know: what waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnproducer._core.metadata import Metadata
from txnproducer._core.ports import KafkaClient
from txnproducer._protocol.events import ConnectionId, data_connection
from txnproducer.errors import ErrorCode, KafkaError, error_for_code
from txnproducer.records import TopicPartition


def quota_error(
    client: KafkaClient, connection: ConnectionId, role: str, now_ms: int
) -> KafkaError | None:
    """Return that a broker takes no requests for now, or None if it does.

    Args:
        client: knows whether a broker throttles this client.
        connection: to the broker.
        role: the broker's part in this, such as "leads the partition".
        now_ms: the time.
    """
    throttle_ms = client.throttle_delay_ms(connection, now_ms)
    if not throttle_ms:
        return None
    return error_for_code(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"broker {connection.node_id} {role}, and takes no requests of this client for"
        f" another {throttle_ms} ms, by its quota",
    )


def leader_quota_error(
    client: KafkaClient, metadata: Metadata, places: Iterable[TopicPartition], now_ms: int
) -> KafkaError | None:
    """Return that the leader of one of these partitions takes no requests for now, or None."""
    for place in places:
        leader_id, _ = metadata.leader_of(place)
        role = f"leads {place.topic}-{place.partition}"
        error = quota_error(client, data_connection(leader_id), role, now_ms)
        if error is not None:
            return error
    return None
