"""The choice of a request's version, from the versions of client and broker and its content.

Why it exists: the newest common version is not always the right one. Versions distinguish
transactions v1 from v2 (KIP-890), and AddPartitionsToTxn 4 and above is for brokers alone.
Owns: the version windows as data, `choose_version`, the versions from which a throttled answer
asks the client to pause (KIP-219).
Must not know: layouts, sockets, the cluster's transaction version (a request carries it).
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter

from txnproducer._protocol.messages import (
    API_KEY_OF,
    ApiKey,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    Request,
    TxnOffsetCommitRequest,
)
from txnproducer._protocol.versions import ApiVersionRange, NodeApiVersions
from txnproducer.errors import UnsupportedVersionError

PRODUCE_WITH_TOPIC_IDS = 13
FIND_COORDINATOR_WITH_KEYS = 4
_CLIENT = "this client"
_TOPIC_ID = attrgetter("topic_id")  # in place of a generator, which costs a call for each batch

CLIENT_VERSIONS: dict[ApiKey, ApiVersionRange] = {
    ApiKey.PRODUCE: ApiVersionRange(3, 13),  # 3: the record batch of KIP-98
    # 4: allow_auto_topic_creation. 13 moves errors to a field that `MetadataResponse` lacks.
    ApiKey.METADATA: ApiVersionRange(4, 12),
    ApiKey.FIND_COORDINATOR: ApiVersionRange(1, 6),  # 1: coordinators of transactions
    ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, 5),  # 6 is KIP-939, still unstable
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiVersionRange(0, 3),  # 4 and above: between brokers
    ApiKey.ADD_OFFSETS_TO_TXN: ApiVersionRange(0, 4),
    ApiKey.END_TXN: ApiVersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiVersionRange(0, 0),
}

# The first version of each API with transactions v2's meaning: the request also adds its
# partitions to the transaction (Produce, TxnOffsetCommit), or bumps the epoch (EndTxn).
FIRST_V2_VERSION = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}

# From these versions on the broker answers first and expects the client to pause for
# throttle_time_ms. In older versions the broker itself waited before its answer (KIP-219).
CLIENT_THROTTLES_FROM: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 6,
    ApiKey.METADATA: 6,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
}


def choose_version(body: Request, offered: NodeApiVersions) -> int:
    """Return the newest version that the broker offers and that can carry all of a request.

    Args:
        body: the request.
        offered: the versions that the broker offered in its handshake.

    Returns:
        The version to encode the request at.

    Raises:
        UnsupportedVersionError: there is no such version; nothing may be sent.
    """
    api_key = API_KEY_OF[type(body)]
    lowest, highest, why = _needed(body, api_key)
    broker = offered.ranges.get(api_key)
    if broker is None:
        raise UnsupportedVersionError(f"the broker does not offer {api_key.name}")
    version = min(highest, broker.max_version)
    if version < max(lowest, broker.min_version):
        raise UnsupportedVersionError(
            f"the broker offers {api_key.name} {broker.min_version} to {broker.max_version}, "
            f"but {why} needs {lowest} to {highest}"
        )
    return version


def _needed(body: Request, api_key: ApiKey) -> tuple[int, int, str]:
    """Return the window of versions that can carry this request, and the reason for it."""
    if isinstance(body, ProduceRequest):
        return _needed_to_produce(
            all(map(_TOPIC_ID, body.partitions)),
            body.transactional_id is not None,
            body.is_transaction_v2_enabled,
        )
    lowest, highest = CLIENT_VERSIONS[api_key]
    if isinstance(body, EndTxnRequest):
        return _in_transaction(api_key, lowest, highest, body.is_transaction_v2_enabled)
    if isinstance(body, InitProducerIdRequest) and body.producer_id >= 0:
        return max(lowest, 3), highest, "bumping a producer's epoch (KIP-360)"
    if isinstance(body, TxnOffsetCommitRequest):
        why = _CLIENT
        if body.has_group_metadata:
            lowest, why = max(lowest, 3), "fencing by consumer group metadata (KIP-447)"
        return _in_transaction(api_key, lowest, highest, body.is_transaction_v2_enabled, why)
    return lowest, highest, _CLIENT


@cache  # asked for each batch
def _needed_to_produce(
    has_topic_ids: bool, is_transactional: bool, is_transaction_v2_enabled: bool, /
) -> tuple[int, int, str]:
    lowest, highest = CLIENT_VERSIONS[ApiKey.PRODUCE]
    if not has_topic_ids:
        # From 13 on a topic is named by its id alone (KIP-516), so one without an id could not be
        # sent.
        highest = PRODUCE_WITH_TOPIC_IDS - 1
    if not is_transactional:
        return lowest, highest, _CLIENT
    return _in_transaction(ApiKey.PRODUCE, lowest, highest, is_transaction_v2_enabled)


def _in_transaction(
    api_key: ApiKey, lowest: int, highest: int, is_v2: bool, why: str = _CLIENT, /
) -> tuple[int, int, str]:
    first_v2 = FIRST_V2_VERSION[api_key]
    if is_v2:
        return max(lowest, first_v2), highest, "transactions v2 (KIP-890)"
    # At v2's versions the broker would take the request as one of transactions v2.
    return lowest, min(highest, first_v2 - 1), why
