"""Access control of a real broker: a resource that is refused for a while.

Owns: `denial`. Must not know: what requests are answered then.
Rules:
* Without a login everybody is the same principal, the brokers among themselves and we ourselves
  too. So of the cluster only that is refused which makes an idempotent producer: its operation of
  the cluster, and writing to any topic, either of which would do (KIP-679).
* An ACL is in force once the broker tells of it; its metadata comes after the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)

from integration.waiting import wait_until
from txnproducer._broker.resources import Resource

_EVERYBODY = "User:ANONYMOUS"
_ANY_HOST = "*"
_TYPES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
_IDEMPOTENCE = (
    (ResourceType.CLUSTER, "kafka-cluster", ACLOperation.IDEMPOTENT_WRITE),
    (ResourceType.TOPIC, "*", ACLOperation.WRITE),
)


@contextmanager
def denial(client: KafkaAdminClient, resource: Resource, name: str) -> Iterator[None]:
    """Refuse access to a resource while the block lasts.

    Args:
        client: an administrator's.
        resource: the kind.
        name: of the resource; "" for the cluster.
    """
    acls = _acls(resource, name)
    client.create_acls(acls)
    wait_until(lambda: all(client.describe_acls(acl)[0] for acl in acls), "an ACL is not in force")
    try:
        yield
    finally:
        client.delete_acls([_filter_of(acl) for acl in acls])
        wait_until(
            lambda: not any(client.describe_acls(acl)[0] for acl in acls),
            "an ACL is still in force",
        )


def _acls(resource: Resource, name: str) -> list[ACL]:
    if resource is not Resource.CLUSTER:
        pattern = ResourcePattern(_TYPES[resource], name)
        return [_acl(pattern, ACLOperation.ALL, ACLPermissionType.DENY)]
    acls = []
    for kind, full_name, operation in _IDEMPOTENCE:
        pattern = ResourcePattern(kind, full_name)
        # A resource that has an ACL is no longer open to everybody for the rest.
        acls.append(_acl(pattern, ACLOperation.ALL, ACLPermissionType.ALLOW))
        acls.append(_acl(pattern, operation, ACLPermissionType.DENY))
    return acls


def _acl(pattern: ResourcePattern, operation: ACLOperation, kind: ACLPermissionType) -> ACL:
    return ACL(_EVERYBODY, _ANY_HOST, operation, kind, pattern)


def _filter_of(acl: ACL) -> ACLFilter:
    return ACLFilter(
        acl.principal, acl.host, acl.operation, acl.permission_type, acl.resource_pattern
    )
