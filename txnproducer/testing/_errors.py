"""The errors of the test kit, for failures before a broker runs.

Each names the missing part and the way out.
"""

from __future__ import annotations

from txnproducer.errors import KafkaError


class EmbeddedKafkaError(KafkaError, recovery="fix"):
    """A Kafka broker of our own could not be set up. The message names the way out."""


class JavaNotFoundError(EmbeddedKafkaError):
    """No Java that can run this version of Kafka was found."""


class JarsUnavailableError(EmbeddedKafkaError):
    """Kafka's jars are neither in the cache nor could they be fetched."""


class PortInUseError(EmbeddedKafkaError):
    """A requested port is taken."""


class BrokerStartError(EmbeddedKafkaError):
    """A broker process ended, or was not ready in time. The message names its log."""
