"""Tokens of a function of the user's, for logins by OAUTHBEARER.

Why it exists: every connection logs in, and again before its session ends. A function that asks an
identity provider should run once for all of them.
Owns: the token in use, the time of the next one, the check of the function's result. Must not
know: logins, connections.
Rules: the function runs on the threads of logins, and on one of them at a time; no text has a
token. Nothing bounds the function here: the attempt to connect has a limit, and a login that hangs
is not repeated meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import InvalidConfigurationError, KafkaError

from . import kafka_python as kp
from .platform import SYSTEM, Platform
from .sasl_mechanisms import TOKEN_PROVIDER, shown

__all__ = ["CalledTokens", "OAuthCallable", "token_provider", "with_token_provider"]

OAuthCallable: TypeAlias = Callable[[], tuple[str, float | datetime]]

_LOG: Final = held_logger(__name__)
# A new token is asked for when this part of the life of the old one is over, as in Java
# (sasl.login.refresh.window.factor). Logins are repeated later in a session's life than that.
_FRESH: Final = 0.8
# Of the years 2001 and 5138. A smaller number is a lifetime, a larger one is milliseconds.
_EPOCHS_S: Final = (1e9, 1e11)


def with_token_provider(
    settings: Mapping[str, Any], platform: Platform = SYSTEM
) -> Mapping[str, Any]:
    """Return settings under kafka-python's names, with a provider in place of a function.

    Raises:
        InvalidConfigurationError: the setting is neither.
    """
    if settings.get(TOKEN_PROVIDER) is None:
        return settings
    return {**settings, TOKEN_PROVIDER: token_provider(settings[TOKEN_PROVIDER], platform)}


def token_provider(given: Any, platform: Platform = SYSTEM) -> kp.AbstractTokenProvider:
    """Return the provider that a setting stands for.

    Args:
        given: a provider, or a function that returns a token and the time of its end.
        platform: has the clocks and the lock.

    Raises:
        InvalidConfigurationError: it is neither.
    """
    if isinstance(given, kp.AbstractTokenProvider):
        return given
    if not callable(given) or isinstance(given, type):
        kind = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise InvalidConfigurationError(
            f"{TOKEN_PROVIDER} must be a function that returns (token, expires_at), or an instance"
            f" of kafka-python's AbstractTokenProvider, not {kind}"
        )
    return CalledTokens(given, platform)


class CalledTokens(kp.AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """The tokens of a function, each kept for most of its life.

    Args:
        function: returns a token and the time of its end.
        platform: has the clocks and the lock.
    """

    def __init__(self, function: OAuthCallable, platform: Platform) -> None:
        super().__init__()
        self._function = function
        self._platform = platform
        self._lock = platform.lock()
        self._token = ""
        # Of the monotonic clock: nobody may set it while a token is kept.
        self._due_ms = self._ends_ms = platform.monotonic_ms()

    def token(self) -> str:
        """Return a token that is valid for some time.

        Raises:
            InvalidConfigurationError: the function returns something else.
            Exception: raised by the function, and no token before is still valid.
        """
        # One after the other: connections that are made at the same time need one token.
        with self._lock:
            began_ms = self._platform.monotonic_ms()
            if began_ms < self._due_ms:
                return self._token
            try:
                token, end_ms = _checked(self._function())
            except KafkaError:  # the function may raise one of our errors to choose the reaction
                raise
            except Exception as error:
                left_ms = self._ends_ms - self._platform.monotonic_ms()
                if left_ms <= 0:
                    raise
                # As Java does: an identity provider that is away for a minute ends no login.
                _LOG.warning(
                    "%s failed, and the token before is used again, which is valid for %d s: %s",
                    TOKEN_PROVIDER,
                    left_ms // 1000,
                    shown(error),
                )
                return self._token
            life_ms = end_ms - self._platform.wall_clock_ms()
            self._token = token
            self._ends_ms = began_ms + life_ms
            self._due_ms = began_ms + int(life_ms * _FRESH)
            return token


def _checked(found: object) -> tuple[str, int]:
    """Return a function's result as a token, and its end in milliseconds since the epoch."""
    if inspect.iscoroutine(found):
        found.close()  # or Python would warn that nobody has awaited it
        raise _wrong("a coroutine: use a plain function, which may run an event loop of its own")
    if not isinstance(found, tuple | list) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise _wrong(f"a {type(found).__name__}{size}")
    token, expires_at = found
    if token is None or token == "":
        # Perhaps there is one in a moment.
        raise ValueError(f"{TOKEN_PROVIDER} returned no token: {token!r}")
    if not isinstance(token, str):
        raise _wrong(f"a token of type {type(token).__name__}, which must be a str")
    return token, round(_epoch_s(expires_at) * 1000)


def _epoch_s(expires_at: object) -> float:
    if isinstance(expires_at, datetime):
        # The time zone of the machine would be a guess.
        if expires_at.tzinfo is None:
            raise _wrong("a datetime without a time zone: use datetime.now(UTC) + timedelta(...)")
        return expires_at.timestamp()
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        raise _wrong(
            f"an expires_at of type {type(expires_at).__name__}, which must be seconds since the"
            " epoch, or a datetime"
        )
    low, high = _EPOCHS_S
    if not low <= expires_at <= high:  # written like this, NaN is refused as well
        raise _wrong(
            f"expires_at={expires_at}, which is no time in seconds since the epoch: add"
            " time.time() to a lifetime, and divide milliseconds by 1000"
        )
    return float(expires_at)


def _wrong(kind: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"{TOKEN_PROVIDER} must return (token, expires_at), and returned {kind}"
    )
