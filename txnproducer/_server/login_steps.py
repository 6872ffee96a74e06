"""The first requests of a connection to a listener with logins, and its later logins.

Owns: which request may come when, the answers to the login's own requests. Must not know: frames,
the exchange of a mechanism, other requests.

The steps are those of Kafka's SaslServerAuthenticator. A client may ask for the versions once,
names a mechanism, and exchanges tokens. When it is logged in, it may begin again (KIP-368).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from txnproducer._server import schemas as s
from txnproducer._server.api import HangUpError
from txnproducer._server.login import LoginExchange, LoginFailedError, Users, new_exchange
from txnproducer.errors import ErrorCode

# From this version on the tokens of a login travel in SaslAuthenticate (KIP-152).
_FRAMED_LOGIN = 1


class Step(Enum):
    """The request that is due."""

    VERSIONS_OR_HANDSHAKE = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    TOKEN = "SaslAuthenticate"  # noqa: S105 - a request
    ANY = "any"


class LoginSteps:
    """The logins of one connection.

    Args:
        users: the users that may log in.

    Attributes:
        step: the request that is due.
        is_refused: whether the connection ends once the last answer is sent.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._exchange: LoginExchange | None = None
        self._mechanism = ""
        # Of the login before, which the next one may not change.
        self._identity: tuple[str, str] | None = None
        self._session_end_ms: int | None = None
        self.step = Step.VERSIONS_OR_HANDSHAKE
        self.is_refused = False

    def look_at_the_clock(self, now_ms: int) -> None:
        """Note that the session is over, if it is: then only a login may come."""
        is_over = self._session_end_ms is not None and now_ms >= self._session_end_ms
        if is_over and self.step is Step.ANY:
            self.step = Step.HANDSHAKE

    @property
    def has_changed_mechanism(self) -> bool:
        """Whether the login under way has another mechanism than the one before."""
        return self._identity is not None and self._identity[0] != self._mechanism

    def may_begin(self) -> bool:
        """Return whether a handshake begins a login now."""
        if self.step is Step.ANY:
            # A broker takes the request for a misplaced one if the login does not end. (It also
            # does so within a second after the last repeated login began. Tests need shorter
            # sessions.)
            return self._session_end_ms is not None
        return self.step is not Step.TOKEN

    def versions_were_told(self) -> None:
        """Note the answer to ApiVersions, which only a handshake may follow."""
        self.step = Step.HANDSHAKE

    def begin(self, asked: Any) -> Any:
        """Answer SaslHandshake.

        Raises:
            HangUpError: a broker answers nothing.
        """
        if asked.version < _FRAMED_LOGIN:
            raise HangUpError  # tokens without Kafka's framing, as before Kafka 1.0
        self._exchange = new_exchange(asked.mechanism, self._users)
        self._mechanism = asked.mechanism
        code = ErrorCode.NONE
        if self._exchange is None:
            if self._identity is not None:
                raise HangUpError
            code, self.is_refused = ErrorCode.UNSUPPORTED_SASL_MECHANISM, True
        self.step = Step.TOKEN
        return s.SaslHandshakeResponse(
            version=asked.version, error_code=code, mechanisms=list(self._users.mechanisms)
        )

    def go_on(self, asked: Any, now_ms: int) -> Any:
        """Answer SaslAuthenticate.

        Raises:
            HangUpError: a broker answers nothing.
        """
        exchange = self._exchange
        if exchange is None or self.has_changed_mechanism:
            raise HangUpError
        try:
            token = exchange.answer(asked.auth_bytes)
            if exchange.is_done:
                self._check_user(exchange.user)
        except LoginFailedError as error:
            self.is_refused = True
            return s.SaslAuthenticateResponse(
                version=asked.version,
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=str(error) or self._failure(),
            )
        lifetime_ms = 0
        if exchange.is_done:
            # Until then the client has to log in again, on the same connection.
            lifetime_ms = self._users.lifetime_ms(exchange.lifetime_ms)
            self._session_end_ms = now_ms + lifetime_ms if lifetime_ms else None
            self._identity = (self._mechanism, exchange.user)
            self._exchange, self.step = None, Step.ANY
        return s.SaslAuthenticateResponse(
            version=asked.version, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )

    def _check_user(self, user: str) -> None:
        if self._identity is not None and self._identity[1] != user:
            raise LoginFailedError(
                "Cannot change principals during re-authentication from"
                f" User.{self._identity[1]}: User.{user}"
            )

    def _failure(self) -> str:
        again = "re-" if self._identity is not None else ""
        return (
            f"Authentication failed during {again}authentication due to invalid credentials with"
            f" SASL mechanism {self._mechanism}"
        )


def misplaced_handshake(asked: Any) -> Any:
    """Return the answer to a SaslHandshake that is not due."""
    return s.SaslHandshakeResponse(
        version=asked.version, error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]
    )


def misplaced_token(asked: Any) -> Any:
    """Return the answer to a SaslAuthenticate without a login under way."""
    return s.SaslAuthenticateResponse(
        version=asked.version,
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        # A listener without logins takes every client for one that has logged in.
        error_message="SaslAuthenticate request received after successful authentication",
    )
