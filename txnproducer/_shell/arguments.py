"""The checks that turn the arguments of `send` into bytes, or refuse them.

Owns: the checks of key, value, headers, partition, timestamp, time-out, names, claims and
functions.
Must not know: producers, transactions, serializers. Nothing here changes any state, so a refused
call has no effect.
Rules: every refusal names the argument and the way out. A key or value that is a str is never
encoded silently: a reader of the topic would have to guess the same encoding. A header's value is
encoded as UTF-8: its name is UTF-8 as well, and other clients take both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from math import inf, isnan
from operator import index
from typing import Any, Final, TypeAlias

from txnproducer._record.format import MAX_INT64, Header

__all__ = [
    "IN_TASKS",
    "Headers",
    "as_names",
    "check_callback",
    "check_claim",
    "check_headers",
    "check_place",
    "refuse_coroutine",
    "seconds",
    "to_bytes",
    "to_seconds",
]

IN_TASKS: Final = "Use txnproducer.aio.AsyncTransactionalProducer.run_transaction"
HeaderValue: TypeAlias = bytes | bytearray | memoryview | str | None
Headers: TypeAlias = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]


def to_bytes(name: str, data: object) -> bytes | None:
    """Return a key or a value as bytes.

    Args:
        name: "key" or "value", for the message.
        data: bytes or anything bytes-like. None stays None (a tombstone, as a value).

    Raises:
        TypeError: the data is not bytes-like.
    """
    if data is None or type(data) is bytes:
        return data
    # A subclass, such as NumPy's `bytes_`, is not taken by compiled code: make it exactly bytes.
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    advice = f"{name}.encode()" if isinstance(data, str) else "bytes"
    raise TypeError(
        f"{name} must be bytes, not {type(data).__name__}: pass {advice}, or make the producer"
        f" with {name}_serializer=..."
    )


def check_headers(headers: Headers) -> tuple[Header, ...]:
    """Return headers as a tuple of pairs.

    Args:
        headers: a mapping of names to values, or pairs of them; a value is bytes, a str (it is
            encoded as UTF-8) or None.

    Raises:
        TypeError: a header is not a pair of a name and such a value; the error names it.
        ValueError: a name or value cannot be encoded in UTF-8; the error names the header.
    """
    # Nearly all are one of these, and the abstract types below cost more than the rest.
    if type(headers) is list or type(headers) is tuple:
        return tuple([_check_header(place, header) for place, header in enumerate(headers)])
    pairs: object = headers.items() if isinstance(headers, Mapping) else headers
    # Both can be iterated over, and each character would be refused as a pair.
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(
            f"headers must be a mapping, or (name, value) pairs, not a {type(pairs).__name__}"
        )
    return tuple([_check_header(place, header) for place, header in enumerate(pairs)])


def _check_header(place: int, header: object) -> Header:
    if not isinstance(header, (tuple, list)) or len(header) != 2:
        raise TypeError(f"headers[{place}] must be a pair of name and value, not {header!r}")
    name, value = header
    if not isinstance(name, str):
        raise TypeError(f"headers[{place}]: the name must be a str, not {name!r}")
    try:
        # Also the name: half a surrogate pair is found out here, and not when the batch is sent.
        name.encode()
        if isinstance(value, str):
            return name, value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"headers[{place}] ({name!r}): {error}") from None
    if value is None or isinstance(value, bytes):
        return name, value
    if isinstance(value, bytearray | memoryview):
        # A copy, since the caller may change the original before the record is sent.
        return name, bytes(value)
    raise TypeError(
        f"headers[{place}] ({name!r}): the value must be bytes, str or None, not"
        f" {type(value).__name__}"
    )


def as_names(argument: str, given: object) -> list[str]:
    """Return names as a list.

    Args:
        argument: its name, for the message.
        given: several names. A str alone is refused: its letters would be taken for names.

    Raises:
        TypeError: it is a str, or has something that is none; the error names the right form.
    """
    if isinstance(given, str):
        raise TypeError(f"{argument} is {given!r}: it must be a list of names, as in [{given!r}]")
    names: list[str] = []
    for name in given if isinstance(given, Iterable) else [given]:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: a name must be a str, not {name!r}")
        names.append(name)
    return names


def refuse_coroutine(fn: object, way_out: str = IN_TASKS) -> None:
    """Refuse a function that a thread cannot call to its end.

    Args:
        fn: the function.
        way_out: for the message.

    Raises:
        TypeError: it is a coroutine function.
    """
    if inspect.iscoroutinefunction(fn):
        raise TypeError(
            f"{fn!r} is a coroutine function, which only an event loop runs to its end. {way_out}"
        )


def check_callback(on_delivery: object) -> None:
    """Refuse a delivery callback that could not be called, which would only be logged later.

    Raises:
        TypeError: it is neither a function nor None.
    """
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(
            "on_delivery must be a function of the record's metadata and error, not"
            f" {on_delivery!r}"
        )


def check_place(
    topic: object, partition: object, timestamp_ms: object
) -> tuple[int | None, int | None]:
    """Check a topic. Return the partition and the timestamp, each as an int or None.

    Args:
        topic: must be a str that is not empty.
        partition: an int, an object that stands for one (`__index__`, as NumPy's integers), or
            None.
        timestamp_ms: likewise.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the topic is empty, or a number is negative, or the timestamp too large.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    place = _check_count("partition", partition, "the producer chooses the partition")
    stamp = _check_count("timestamp_ms", timestamp_ms, "the present time")
    # Below 2^63-1, as records have it (`check_timestamp`).
    if stamp is not None and stamp >= MAX_INT64:
        raise ValueError(
            f"timestamp_ms must be 64-bit milliseconds since the epoch, not {stamp} (None: the"
            " present time)"
        )
    return place, stamp


def _check_count(name: str, number: Any, without: str) -> int | None:
    if number is None:
        return None
    count = _int(number)
    if count is None:
        raise TypeError(f"{name} must be an int or None, not {type(number).__name__}")
    if count < 0:
        raise ValueError(f"{name} must not be negative: {count} (None: {without})")
    return count


def _int(number: Any) -> int | None:
    """Return an int, also of a NumPy integer, or None if it is none."""
    # `index` takes `True` for 1, and a flag in this place is a mistake.
    if isinstance(number, bool):
        return None
    try:
        return index(number)
    except TypeError:
        return None


def check_claim(name: str, number: Any) -> int:
    """Return the number of a claim, or of claims, as an int.

    Raises:
        TypeError: it is no int.
    """
    count = _int(number)
    if count is None:
        raise TypeError(f"{name} must be an int, not {number!r} ({type(number).__name__})")
    return count


def seconds(timeout: Any) -> float:
    """Return a time-out as a float. None is no limit.

    Raises:
        TypeError: it is no number.
        ValueError: it is no number, or too large for a float.
    """
    if timeout is None:
        return inf
    # `float` would take "1" as well, and refuse "1 s" without the argument's name.
    if not isinstance(timeout, str | bytes | bytearray):
        try:
            limit_s = float(timeout)
        except TypeError:
            pass
        except OverflowError:
            raise ValueError("timeout is too large: give seconds, or None") from None
        else:
            if isnan(limit_s):
                raise ValueError("timeout is NaN: give seconds, or None")
            return limit_s
    raise TypeError(
        f"timeout must be a number of seconds, or None, not {timeout!r} ({type(timeout).__name__})"
    )


def to_seconds(timeout: Any) -> float:
    """Return a time-out in seconds, or refuse a negative one."""
    limit_s = seconds(timeout)
    if limit_s < 0:
        raise ValueError(
            f"timeout must not be negative: {timeout} (seconds; None for the default)"
        )
    return limit_s
