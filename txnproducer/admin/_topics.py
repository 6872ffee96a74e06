"""Topics: creating and deleting them, their partitions and leaders, a user's rights on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import kafka.errors
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from tenacity import retry_if_exception_type

from txnproducer._shell.arguments import as_names
from txnproducer.errors import (
    InvalidTopicError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    error_for_code,
)

from ._connection import (
    DEFAULT_TIMEOUT,
    SETTLE_SECONDS,
    UNSETTLED,
    again_while,
    ask,
    poll_while,
    to_ms,
)
from ._settings import described, value_of


def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int = 1,
    replication_factor: int | None = None,
    config: Mapping[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> None:
    """Create a topic, and wait until every partition has a leader that takes records.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: the topic.
        partitions: the number of partitions.
        replication_factor: the number of replicas; None for the cluster's default.
        config: settings of the topic, by Kafka's names.
        timeout: seconds for each of the two steps.
        **security: kafka-python's security settings.

    Raises:
        TopicExistsError: a topic of this name exists.
        KafkaTimeoutError: the cluster did not answer, or no leader was known in time.
        KafkaError: the cluster refused.
    """
    wanted = {
        "num_partitions": partitions,
        # -1 is the cluster's default since Kafka 2.4 (KIP-464).
        "replication_factor": -1 if replication_factor is None else replication_factor,
        "configs": {key: str(value) for key, value in (config or {}).items()},
    }
    # Once the cluster has created the topic, another attempt only waits for the leaders.
    agreed: list[bool] = []

    def create(client: KafkaAdminClient) -> None:
        if not agreed:
            client.create_topics({name: wanted}, timeout_ms=to_ms(timeout))
            agreed.append(True)
        client.wait_for_topics([name], timeout_ms=to_ms(timeout))
        _wait_for_leaders(client, name, partitions, timeout)

    ask(bootstrap_servers, create, timeout, **security)


def _wait_for_leaders(
    client: KafkaAdminClient, name: str, partitions: int, timeout: float
) -> None:
    """Wait until the leaders themselves know that they lead, as the metadata say already.

    Until then they refuse records. Of a producer's first batches a leader might refuse only the
    first, and then the transaction has to be aborted.
    """
    # Only a leader that knows its part answers ListOffsets. Without this wait one of 20 first
    # transactions on a new topic failed, with two processes at work; with it none of 200 did.
    places = {KafkaPartition(name, number): OffsetSpec.EARLIEST for number in range(partitions)}
    is_no_leader_yet = retry_if_exception_type(
        (kafka.errors.NotLeaderForPartitionError, kafka.errors.UnknownTopicOrPartitionError)
    )
    again_while(
        is_no_leader_yet,
        lambda: client.list_partition_offsets(places, timeout_ms=to_ms(timeout)),
        timeout,
    )


def delete_topic(
    bootstrap_servers: str, name: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> None:
    """Delete a topic.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: the topic.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        UnknownTopicOrPartitionError: no topic has this name.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """

    def delete(client: KafkaAdminClient) -> None:
        client.delete_topics([name], timeout_ms=to_ms(timeout))

    ask(bootstrap_servers, delete, timeout, **security)


def leader_of(
    bootstrap_servers: str,
    topic: str,
    partition: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> int:
    """Return the id of the broker that leads a partition.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topic: the topic.
        partition: its partition.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The broker's id; -1 while there is no leader.

    Raises:
        UnknownTopicOrPartitionError: there is no such partition.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    leaders = leaders_of(bootstrap_servers, topic, timeout, security)
    # A missing partition must not look like one without a leader, which may get one soon.
    if partition not in leaders:
        raise UnknownTopicOrPartitionError(f"topic {topic} has no partition {partition}")
    return leaders[partition]


def leaders_of(
    bootstrap_servers: str, topic: str, timeout: float, security: Mapping[str, Any]
) -> dict[int, int]:
    def describe(client: KafkaAdminClient) -> dict[int, int]:
        # Any broker may be asked, and one may not know a new topic yet.
        described = poll_while(
            lambda: client.describe_topics([topic])[0],
            lambda answer: answer["error_code"] in UNSETTLED,
            min(timeout, SETTLE_SECONDS),
        )
        if described["error_code"]:
            raise error_for_code(described["error_code"], f"topic {topic}")
        return {each["partition_index"]: each["leader_id"] for each in described["partitions"]}

    return ask(bootstrap_servers, describe, timeout, **security)


def partition_count(
    bootstrap_servers: str, topic: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> int | None:
    """Return the number of a topic's partitions, or None if there is no such topic.

    Raises:
        TopicAuthorizationError: the user may not Describe it; it may be there or not.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    described = _described(bootstrap_servers, topic, timeout, security)
    return None if described is None else len(described["partitions"])


def replica_count(
    bootstrap_servers: str, topic: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> int | None:
    """Return the smallest number of replicas of a topic's partitions; None without the topic.

    Raises:
        TopicAuthorizationError: the user may not Describe it; it may be there or not.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    described = _described(bootstrap_servers, topic, timeout, security)
    partitions = [] if described is None else described["partitions"]
    return min((len(one["replica_nodes"]) for one in partitions), default=None)


def _described(
    bootstrap_servers: str, topic: str, timeout: float, security: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the description of a topic, or None if there is no such topic."""

    def question(client: KafkaAdminClient) -> Any:
        return client.describe_topics([topic])

    try:
        (described,) = ask(bootstrap_servers, question, timeout, **security)
    except UnknownTopicOrPartitionError:
        return None
    code = described["error_code"]
    # No topic can have a name that is not allowed.
    if code in (UnknownTopicOrPartitionError.code, InvalidTopicError.code):
        return None
    if code:
        raise error_for_code(code, f"topic {topic}")
    found: dict[str, Any] = described
    return found


@dataclass(frozen=True)
class TopicAccess:
    """A cluster's answer about a topic and a user's rights on it.

    Attributes:
        exists: False if the topic does not exist, as far as the user may know.
        partition_count: the number of partitions; 0 if there is no topic, or the user may not
            Describe it.
        operations: the operations that the user may do, by Kafka's names ("READ", "WRITE"); None
            if the cluster does not report them (before 2.3).
    """

    exists: bool
    partition_count: int
    operations: frozenset[str] | None


def topic_access(
    bootstrap_servers: str,
    topics: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> dict[str, TopicAccess]:
    """Return for each topic whether it exists, and the user's rights on it (KIP-430).

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topics: their names.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    names = as_names("topics", topics)

    def question(client: KafkaAdminClient) -> list[dict[str, Any]]:
        # Any broker may be asked, and one may not know a new topic yet.
        return poll_while(
            lambda: client.describe_topics(names),
            lambda answer: any(one["error_code"] in UNSETTLED for one in answer),
            min(timeout, SETTLE_SECONDS),
        )

    described = ask(bootstrap_servers, question, timeout, **security)
    return {one["name"]: _topic_access(one) for one in described}


def _topic_access(told: Mapping[str, Any]) -> TopicAccess:
    code = told["error_code"]
    # As one that exists: a user without Describe is to hear of the right, not to create the topic.
    if code == TopicAuthorizationError.code:
        return TopicAccess(exists=True, partition_count=0, operations=frozenset())
    if code == UnknownTopicOrPartitionError.code:
        return TopicAccess(exists=False, partition_count=0, operations=None)
    if code:
        raise error_for_code(code, f"topic {told['name']}")
    return TopicAccess(True, len(told["partitions"]), operations(told))


def topic_settings(
    bootstrap_servers: str, topic: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> dict[str, str | None]:
    """Return the settings of a topic that exists, those with Kafka's own defaults included.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topic: the topic.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused (needs DescribeConfigs on the topic).
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    found = described(bootstrap_servers, lambda _: resource, timeout, **security)
    return {name: value_of(setting) for name, setting in found.items()}


def operations(told: Mapping[str, Any]) -> frozenset[str] | None:
    names = told.get("authorized_operations")
    return None if names is None else frozenset(names)
