"""Readers of the values of options: each returns the checked value, or says how it should be.

Owns: how a value is read. Must not know: which options there are.

A reader takes the option's name, as the user wrote it, and the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from txnproducer.errors import InvalidConfigurationError

_SINK_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


def text(label: str, value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidConfigurationError(f"{label}={value!r}: must be a text, and not empty")
    return value


def sink_id(label: str, value: Any) -> str:
    """Read the name of a sink, of which ids and groups are made."""
    if not isinstance(value, str) or not _SINK_ID.fullmatch(value):
        raise InvalidConfigurationError(
            f"{label}={value!r}: letters, digits, _ and - only, since ids and groups are made "
            "from it; choose it once, and keep it as long as the query lives"
        )
    return value


def one_of(*allowed: str) -> Callable[[str, Any], str]:
    """Return the reader of one of these words."""

    def read(label: str, value: Any) -> str:
        if value not in allowed:
            words = " or ".join(repr(word) for word in allowed)
            raise InvalidConfigurationError(f"{label}={value!r}: must be {words}")
        return str(value)

    return read


def boolean(label: str, value: Any) -> bool:
    """Read true or false."""
    # As a text: Spark writes Python's True as "true" when it passes an option on.
    text = str(value).lower()
    if text not in ("true", "false"):
        raise InvalidConfigurationError(f"{label}={value!r}: must be true or false")
    return text == "true"


def number_of(what: str) -> Callable[[str, Any], int]:
    """Return the reader of a number above 0."""

    def read(label: str, value: Any) -> int:
        text = str(value)
        # `isdigit` alone takes other scripts' digits, and also signs like a superscript 2.
        is_number = not isinstance(value, bool) and text.isascii() and text.isdigit()
        if not is_number or int(text) == 0:
            raise InvalidConfigurationError(f"{label}={value!r}: must be {what} above 0")
        return int(text)

    return read


def count(label: str, value: Any) -> int:
    """Read a number, 0 or above."""
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise InvalidConfigurationError(f"{label}={value!r}: must be an integer, 0 or above")
    return int(text)
