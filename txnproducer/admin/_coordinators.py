"""Questions to coordinators about transactions and groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kafka.errors
from kafka import KafkaAdminClient

from txnproducer._protocol.messages import TransactionDescription
from txnproducer._shell.arguments import as_names
from txnproducer.records import TopicPartition

from ._connection import DEFAULT_TIMEOUT, ask
from ._topics import leaders_of

TRANSACTION_TOPIC = "__transaction_state"
GROUP_TOPIC = "__consumer_offsets"


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, by which Kafka finds the coordinator of an id."""
    # Java's characters are units of UTF-16: an id outside the basic plane has two for a character.
    units = text.encode("utf-16-be")
    value = 0
    for i in range(0, len(units), 2):
        # Java's int has 32 bits and wraps around.
        value = (31 * value + int.from_bytes(units[i : i + 2])) & 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value


def coordinator_of(
    bootstrap_servers: str,
    key: str,
    topic: str = TRANSACTION_TOPIC,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> int:
    """Return the id of the broker that coordinates a transactional id or a group.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        key: the transactional id, or the group's id.
        topic: `TRANSACTION_TOPIC`, or `GROUP_TOPIC` for a group.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The broker's id; -1 while the partition that holds the key's state has no leader.

    Raises:
        UnknownTopicOrPartitionError: the topic is created on its first use, and does not exist
            yet.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    leaders = leaders_of(bootstrap_servers, topic, timeout, security)
    # `Utils.abs` of the Java code clears the sign bit. The number of partitions is the cluster's
    # own: 50 is only the default, and the test kit's clusters have four.
    return leaders[(java_hash(key) & 0x7FFFFFFF) % len(leaders)]


def describe_transaction(
    bootstrap_servers: str,
    transactional_id: str,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> TransactionDescription | None:
    """Return the coordinator's description of a transactional id (KIP-664, Kafka 3.0 and newer).

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        transactional_id: the id to describe.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The description; None if the coordinator does not know the id (any more).

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        UnsupportedVersionError: the cluster is too old for this request.
        KafkaError: the cluster refused.
    """
    names = [transactional_id]
    return describe_transactions(bootstrap_servers, names, timeout, **security)[transactional_id]


def describe_transactions(
    bootstrap_servers: str,
    transactional_ids: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> dict[str, TransactionDescription | None]:
    """Return the coordinators' descriptions of several transactional ids, over one connection.

    Arguments and errors, and the result for each id, are those of `describe_transaction`.
    """
    names = as_names("transactional_ids", transactional_ids)

    def about(client: KafkaAdminClient, name: str) -> Any:
        try:
            # One by one, since the client raises for a whole list if one id of it is unknown.
            return client.describe_transactions([name])[name]
        # Ids expire (transactional.id.expiration.ms), so this is an answer and no failure.
        except kafka.errors.TransactionalIdNotFoundError:
            return None

    def question(client: KafkaAdminClient) -> dict[str, Any]:
        return {name: about(client, name) for name in names}

    told = ask(bootstrap_servers, question, timeout, **security)
    return {name: None if one is None else _description(name, one) for name, one in told.items()}


def transactional_ids(
    bootstrap_servers: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> list[str]:
    """Return the transactional ids that the coordinators know (KIP-664, Kafka 3.0 and newer).

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The ids that the user may Describe, sorted.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        UnsupportedVersionError: the cluster is too old for this request.
        KafkaError: the cluster refused.
    """

    def question(client: KafkaAdminClient) -> list[str]:
        found = client.list_transactions().values()
        return sorted(each.transactional_id for listings in found for each in listings)

    return ask(bootstrap_servers, question, timeout, **security)


def _description(transactional_id: str, told: Any) -> TransactionDescription:
    places = tuple(sorted(TopicPartition(*place) for place in told.topic_partitions))
    return TransactionDescription(
        0,
        transactional_id,
        told.state.value,
        told.producer_id,
        told.producer_epoch,
        told.transaction_timeout_ms,
        told.transaction_start_time_ms,
        places,
    )
