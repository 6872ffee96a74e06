"""The errors of security: the login, the rights of a user, delegation tokens.

Why it exists: the fix of these lies in the cluster's users and rights, and not in the program.
Owns: their classes. Must not know: anything but the kinds. Users import all of it from
`txnproducer.errors`.
Rules: the parent is the one in the Java client 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from .codes import ErrorCode
from .kinds import InvalidConfigurationError, KafkaError, Recovery

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "ClusterAuthorizationError",
    "DelegationTokenAuthorizationError",
    "DelegationTokenDisabledError",
    "DelegationTokenExpiredError",
    "DelegationTokenNotFoundError",
    "DelegationTokenOwnerMismatchError",
    "GroupAuthorizationError",
    "IllegalSaslStateError",
    "SaslAuthenticationError",
    "SslAuthenticationError",
    "TopicAuthorizationError",
    "TransactionalIdAuthorizationError",
    "UnsupportedByAuthenticationError",
    "UnsupportedSaslMechanismError",
]


# Not retriable (KIP-152): the same credentials would be refused again.
class AuthenticationError(InvalidConfigurationError):
    """The broker does not accept the client's identity. Check the credentials."""


# A broker that expires a login closes the connection. This error is for a refused one.
class SaslAuthenticationError(AuthenticationError, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """The broker refused the SASL user or password.

    Check `sasl_mechanism`, `sasl_plain_username` and `sasl_plain_password`.
    """


# It has no code: the handshake fails before Kafka's protocol begins.
class SslAuthenticationError(AuthenticationError):
    """The TLS handshake failed: one side does not trust the other's certificate.

    Check `ssl_cafile` against the broker's certificate, the host name in it, and the client
    certificate if the broker asks for one.
    """


# The answer to SaslHandshake, which names the mechanisms that the listener has.
class UnsupportedSaslMechanismError(
    AuthenticationError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM
):
    """The broker's listener does not offer this `sasl_mechanism`. Choose one that it names."""


class IllegalSaslStateError(AuthenticationError, code=ErrorCode.ILLEGAL_SASL_STATE):
    """The broker did not expect this request in the state of the login.

    The listener has no SASL and the client uses it, or the reverse: check `security_protocol`.
    """


# "fix" and not "restart": the right can be granted while the producer lives.
class AuthorizationError(InvalidConfigurationError):
    """The user has no right to do this. Grant it, then make a new producer or retry."""


class TopicAuthorizationError(AuthorizationError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The user may not write to (or describe) these topics.

    Grant Write and Describe on the topic.

    Attributes:
        topics: the names of the topics, as far as they are known.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        topics: Iterable[str] = (),
        recovery: Recovery | None = None,
    ) -> None:
        # Read once, since it may be an iterator, and the text needs the names again.
        self.topics: frozenset[str] = frozenset(topics)
        if message is None and self.topics:
            message = f"not authorized to write to topics {sorted(self.topics)}"
        super().__init__(message, recovery=recovery)


# For offsets in a transaction, where the coordinator checks the group by itself.
class GroupAuthorizationError(AuthorizationError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The user may not commit offsets of this consumer group. Grant Read on the group.

    Attributes:
        group_id: the group, if it is known.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        group_id: str | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self.group_id = group_id
        if message is None and group_id is not None:
            message = f"not authorized to use group {group_id!r}: grant Read on it"
        super().__init__(message, recovery=recovery)


# From Kafka 3.0 on, Write on any topic gives the right as well (KIP-679).
class ClusterAuthorizationError(AuthorizationError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The user may not do this on the cluster.

    For a producer without a transactional id on brokers before 3.0: grant IdempotentWrite.
    """


# Without the right the coordinator does not tell whether the id exists.
class TransactionalIdAuthorizationError(
    AuthorizationError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
):
    """The user may not use this transactional id. Grant Write and Describe on it."""


class DelegationTokenAuthorizationError(
    AuthorizationError, code=ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
):
    """The user may not do this with the delegation token. Grant the right on it."""


class DelegationTokenDisabledError(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, recovery="fix"
):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFoundError(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND, recovery="fix"
):
    """The delegation token is not known to the broker."""


class DelegationTokenOwnerMismatchError(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, recovery="fix"
):
    """The delegation token belongs to another owner."""


class UnsupportedByAuthenticationError(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, recovery="fix"
):
    """Requests for delegation tokens are not allowed over this connection."""


class DelegationTokenExpiredError(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_EXPIRED, recovery="fix"
):
    """The delegation token has expired."""
