"""The questions of a producer to its cluster, asked with the producer's own settings."""

from __future__ import annotations

import logging
from typing import Final

from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._brokers import broker_setting
from ._groups import committed_offsets

_LOG = logging.getLogger(__name__)

# The wait for a setting, which only completes a text or a judgement.
_SETTING_S: Final = 2.0


class ProducerQuestions:
    """The questions for which a producer's own connections have no request.

    Args:
        config: the producer's settings.
        timeout_s: for one question.
    """

    def __init__(self, config: ProducerConfig, timeout_s: float) -> None:
        self._servers = ",".join(config.bootstrap_servers)
        self._security = {
            name: value for name, value in config.security.items() if value is not None
        }
        self._timeout_s = timeout_s

    def ask_entries(
        self, group: str, place: TopicPartition | None, *, waits: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, of one place or of all. See `completing`."""
        places = None if place is None else [place]
        found = committed_offsets(
            self._servers,
            [group],
            self._timeout_s,
            partitions=places,
            waits_for_undecided=waits,
            **self._security,
        )
        return found[group]

    def ask_setting(self, name: str) -> str | None:
        """Return a setting of the brokers, or None if they do not tell it."""
        try:
            return broker_setting(self._servers, name, _SETTING_S, **self._security)
        except KafkaError as error:
            # It only completes the text of an error, or replaces the setting's default.
            _LOG.debug("the brokers do not tell %s: %s", name, error)
            return None
