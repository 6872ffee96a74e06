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


class AuthenticationError(InvalidConfigurationError):
    """The broker does not accept the client's identity. Check the credentials."""


class SaslAuthenticationError(AuthenticationError, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """The broker refused the SASL user or password.

    Check `sasl_mechanism`, `sasl_plain_username` and `sasl_plain_password`.
    """


class SslAuthenticationError(AuthenticationError):
    """The TLS handshake failed: one side does not trust the other's certificate.

    Check `ssl_cafile` against the broker's certificate, the host name in it, and the client
    certificate if the broker asks for one.
    """


class UnsupportedSaslMechanismError(
    AuthenticationError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM
):
    """The broker's listener does not offer this `sasl_mechanism`. Choose one that it names."""


class IllegalSaslStateError(AuthenticationError, code=ErrorCode.ILLEGAL_SASL_STATE):
    """The broker did not expect this request in the state of the login.

    The listener has no SASL and the client uses it, or the reverse: check `security_protocol`.
    """


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
        self.topics: frozenset[str] = frozenset(topics)
        if message is None and self.topics:
            message = f"not authorized to write to topics {sorted(self.topics)}"
        super().__init__(message, recovery=recovery)


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


class ClusterAuthorizationError(AuthorizationError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The user may not do this on the cluster.

    For a producer without a transactional id on brokers before 3.0: grant IdempotentWrite.
    """


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
