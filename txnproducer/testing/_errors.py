"""What can go wrong before a broker runs.

Owns the errors of the test kit: each names what is missing and the way out of it.
"""

from __future__ import annotations

from txnproducer.errors import KafkaError


class EmbeddedKafkaError(KafkaError, recovery="fix"):
    """A Kafka broker of our own could not be set up; the message tells the way out."""


class JavaNotFoundError(EmbeddedKafkaError):
    """No Java that can run this version of Kafka was found."""


class JarsUnavailableError(EmbeddedKafkaError):
    """Kafka's jars are neither in the cache nor could they be fetched."""


class PortInUseError(EmbeddedKafkaError):
    """A port that was asked for is taken."""


class BrokerStartError(EmbeddedKafkaError):
    """A broker process ended, or was not ready in time; the message names its log."""
