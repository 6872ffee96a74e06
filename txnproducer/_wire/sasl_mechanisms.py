"""The SASL mechanisms of kafka-python, with the checks that it lacks.

Why it exists: kafka-python's mechanisms trust the broker and the user's token provider, and raise
errors of any class.
Owns: the making of a mechanism, the checks of its input, the errors of our side of a login.
Must not know: the exchange of a login (`handshake`).
Rules: an error names the setting to change; no text contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from txnproducer.errors import (
    DisconnectError,
    InvalidConfigurationError,
    KafkaError,
    SaslAuthenticationError,
)

from . import kafka_python as kp

T = TypeVar("T")

SCRAM_PREFIX = "SCRAM-"
# The Java client has the same lower bound and no upper one. A million take about a second.
_ITERATIONS = range(4_096, 1_000_001)
_MOST_DIGITS = 20
# The errors of a mechanism's constructor. A missing package is a RuntimeError.
_WRONG_SETTING = (KeyError, TypeError, ValueError, RuntimeError, kp.KafkaConfigurationError)
TOKEN_PROVIDER = "sasl_oauth_token_provider"  # noqa: S105  (a setting's name)


def make_mechanism(name: str, settings: Mapping[str, Any], host: str) -> Any:
    """Make kafka-python's implementation of a SASL mechanism.

    Args:
        name: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`, `GSSAPI`, `AWS_MSK_IAM`.
        settings: the security settings under kafka-python's names.
        host: the broker's name as configured.

    Raises:
        InvalidConfigurationError: a setting that the mechanism needs is missing or wrong.
        Exception: Kerberos failed, which is called when GSSAPI is made.
    """
    known = ", ".join(sorted(kp.SASL_MECHANISMS))
    if name not in kp.SASL_MECHANISMS:
        raise InvalidConfigurationError(f"sasl_mechanism is {name!r}: it must be one of {known}")
    given = {key: value for key, value in settings.items() if value is not None}
    given |= {"host": host, "sasl_mechanism": name}
    if name.startswith(SCRAM_PREFIX) and "sasl_plain_username" in given:
        # RFC 5802: these two separate the fields of a SCRAM message; kafka-python does not escape
        # them.
        user = str(given["sasl_plain_username"])
        given["sasl_plain_username"] = user.replace("=", "=3D").replace(",", "=2C")
    provider = given.get(TOKEN_PROVIDER)
    if isinstance(provider, kp.AbstractTokenProvider):
        given[TOKEN_PROVIDER] = _CheckedTokens(provider)
    try:
        return kp.get_sasl_mechanism(name)(**given)
    except Exception as error:  # a mechanism may raise any error
        if name == "GSSAPI" and not isinstance(error, _WRONG_SETTING):
            raise
        missing = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidConfigurationError(f"sasl_mechanism {name}: {missing}") from error


def check_iterations(mechanism: str, message: bytes) -> None:
    """Refuse an iteration count of a SCRAM server that is too small (as in Java), or too large."""
    for count in re.findall(rb"(?:^|,)i=([^,]*)", message):
        # The length first: `int` takes time, and raises, for a text of thousands of digits.
        if not (count.isdigit() and len(count) <= _MOST_DIGITS and int(count) in _ITERATIONS):
            raise SaslAuthenticationError(
                f"the broker asks for {count[:_MOST_DIGITS].decode(errors='replace')} iterations "
                f"of {mechanism}, but {_ITERATIONS.start} to {_ITERATIONS.stop - 1} are accepted. "
                "With fewer the password could be guessed from the messages of the login, and "
                "more would take seconds. Alter the user's credentials on the broker "
                "(kafka-configs --alter --add-config "
                f"'{mechanism}=[iterations=8192,password=...]')"
            )


class _CheckedTokens(kp.AbstractTokenProvider):  # type: ignore[misc]
    """The user's token provider, with a check of each token before it is sent.

    Args:
        given: the user's provider.
    """

    def __init__(self, given: kp.AbstractTokenProvider) -> None:
        super().__init__()
        self._given = given

    def token(self) -> str:
        """Return the user's token.

        Raises:
            ValueError: there is no token, perhaps for a moment.
            InvalidConfigurationError: the token is no string.
        """
        token = self._given.token()
        if token is None or token == "":
            raise ValueError(
                f"{TOKEN_PROVIDER}.token() returned {token!r}: it must return a token, as text"
            )
        if not isinstance(token, str):
            kind = type(token).__name__
            raise InvalidConfigurationError(
                f"{TOKEN_PROVIDER}.token() must return a str, and returned a value of type {kind}"
            )
        return token

    def extensions(self) -> dict[str, str]:
        """Return the user's extensions, or an empty dict for None."""
        extensions: dict[str, str] = self._given.extensions() or {}
        return extensions


def ask_our_side(name: str, step: Callable[[], T]) -> T:
    """Run a step that may call a token provider, or Kerberos.

    A wrong setting is an error that the user has to fix. Any other error may be temporary: an
    identity provider that cannot be reached, a ticket that is about to be renewed.
    """
    try:
        return step()
    except KafkaError:  # a provider may raise one of our errors to choose the reaction
        raise
    except kp.KafkaConfigurationError as error:
        raise SaslAuthenticationError(f"the {name} login failed on our side: {error}") from error
    except BaseException as error:
        raise DisconnectError(f"the {name} login failed on our side: {shown(error)}") from error


def shown(error: BaseException) -> str:
    """Return an unexpected error for a text that may be logged."""
    # The `repr` of these has the whole text that could not be encoded, such as a password.
    return type(error).__name__ if isinstance(error, UnicodeError) else repr(error)


def in_mechanism(name: str, step: Callable[[], T]) -> T:
    """Run one step of kafka-python's mechanism. Every error is a failed login."""
    try:
        return step()
    except Exception as error:
        raise SaslAuthenticationError(f"the {name} login failed on our side: {error}") from error
