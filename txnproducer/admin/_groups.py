"""Consumer groups: their ids, their committed offsets, a user's rights on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.protocol.admin.groups import DescribeGroupsRequest

from txnproducer._shell.arguments import as_names
from txnproducer.errors import KafkaError, UnstableOffsetCommitError
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._connection import DEFAULT_TIMEOUT, Asker, ask, some
from ._topics import operations


def group_ids(
    bootstrap_servers: str, prefix: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> list[str]:
    """Return the ids of all consumer groups that begin with a prefix, in order.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        prefix: the prefix of their ids.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused (a group is listed only with the right to Describe it).
    """

    def question(client: KafkaAdminClient) -> Any:
        return client.list_groups()

    found = ask(bootstrap_servers, question, timeout, **security)
    names = (group["group_id"] for group in found)
    # Chosen here: ListGroups can't ask for a prefix.
    return sorted(name for name in names if name.startswith(prefix))


def group_operations(
    bootstrap_servers: str,
    groups: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> dict[str, frozenset[str] | None]:
    """Return a user's rights on consumer groups, even if the groups do not exist yet (KIP-430).

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        groups: their ids.
        timeout: seconds.
        **security: kafka-python's security settings.

    Returns:
        For each group the allowed operations, by Kafka's names ("READ", "DESCRIBE"); None if the
        cluster does not report them (before 2.3).

    Raises:
        GroupAuthorizationError: the user may not even Describe one of them.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """
    names = as_names("groups", groups)

    def question(client: KafkaAdminClient) -> dict[str, Any]:
        def request(group_ids: Iterable[str]) -> Any:
            # From version 6 on, the answer has no rights for a group that does not exist yet.
            return DescribeGroupsRequest(
                groups=list(group_ids), include_authorized_operations=True, max_version=5
            )

        # On this client alone, which is closed after the question.
        client._describe_groups_request = request  # noqa: SLF001 - it has no such option
        described: dict[str, Any] = client.describe_groups(names)
        return described

    described = ask(bootstrap_servers, question, timeout, **security)
    return {name: operations(described[name]) for name in names}


def committed_offsets(
    bootstrap_servers: str,
    groups: Iterable[str],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    waits_for_undecided: bool = True,
    asker: Asker | None = None,
    **security: Any,
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    """Return the committed offsets of consumer groups, once none of them is undecided.

    Offsets that an open transaction has written, and not yet committed or aborted, make a
    partition undecided (UNSTABLE_OFFSET_COMMIT, with offset -1). This call waits for them
    (KIP-447, OffsetFetch with RequireStable). Name the partitions if an undecided offset must not
    count as absent: a broker that is asked for all partitions leaves out those that have never had
    any but undecided offsets.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        groups: group ids.
        partitions: the partitions to ask for, the same in every group; None for all partitions
            with offsets of the group.
        waits_for_undecided: False returns the offsets committed before, whatever an open
            transaction may still commit.
        timeout: seconds.
        asker: puts the question; `ask` by default.
        **security: kafka-python's security settings.

    Returns:
        For each group its partitions' offsets; a partition without one is left out.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        UnstableOffsetCommitError: a transaction stayed undecided all that time.
        KafkaError: the cluster refused.
    """
    names = as_names("groups", groups)
    if not names:
        return {}
    places = None if partitions is None else [KafkaPartition(*place) for place in partitions]

    def question(client: KafkaAdminClient) -> dict[str, dict[Any, Any]]:
        # Wrapped, since the client knows the versions, and the coordinators to which requests go.
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
        try:
            found: dict[str, dict[Any, Any]] = client.list_group_offsets(
                dict.fromkeys(names, places)
            )
        finally:  # the client may be used again, for other questions
            client._list_group_offsets_requests = usual  # noqa: SLF001
        if (
            waits_for_undecided and not asked_stable
        ):  # never take an undecided offset for an absent one
            raise KafkaError(
                "the installed kafka-python asks for a group's offsets in a new way, in which"
                " undecided offsets would count as absent: install an earlier version of it"
            )
        return found

    try:
        answer = (asker or ask)(bootstrap_servers, question, timeout, **security)
    except UnstableOffsetCommitError as error:
        # The client names the partition alone, which is the same in every group.
        raise UnstableOffsetCommitError(
            f"an open transaction has written offsets of one of the groups {some(names)}, and was"
            f" neither committed nor aborted in {timeout:g} s ({error}). It ends by its time-out,"
            " or when its transactional id is taken"
        ) from error
    return {
        group: {
            TopicPartition(place.topic, place.partition): OffsetAndMetadata(
                one.offset,
                one.metadata or "",
                # -1 stands for an unknown epoch in the protocol (KIP-320).
                -1 if one.leader_epoch is None else one.leader_epoch,
            )
            for place, one in offsets.items()
            # The broker answers with -1 for a partition without a committed offset.
            if one.offset >= 0
        }
        for group, offsets in answer.items()
    }
