"""A topic for a ledger: one partition, compacted, with as many replicas as committed offsets have.

Owns: its settings, its creation, the questions for a topic that is there. Must not know: entries,
whose ledger it is, the texts of refusals.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from txnproducer.admin import GROUP_TOPIC, create_topic, replica_count, topic_settings
from txnproducer.errors import AuthorizationError, TopicAuthorizationError

_LOG = logging.getLogger(__name__)
SETTINGS: Final = {
    "cleanup.policy": "compact",
    # The newest segment is never compacted, and is read at each start. This is Kafka's minimum.
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.01",
    # Of the markers of transactions that have no record left: without it they stay for a day, and
    # are most of the log.
    "delete.retention.ms": "60000",
}


def create(bootstrap_servers: str, topic: str, security: Mapping[str, Any]) -> None:
    """Create the topic.

    Raises:
        TopicExistsError: another program was quicker.
        AuthorizationError: it may not be created; the text ends with the command that does.
        KafkaError: the cluster refused, or did not answer.
    """
    replicas = _replicas_of_offsets(bootstrap_servers, security)
    try:
        create_topic(bootstrap_servers, topic, 1, replicas, SETTINGS, **security)
    except AuthorizationError as error:
        settings = " ".join(f"--config {name}={value}" for name, value in SETTINGS.items())
        if replicas is not None:
            settings = f"--replication-factor {replicas} {settings}"
        raise type(error)(
            f"the topic {topic!r} of the ledger does not exist, and may not be created with "
            "these rights. Nothing was written. Way out: kafka-topics.sh --bootstrap-server "
            f"{bootstrap_servers} --create --topic {topic} --partitions 1 {settings}"
        ) from error
    number = "the cluster's default number of" if replicas is None else replicas
    _LOG.info("the topic %s was created for the ledger, with %s replicas", topic, number)


def _replicas_of_offsets(bootstrap_servers: str, security: Mapping[str, Any]) -> int | None:
    """Return the number of replicas that a ledger in offsets has; None if it is not known.

    The cluster's default for topics is often smaller, and Kafka's own is 1.
    """
    try:
        return replica_count(bootstrap_servers, GROUP_TOPIC, **security)
    except TopicAuthorizationError:
        return None


def losing_policy(bootstrap_servers: str, topic: str, security: Mapping[str, Any]) -> str | None:
    """Return the topic's `cleanup.policy` if it would lose entries, as a text; otherwise None.

    Without the right to ask it is not known, and the log has a warning.
    """
    try:
        found = topic_settings(bootstrap_servers, topic, **security)
    except AuthorizationError as error:
        _LOG.warning(
            "cannot ask for the settings of the topic %s: %s. It must have cleanup.policy=compact",
            topic,
            error,
        )
        return None
    policy = found.get("cleanup.policy")
    return None if policy == "compact" else str(policy)
