"""The forms in which a program gives a serializer, and the one form in which it is called.

Why it exists: a function gets the value alone, an object with `serialize` also gets topic and
headers, and confluent-kafka's serializers get a context. A wrong guess would write wrong bytes.
Owns: the protocol `Serializer`, how the forms are told apart, the call of each. Must not know:
records, producers, the errors of a call.
Rules:
* The form is known when the configuration is built. It is decided by the object's type and
  signature, never by a call that may fail.
* An object that may be of two forms, or is asynchronous, is refused.
* confluent-kafka is never imported here: whoever has one of its serializers has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

__all__ = ["AnySerializer", "HeaderList", "Serializer"]

HeaderList: TypeAlias = list[tuple[str, bytes | None]]
"""The headers of a record while it is serialized. A serializer may add to them."""

Field: TypeAlias = Literal["key", "value"]
SerializerCall: TypeAlias = Callable[[str, Any, HeaderList], object]

_CONFLUENT = "confluent_kafka.serialization"
_AWAIT_IT = (
    "it is asynchronous, and `send` does not await it; await it in your program, and send its"
    " bytes without a serializer"
)


class Serializer(Protocol):
    """An object that makes bytes of keys or of values, and knows the record's topic and headers.

    A class need not derive from it. The names of the arguments count: they are passed by name.
    """

    def serialize(self, topic: str, value: Any, headers: HeaderList) -> bytes | None:
        """Return the bytes of a key or a value.

        It runs on the thread that calls `send`, and no lock is held meanwhile. An exception
        refuses the record: `send` raises `SerializationError`, and the transaction goes on without
        the record.

        Args:
            topic: the record's topic.
            value: the key or the value; never None, which is written as it is.
            headers: the record's headers, as pairs of a name and bytes or None. Headers that are
                appended here are written with the record.

        Returns:
            The bytes; or None for a tombstone, or for a record without a key.
        """
        ...


AnySerializer: TypeAlias = "Callable[[Any], bytes | None] | Serializer"
"""A function from a value to bytes, a `Serializer`, or a serializer of confluent-kafka."""


def problem_of(serializer: object) -> str | None:
    """Return why an object cannot be a serializer, with the way out; None if it can."""
    if isinstance(serializer, str):
        return (
            "a Java class name cannot be used; pass a Python function to bytes, such as "
            "str.encode, or a Serializer, or leave it out and send bytes"
        )
    if _is_of_confluent(serializer):
        return _AWAIT_IT if _is_asynchronous(serializer) else None
    serialize = getattr(serializer, "serialize", None)
    if callable(serialize):
        return _problem_of_method(serializer, serialize)
    if not callable(serializer):
        return (
            "it must be a function from your value to bytes, or an object with a method"
            " serialize(topic, value, headers)"
        )
    return _AWAIT_IT if _is_coroutine_function(serializer) else None


def _problem_of_method(serializer: object, serialize: Callable[..., object]) -> str | None:
    if isinstance(serializer, type):
        return f"it is a class; pass an instance, {serializer.__name__}(...)"
    # A mistake either way could write other bytes than the program expects.
    if callable(serializer):
        return (
            "it can be called, and has a method `serialize` as well; pass the one that is meant"
            " as a function from your value to bytes"
        )
    try:
        # By name: kafka-python's serializers have these arguments in another order.
        inspect.signature(serialize).bind(topic="", value=None, headers=[])
    except (TypeError, ValueError) as error:
        return (
            f"its method `serialize` cannot be called with topic, value and headers ({error});"
            " name its arguments so, or pass a function from your value to bytes"
        )
    return _AWAIT_IT if _is_coroutine_function(serialize) else None


def call_of(field: Field, serializer: AnySerializer) -> SerializerCall:
    """Return a serializer in the one form in which it is called.

    Args:
        field: the part of a record that it makes, which confluent-kafka's serializers ask for.
        serializer: without a problem, see `problem_of`.
    """
    given: Any = serializer
    if _is_of_confluent(given):
        return _confluent_call(field, given)
    serialize = getattr(given, "serialize", None)
    if callable(serialize):
        return lambda topic, value, headers: serialize(topic=topic, value=value, headers=headers)
    return lambda _topic, value, _headers: given(value)


def _confluent_call(field: Field, serializer: Callable[..., object]) -> SerializerCall:
    context = sys.modules[_CONFLUENT].SerializationContext
    of_record = sys.modules[_CONFLUENT].MessageField(field)
    return lambda topic, value, headers: serializer(value, context(topic, of_record, headers))


def _is_of_confluent(serializer: object) -> bool:
    # The module is there if the program has one of its objects.
    module = sys.modules.get(_CONFLUENT)
    return module is not None and isinstance(serializer, module.Serializer)


def _is_asynchronous(serializer: object) -> bool:
    # Their `__call__` is a plain function that returns a coroutine, so only the base class tells.
    return any(kind.__name__ == "AsyncBaseSerializer" for kind in type(serializer).__mro__)


def _is_coroutine_function(function: object) -> bool:
    of_instance = getattr(function, "__call__", None)  # noqa: B004 - the method itself is meant
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(of_instance)
