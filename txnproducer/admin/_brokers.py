"""Questions about brokers: their ids, whether all replicas are in sync, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from txnproducer.errors import KafkaTimeoutError

from ._connection import DEFAULT_TIMEOUT, ask, poll_while
from ._settings import described, value_of


def broker_ids(
    bootstrap_servers: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> list[int]:
    """Return the ids of the brokers that the cluster has now.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    return ask(bootstrap_servers, ids_of_brokers, timeout, **security)


def ids_of_brokers(client: KafkaAdminClient) -> list[int]:
    # A fenced broker is registered but not in use; brokers before 4.0 leave fenced ones out.
    brokers = client.describe_cluster()["brokers"]
    return sorted(int(each["broker_id"]) for each in brokers if not each.get("is_fenced"))


def wait_for_brokers(
    bootstrap_servers: str,
    expected: Callable[[list[int]], bool],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> list[int]:
    """Wait until the cluster's brokers are as expected.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        expected: takes the ids of the brokers, and returns whether to stop waiting.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The ids.

    Raises:
        KafkaTimeoutError: they were not in time; the message lists the brokers that exist.
        KafkaError: the cluster refused.
    """

    def poll(client: KafkaAdminClient) -> list[int]:
        # Over one connection: another one for each look costs ten times the look.
        return poll_while(lambda: ids_of_brokers(client), lambda ids: not expected(ids), timeout)

    ids = ask(bootstrap_servers, poll, timeout, **security)
    # If the time has ended the wait, this is only the last answer.
    if not expected(ids):
        raise KafkaTimeoutError(f"{bootstrap_servers}: after {timeout:g} s the brokers are {ids}")
    return ids


def wait_for_replicas(
    bootstrap_servers: str,
    brokers: int,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> None:
    """Wait for a number of brokers, and until every replica of every topic is in sync.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        brokers: the number of brokers to wait for.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: not in time; the message names what is missing.
        KafkaError: the cluster refused.
    """

    def missing(client: KafkaAdminClient) -> str:
        ids = ids_of_brokers(client)
        behind = _out_of_sync(client.describe_topics())
        return "" if len(ids) >= brokers and not behind else f"brokers {ids}, {behind}"

    def poll(client: KafkaAdminClient) -> str:
        return poll_while(lambda: missing(client), bool, timeout)

    left = ask(bootstrap_servers, poll, timeout, **security)
    if left:
        raise KafkaTimeoutError(
            f"{bootstrap_servers}: not all in sync after {timeout:g} s: {left}"
        )


def _out_of_sync(topics: list[dict[str, Any]]) -> list[str]:
    return [
        f"{topic['name']}-{each['partition_index']}"
        for topic in topics
        for each in topic["partitions"]
        # A partition without a leader takes no records, whatever its replicas are.
        if each["leader_id"] < 0 or len(each["isr_nodes"]) < len(each["replica_nodes"])
    ]


def broker_setting(
    bootstrap_servers: str, name: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> str | None:
    """Return a setting of one of the brokers.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: Kafka's name of the setting.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        The setting's value; None if the broker has no such setting.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused (needs DescribeConfigs on the cluster).
    """
    value = value_of(_settings(bootstrap_servers, [name], timeout, **security).get(name))
    return None if value is None else str(value)


def unknown_settings(
    bootstrap_servers: str,
    names: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> list[str]:
    """Return the settings that a broker was given and does not know. A plugin may know them.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        names: the settings.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused (needs DescribeConfigs on the cluster).
    """
    found = _settings(bootstrap_servers, names, timeout, **security)
    # A broker lists these too, and knows no type of them.
    return [
        name
        for name, each in found.items()
        if isinstance(each, Mapping) and each.get("config_type") == "UNKNOWN"
    ]


def _settings(
    bootstrap_servers: str, names: Iterable[str], timeout: float, **security: Any
) -> Mapping[str, Any]:
    def find(client: KafkaAdminClient) -> ConfigResource:
        # Any broker that is in use; always the same one, so that its answer does not change by
        # chance.
        broker = str(min(ids_of_brokers(client)))
        return ConfigResource(ConfigResourceType.BROKER, broker, dict.fromkeys(names))

    return described(bootstrap_servers, find, timeout, **security)
