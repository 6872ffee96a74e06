"""Token providers by dotted name. The driver and each task import the object for themselves.

Why it exists: settings reach the tasks in their closure, and a provider often cannot be pickled:
it holds a session with an identity provider, or a secret.

Owns: the import, the kinds of objects that a name may stand for. Must not know: tokens, Spark.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from txnproducer._wire.called_tokens import token_provider
from txnproducer._wire.kafka_python import AbstractTokenProvider
from txnproducer.errors import InvalidConfigurationError


# A dataclass, so that copies are equal: kept connections are found by their settings.
@dataclass(frozen=True)
class NamedTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A provider that is imported by its name when a token is needed.

    Attributes:
        name: "module:name" or "module.name" of a provider, of a class or function without
            arguments that makes one, or of a function without arguments that returns a token, or
            a token and the time of its end.
    """

    name: str

    def token(self) -> str:
        """Return the provider's token."""
        # As it is: the text of another object, such as None, would be sent as a token.
        token: str = provider_of(self.name).token()
        return token

    def extensions(self) -> Any:
        """Return the provider's extensions."""
        return provider_of(self.name).extensions()


class _TokensOf(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A function that returns tokens, as a provider."""

    def __init__(self, function: Callable[[], str]) -> None:
        super().__init__()
        self._function = function

    def token(self) -> str:
        """Return a token."""
        return self._function()


@functools.cache
def provider_of(name: str) -> Any:
    """Return the provider of a name. Each process has one.

    Raises:
        InvalidConfigurationError: the name cannot be imported, or is no provider.
    """
    # As entry points are written, or with a dot.
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
    # ValueError is `import_module`'s answer to a name without a dot, which has no module.
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigurationError(
            f"sasl_oauth_token_provider={name!r} cannot be imported ({error}): give a dotted name "
            "such as 'mypackage.tokens:provider', in a module that the driver and the executors "
            "can import"
        ) from error
    # An instance may be callable, too.
    if not callable(found) or _is_provider(found):
        provider = found
    else:
        try:
            provider = found()
        except TypeError as error:
            raise _refused(name, f"cannot be called without arguments ({error})") from error
        if isinstance(provider, str):
            provider = _TokensOf(found)
        elif isinstance(provider, tuple):
            provider = token_provider(found)
    if not _is_provider(provider):
        raise _refused(name, f"is a {type(provider).__name__}")
    return provider


def _refused(name: str, why: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"sasl_oauth_token_provider={name!r} {why}: it must be an instance of kafka-python's"
        " AbstractTokenProvider, a class or function that makes one without arguments, or a"
        " function that returns a token, or (token, expires_at)"
    )


def _is_provider(found: Any) -> bool:
    return isinstance(found, AbstractTokenProvider)
