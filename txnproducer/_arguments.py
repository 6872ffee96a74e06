"""Turn what a caller passes to `send` into what a record is made of: bytes, or a clear refusal.

Owns: the checks of key, value, headers, partition and timestamp, and calling serializers.
Must not know: producers or transactions. Nothing here changes any state, so a refusal costs the
caller nothing but the call.
Rules: every refusal names the argument and the way out. A str is never encoded silently: which
encoding would be a guess that the reader of the topic has to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from txnproducer._record.format import Header
from txnproducer.config import Serializer
from txnproducer.errors import KafkaError, SerializationError

__all__ = ["Headers", "check_headers", "check_place", "to_bytes"]

Headers: TypeAlias = Sequence[Header]


def to_bytes(name: str, data: object, serializer: Serializer | None) -> bytes | None:
    """Return a key or a value as bytes.

    Args:
        name: "key" or "value", for the message.
        data: bytes or anything bytes-like; with a serializer, whatever that takes. None stays
            None (a tombstone, as a value) and is not given to the serializer.
        serializer: the producer's, if one was configured.

    Raises:
        SerializationError: the serializer raised, or returned something else than bytes.
        TypeError: not bytes-like, and there is no serializer.
    """
    if data is None:
        return None
    if serializer is not None:
        data = _serialize(name, data, serializer)
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    if data is None and serializer is not None:
        return None
    if serializer is not None:
        raise SerializationError(
            f"{name}_serializer returned a {type(data).__name__}: it must return bytes"
        )
    advice = f"{name}.encode()" if isinstance(data, str) else "bytes"
    raise TypeError(
        f"{name} must be bytes, not {type(data).__name__}: pass {advice}, or make the producer"
        f" with {name}_serializer=..."
    )


def _serialize(name: str, data: object, serializer: Serializer) -> object:
    try:
        return serializer(data)
    except KafkaError:
        raise
    except Exception as error:
        raise SerializationError(
            f"{name}_serializer failed for a {type(data).__name__}: {error!r}"
        ) from error


def check_headers(headers: Headers) -> tuple[Header, ...]:
    """Return headers as a tuple of pairs.

    Raises:
        TypeError: naming the header that is not a pair of a str and bytes (or None).
    """
    if isinstance(headers, str | bytes | dict) or not hasattr(headers, "__iter__"):
        raise TypeError(
            f"headers must be a sequence of (str, bytes) pairs, not a {type(headers).__name__}"
            + (": pass list(headers.items())" if isinstance(headers, dict) else "")
        )
    return tuple(_check_header(index, header) for index, header in enumerate(headers))


def _check_header(index: int, header: object) -> Header:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise TypeError(f"headers[{index}] must be a pair of name and value, not {header!r}")
    name, value = header
    if not isinstance(name, str):
        raise TypeError(f"headers[{index}]: the name must be a str, not {name!r}")
    if value is None or isinstance(value, bytes):
        return name, value
    if isinstance(value, bytearray | memoryview):
        return name, bytes(value)
    raise TypeError(
        f"headers[{index}] ({name!r}): the value must be bytes or None, not"
        f" {type(value).__name__}" + (": use .encode()" if isinstance(value, str) else "")
    )


def check_place(topic: object, partition: object, timestamp_ms: object) -> None:
    """Check topic, partition and timestamp; the last two may be None.

    Raises:
        TypeError: one is of the wrong type.
        ValueError: the topic is empty, or a number is negative.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    for name, number in (("partition", partition), ("timestamp_ms", timestamp_ms)):
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be an int or None, not {type(number).__name__}")
        if number < 0:
            raise ValueError(f"{name} must not be negative: {number} (None lets us choose)")
