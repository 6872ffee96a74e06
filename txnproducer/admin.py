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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import kafka.errors
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from txnproducer._protocol.messages import TransactionDescription

from .errors import (
    DisconnectError,
    InvalidMetadataError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotControllerError,
    RetriableError,
    UnknownTopicOrPartitionError,
    error_for_code,
)
from .records import OffsetAndMetadata, TopicPartition

DEFAULT_TIMEOUT = 30.0
TRANSACTION_TOPIC = "__transaction_state"
GROUP_TOPIC = "__consumer_offsets"
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 3.0
# A broker cannot be reached, or the cluster named one that it does not list: it is starting,
# or has just gone. Another connection asks anew.
_GONE = (kafka.errors.RetriableError, kafka.errors.UnknownBrokerIdError)
_UNSETTLED = (UnknownTopicOrPartitionError.code, LeaderNotAvailableError.code)

T = TypeVar("T")


class _OwnedSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's way to connect, with an owner for every socket.

    kafka-python 3.0 leaves the socket of a refused connection to the garbage collector, and one
    that is connected just as its client is closed by another thread; their ResourceWarning then
    hits any test of a user's that turns warnings into errors.
    """

    SCHEMES = ("owned",)
    owners: ClassVar[dict[str, contextlib.ExitStack]] = {}

    def __init__(self, proxy_url: str) -> None:
        self._owner = self.owners[proxy_url]

    async def sock_connect(self, net: Any, sock: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect a socket for its owner, or close it."""
        try:
            connected = await super().sock_connect(net, sock, *args, **kwargs)
        except BaseException:
            sock.close()
            raise
        self._owner.callback(sock.close)
        return connected

    @classmethod
    @contextlib.contextmanager
    def owner(cls) -> Iterator[str]:
        """Close in the end whatever is connected by the address that this yields."""
        with contextlib.ExitStack() as sockets:
            address = f"{cls.SCHEMES[0]}://{id(sockets)}"
            cls.owners[address] = sockets
            try:
                yield address
            finally:
                del cls.owners[address]


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
        DisconnectError: The broker that was asked is gone, or went away.
        KafkaError: Any other failure, by the broker's error code.
    """
    with _our_errors(bootstrap_servers), contextlib.ExitStack() as cleanup:
        address = cleanup.enter_context(_OwnedSocket.owner())

        def make_connections(**config: Any) -> KafkaNetClient:
            connections = KafkaNetClient(**config)
            cleanup.callback(connections.close)
            return connections

        # An admin client that finds no broker raises from its constructor, and leaves a thread and
        # its connections behind which nobody else could reach.
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            bootstrap_timeout_ms=_to_ms(timeout),
            request_timeout_ms=_to_ms(timeout),
            # Its first attempt often meets a broker that is just starting.
            reconnect_backoff_max_ms=500,
            kafka_client=make_connections,
            **{"proxy_url": address, **security},
        )
        cleanup.callback(client.close)
        yield client


@contextlib.contextmanager
def _our_errors(bootstrap_servers: str) -> Iterator[None]:
    try:
        yield
    except kafka.errors.KafkaTimeoutError as error:
        # kafka-python tries again after a refused login or certificate until the time is over.
        raise KafkaTimeoutError(
            f"{bootstrap_servers} did not answer in time. A wrong password, or a certificate that "
            f"is not trusted, shows itself like this as well. ({error})"
        ) from error
    except kafka.errors.KafkaError as error:
        code = getattr(error, "errno", None)
        if isinstance(code, int) and code > 0:
            raise error_for_code(code, f"{type(error).__name__}: {error}") from error
        # kafka-python's own errors have no code of the protocol.
        if isinstance(error, _GONE):
            raise DisconnectError(f"{bootstrap_servers}: {error}") from error
        raise KafkaError(f"{type(error).__name__}: {error}") from error
    except RuntimeError as error:
        # Two brokers in a row said that another one is the controller.
        if "active controller" not in str(error):
            raise
        raise NotControllerError(f"{bootstrap_servers}: {error}") from error


def _to_ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def ask(
    bootstrap_servers: str,
    question: Callable[[KafkaAdminClient], T],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> T:
    """Put a question to a cluster, again on a new connection while it can be answered later.

    kafka-python asks any broker that the cluster named, and one of them may just have died.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        question: Asks the connected client; must do no harm when it is asked twice.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """

    def once() -> T:
        with connect(bootstrap_servers, timeout, **security) as client:
            return question(client)

    # A broker that does not answer has had all of the time; another attempt would double it.
    is_passing = retry_if_exception_type(RetriableError) & retry_if_not_exception_type(
        (KafkaTimeoutError, InvalidMetadataError)
    )
    return Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(_POLL_SECONDS),
        retry=is_passing,
        reraise=True,
    )(once)


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
        name: The topic.
        partitions: How many.
        replication_factor: The cluster's own default when None.
        config: Settings of the topic, by Kafka's names.
        timeout: Seconds for each of the two steps.
        **security: kafka-python's security settings.

    Raises:
        TopicExistsError: There is one of this name.
        KafkaTimeoutError: The cluster did not answer, or no leader was known in time.
        KafkaError: The cluster refused.
    """
    wanted = {
        "num_partitions": partitions,
        "replication_factor": -1 if replication_factor is None else replication_factor,
        "configs": {key: str(value) for key, value in (config or {}).items()},
    }
    # Once the cluster has agreed, another attempt only waits for the leaders.
    agreed: list[bool] = []

    def create(client: KafkaAdminClient) -> None:
        if not agreed:
            client.create_topics({name: wanted}, timeout_ms=_to_ms(timeout))
            agreed.append(True)
        client.wait_for_topics([name], timeout_ms=_to_ms(timeout))
        _wait_for_leaders(client, name, partitions, timeout)

    ask(bootstrap_servers, create, timeout, **security)


def _wait_for_leaders(
    client: KafkaAdminClient, name: str, partitions: int, timeout: float
) -> None:
    """Wait until the leaders know themselves what the metadata say of them already.

    Until then they refuse records: of a producer's first batches perhaps the first alone, and then
    its transaction has to be aborted.
    """
    places = {KafkaPartition(name, number): OffsetSpec.EARLIEST for number in range(partitions)}
    Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(_POLL_SECONDS),
        retry=retry_if_exception_type(
            (kafka.errors.NotLeaderForPartitionError, kafka.errors.UnknownTopicOrPartitionError)
        ),
        reraise=True,
    )(client.list_partition_offsets, places, timeout_ms=_to_ms(timeout))


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

    def delete(client: KafkaAdminClient) -> None:
        client.delete_topics([name], timeout_ms=_to_ms(timeout))

    ask(bootstrap_servers, delete, timeout, **security)


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
    return ask(bootstrap_servers, _broker_ids, timeout, **security)


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

    def poll(client: KafkaAdminClient) -> list[int]:
        return _poll(lambda: _broker_ids(client), lambda ids: not expected(ids), timeout)

    ids = ask(bootstrap_servers, poll, timeout, **security)
    if not expected(ids):
        raise KafkaTimeoutError(f"{bootstrap_servers}: after {timeout:g} s the brokers are {ids}")
    return ids


def wait_for_replicas(
    bootstrap_servers: str,
    brokers: int,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> None:
    """Wait until there are so many brokers, and every replica of every topic is in sync.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        brokers: How many there should be.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: Not in time; the message names what is missing.
        KafkaError: The cluster refused.
    """

    def missing(client: KafkaAdminClient) -> str:
        ids = _broker_ids(client)
        behind = _out_of_sync(client.describe_topics())
        return "" if len(ids) >= brokers and not behind else f"brokers {ids}, {behind}"

    def poll(client: KafkaAdminClient) -> str:
        return _poll(lambda: missing(client), bool, timeout)

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
        if each["leader_id"] < 0 or len(each["isr_nodes"]) < len(each["replica_nodes"])
    ]


def _poll(question: Callable[[], T], is_unfinished: Callable[[T], bool], timeout: float) -> T:
    """Ask until the answer will do or the time is over, and return the last answer."""
    return Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(_POLL_SECONDS),
        retry=retry_if_result(is_unfinished),
        retry_error_callback=_last_result,
    )(question)


def _last_result(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome else None


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
    leaders = _leaders(bootstrap_servers, topic, timeout, security)
    if partition not in leaders:
        raise UnknownTopicOrPartitionError(f"topic {topic} has no partition {partition}")
    return leaders[partition]


def _leaders(
    bootstrap_servers: str, topic: str, timeout: float, security: Mapping[str, Any]
) -> dict[int, int]:
    def describe(client: KafkaAdminClient) -> dict[int, int]:
        # Any broker may be asked, and one may not have heard of a new topic yet.
        described = _poll(
            lambda: client.describe_topics([topic])[0],
            lambda answer: answer["error_code"] in _UNSETTLED,
            min(timeout, _SETTLE_SECONDS),
        )
        if described["error_code"]:
            raise error_for_code(described["error_code"], f"topic {topic}")
        return {each["partition_index"]: each["leader_id"] for each in described["partitions"]}

    return ask(bootstrap_servers, describe, timeout, **security)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: by it Kafka finds the coordinator of an id."""
    units = text.encode("utf-16-be")
    value = 0
    for i in range(0, len(units), 2):
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
        key: The transactional id; or the group's id.
        topic: `TRANSACTION_TOPIC`, or `GROUP_TOPIC` for a group.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        The broker's id; -1 while the partition that holds the key's state has no leader.

    Raises:
        UnknownTopicOrPartitionError: The topic is made on its first use, and has not been yet.
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """
    leaders = _leaders(bootstrap_servers, topic, timeout, security)
    # `Utils.abs` of the Java code clears the sign bit.
    return leaders[(java_hash(key) & 0x7FFFFFFF) % len(leaders)]


def describe_transaction(
    bootstrap_servers: str,
    transactional_id: str,
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> TransactionDescription | None:
    """Return what the coordinator knows of a transactional id (KIP-664, Kafka 3.0 and newer).

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        transactional_id: Whose.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        The description; None if the coordinator does not know the id (any more).

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        UnsupportedVersionError: The cluster is too old to tell.
        KafkaError: The cluster refused.
    """

    def question(client: KafkaAdminClient) -> Any:
        try:
            return client.describe_transactions([transactional_id])[transactional_id]
        except kafka.errors.TransactionalIdNotFoundError:
            return None

    told = ask(bootstrap_servers, question, timeout, **security)
    if told is None:
        return None
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


def committed_offsets(
    bootstrap_servers: str,
    groups: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    waits_for_undecided: bool = True,
    **security: Any,
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    """Return what consumer groups have committed, once nothing of it is undecided.

    Offsets that an open transaction has written, and not yet committed or aborted, make a
    partition undecided (UNSTABLE_OFFSET_COMMIT, with offset -1): that is waited for (KIP-447,
    OffsetFetch with RequireStable). Name the partitions where an undecided offset must not be
    taken for an absent one: a broker that is asked for all of them leaves out those that have
    never had any but undecided offsets.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        groups: Group ids.
        partitions: Which partitions to ask for, the same in every group; None for all that a group
            has offsets of.
        waits_for_undecided: False returns what was committed before, whatever an open transaction
            may still commit.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        For each group its partitions' offsets; a partition without one is left out.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        UnstableOffsetCommitError: A transaction stayed undecided all that time.
        KafkaError: The cluster refused.
    """
    names = list(groups)
    if not names:
        return {}
    places = None if partitions is None else [KafkaPartition(*place) for place in partitions]

    def question(client: KafkaAdminClient) -> dict[str, dict[Any, Any]]:
        usual = client._list_group_offsets_requests  # noqa: SLF001 - it has no such option

        asked_stable = False

        def stable(specs: Any) -> Iterator[Any]:
            nonlocal asked_stable
            asked_stable = True
            for group, request in usual(specs):
                request.require_stable = True
                yield group, request

        if waits_for_undecided:
            client._list_group_offsets_requests = stable  # noqa: SLF001
        found: dict[str, dict[Any, Any]] = client.list_group_offsets(dict.fromkeys(names, places))
        if (
            waits_for_undecided and not asked_stable
        ):  # never take an undecided offset for an absent one
            raise KafkaError("this kafka-python asks for offsets in a way that is not known here")
        return found

    answer = ask(bootstrap_servers, question, timeout, **security)
    return {
        group: {
            TopicPartition(place.topic, place.partition): OffsetAndMetadata(
                one.offset,
                one.metadata or "",
                -1 if one.leader_epoch is None else one.leader_epoch,
            )
            for place, one in offsets.items()
            if one.offset >= 0
        }
        for group, offsets in answer.items()
    }


def broker_setting(
    bootstrap_servers: str, name: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> str | None:
    """Return a setting of one of the brokers.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        name: Kafka's name of it.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Returns:
        Its value; None if the broker has no such setting.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused (needs DescribeConfigs on the cluster).
    """

    def question(client: KafkaAdminClient) -> Any:
        broker = str(min(_broker_ids(client)))
        resource = ConfigResource(ConfigResourceType.BROKER, broker, {name: None})
        return client.describe_configs([resource], config_filter="all")

    answer = ask(bootstrap_servers, question, timeout, **security)
    for resources in answer.values():
        for settings in resources.values():
            if name in settings:
                found = settings[name]
                value = found.get("value") if isinstance(found, Mapping) else found
                return None if value is None else str(value)
    return None


def partition_count(
    bootstrap_servers: str, topic: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> int | None:
    """Return how many partitions a topic has; None if there is no such topic.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused.
    """

    def question(client: KafkaAdminClient) -> Any:
        return client.describe_topics([topic])

    try:
        described = ask(bootstrap_servers, question, timeout, **security)
    except UnknownTopicOrPartitionError:
        return None
    if not described or described[0].get("error_code"):
        return None
    return len(described[0]["partitions"])


def group_ids(
    bootstrap_servers: str, prefix: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> list[str]:
    """Return the ids of all consumer groups that begin with a prefix, in order.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        prefix: What they begin with.
        timeout: Seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: The cluster did not answer in time.
        KafkaError: The cluster refused (a group is listed to who may Describe it).
    """

    def question(client: KafkaAdminClient) -> Any:
        return client.list_groups()

    found = ask(bootstrap_servers, question, timeout, **security)
    names = (group["group_id"] for group in found)
    return sorted(name for name in names if name.startswith(prefix))
