"""Questions about the settings of brokers and topics, as Kafka describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from ._connection import ask

__all__ = ["described", "value_of"]


def described(
    bootstrap_servers: str,
    find: Callable[[KafkaAdminClient], ConfigResource],
    timeout: float,
    **security: Any,
) -> Mapping[str, Any]:
    """Return the settings of one resource by name, each as kafka-python returns it."""

    def question(client: KafkaAdminClient) -> Any:
        # By default kafka-python leaves out the settings that have Kafka's own default.
        return client.describe_configs([find(client)], config_filter="all")

    of_types = ask(bootstrap_servers, question, timeout, **security)
    found: Mapping[str, Any] = next(iter(next(iter(of_types.values())).values()))
    return found


def value_of(setting: Any) -> Any:
    """Return the value of a described setting; None if there is no such setting."""
    return setting.get("value") if isinstance(setting, Mapping) else setting
