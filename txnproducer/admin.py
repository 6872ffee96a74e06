"""Ask a cluster, and change its topics: what the ledger, the command line and the tests need.

Why it exists: the producer speaks only the protocol of producing; everything else that this
package asks of a cluster goes through kafka-python's admin client, and through this module alone.
Owns: connecting for one call, bounding it, and turning kafka-python's errors into ours.
Must not know: producers, transactions of ours, where the cluster comes from.
Rules: every call is bounded by its own `timeout` in seconds; every call opens and closes its own
connection, so that nothing is left behind; `security` takes kafka-python's own settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kafka.errors
from kafka import KafkaAdminClient
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from .errors import KafkaError, KafkaTimeoutError, error_for_code

DEFAULT_TIMEOUT = 30.0
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def connect(
    bootstrap_servers: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> Iterator[KafkaAdminClient]:
    """Connect to a cluster for the length of a `with` block.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        timeout: Seconds to wait for a broker, and for each answer.
        **security: kafka-python's security settings.

    Yields:
        kafka-python's admin client. Its errors leave the block as ours.

    Raises:
        KafkaTimeoutError: No broker answered in time.
        KafkaError: Any other failure, by the broker's error code.
    """
    timeout_ms = max(1, int(timeout * 1000))
    with _our_errors(bootstrap_servers):
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            # Its first attempt often meets a broker that is just starting.
            reconnect_backoff_max_ms=500,
            **security,
        )
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def _our_errors(bootstrap_servers: str) -> Iterator[None]:
    try:
        yield
    except kafka.errors.KafkaTimeoutError as error:
        raise KafkaTimeoutError(f"{bootstrap_servers} did not answer in time: {error}") from error
    except kafka.errors.KafkaError as error:
        code = getattr(error, "errno", -1)
        # kafka-python's own errors, such as a lost connection, have no code of the protocol.
        if not isinstance(code, int) or code <= 0:
            raise KafkaError(f"{type(error).__name__}: {error}") from error
        raise error_for_code(code, f"{type(error).__name__}: {error}") from error


def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int = 1,
    replication_factor: int | None = None,
    config: Mapping[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> None:
    """Create a topic, and wait until every partition has a leader.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: The topic.
        partitions: How many.
        replication_factor: The cluster's own default when None.
        config: Settings of the topic, by Kafka's names.
        timeout: Seconds for each of the two steps.
        **security: kafka-python's security settings.

    Raises:
        TopicAlreadyExistsError: There is one of this name.
        KafkaTimeoutError: The cluster did not answer, or no leader was known in time.
        KafkaError: The cluster refused.
    """
    wanted = {
        "num_partitions": partitions,
        "replication_factor": -1 if replication_factor is None else replication_factor,
        "configs": {key: str(value) for key, value in (config or {}).items()},
    }
    timeout_ms = max(1, int(timeout * 1000))
    with connect(bootstrap_servers, timeout, **security) as client:
        client.create_topics({name: wanted}, timeout_ms=timeout_ms)
        client.wait_for_topics([name], timeout_ms=timeout_ms)


def delete_topic(
    bootstrap_servers: str, name: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> None:
    """Delete a topic.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: The topic.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Raises:
        UnknownTopicOrPartitionError: There is none of this name.
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """
    with connect(bootstrap_servers, timeout, **security) as client:
        client.delete_topics([name], timeout_ms=max(1, int(timeout * 1000)))


def broker_ids(
    bootstrap_servers: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> list[int]:
    """Return the ids of the brokers that the cluster has now.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """
    with connect(bootstrap_servers, timeout, **security) as client:
        return _broker_ids(client)


def _broker_ids(client: KafkaAdminClient) -> list[int]:
    # A fenced broker is registered but not in use; brokers before 4.0 leave them out.
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
        expected: Told the ids of the brokers, says whether these are what is waited for.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        The ids.

    Raises:
        KafkaTimeoutError: They were not in time; the message tells which there were.
        KafkaError: The cluster refused.
    """
    with connect(bootstrap_servers, timeout, **security) as client:
        waiting = Retrying(
            stop=stop_after_delay(timeout),
            wait=wait_fixed(_POLL_SECONDS),
            retry=retry_if_result(lambda ids: not expected(ids)),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        ids: list[int] = waiting(_broker_ids, client)
    if not expected(ids):
        raise KafkaTimeoutError(f"{bootstrap_servers}: after {timeout:g} s the brokers are {ids}")
    return ids


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
        topic: The topic.
        partition: Its partition.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        The broker's id; -1 while there is no leader.

    Raises:
        UnknownTopicOrPartitionError: There is no such partition.
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """
    with connect(bootstrap_servers, timeout, **security) as client:
        for described in client.describe_topics([topic]):
            if described["error_code"]:
                raise error_for_code(described["error_code"], f"topic {topic}")
            for each in described["partitions"]:
                if each["partition_index"] == partition:
                    return int(each["leader_id"])
    raise error_for_code(3, f"topic {topic} has no partition {partition}")
