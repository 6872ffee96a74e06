"""The serializers' part in a record: their calls, and the errors of these.

Owns: the order of the calls, the check of their results, the headers that they add, the refusal
of what was serialized for too long. Must not know: the forms of serializers
(`txnproducer.serializers`). Nothing here changes any state, so a refused call has no effect.
Rules:
* No lock is held: a serializer may take any time, be interrupted, and call the producer.
* None is not serialized, and neither are bytes that are marked as `Serialized`.
* Producers without serializers never come here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import is_
from typing import Any, TypeVar

from txnproducer._core.producer_core import ProducerCore
from txnproducer._record.format import Header
from txnproducer._shell.arguments import Headers, check_headers, check_place
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError, SerializationError
from txnproducer.serializers import Field, HeaderList, SerializerCall, call_of

__all__ = ["RecordSerializers", "as_serialized", "within_transaction"]

T = TypeVar("T")


def within_transaction(
    core: ProducerCore, lock: AbstractContextManager[object], serialize: Callable[[], T]
) -> T:
    """Serialize, and refuse the result if the transaction has ended meanwhile.

    A schema registry may take seconds, in which another thread can begin the next transaction.

    Raises:
        TransactionAbortedError: it has ended.
    """
    transaction = core.transaction_number
    made = serialize()
    with lock:
        core.refuse_if_ended(transaction)
    return made


class Serialized(bytes):
    """Bytes that no serializer gets: a ledger's entry, or a record that goes on as it came."""

    __slots__ = ()


def as_serialized(data: bytes | None) -> bytes | None:
    """Mark bytes that no serializer gets."""
    return None if data is None else Serialized(data)


class RecordSerializers:
    """The serializers of a producer that has at least one.

    Args:
        key: makes bytes of keys; None if keys are bytes.
        value: likewise of values.

    Attributes:
        has_key: whether keys are serialized.
        has_value: whether values are serialized.
    """

    __slots__ = ("_key", "_value", "has_key", "has_value")

    def __init__(self, key: SerializerCall | None, value: SerializerCall | None) -> None:
        self._key = key
        self._value = value
        self.has_key = key is not None
        self.has_value = value is not None

    @classmethod
    def of(cls, config: ProducerConfig) -> RecordSerializers | None:
        """Return the serializers of a configuration, or None if there is none."""
        key, value = config.key_serializer, config.value_serializer
        if key is None and value is None:
            return None
        return cls(
            None if key is None else call_of("key", key),
            None if value is None else call_of("value", value),
        )

    def record(
        self, topic: str, key: Any, value: Any, headers: Headers | None
    ) -> tuple[Any, Any, tuple[Header, ...]]:
        """Return a record's key, value and headers after serialization.

        Raises:
            SerializationError: a serializer failed.
            TypeError, ValueError: the topic or a header is not valid.
        """
        # First: the serializers get both.
        if type(topic) is not str or not topic:
            check_place(topic, None, None)
        checked = () if headers is None else check_headers(headers)
        return self._serialized(topic, key, value, checked)

    def rows(
        self,
        topic: str,
        keys: Sequence[Any] | None,
        values: Sequence[Any],
        headers: Sequence[tuple[Header, ...] | None] | None,
    ) -> tuple[Any, Any, tuple[tuple[Header, ...] | None, ...] | None]:
        """Return the columns of keys, values and headers after serialization.

        Args:
            topic: checked.
            keys: a column that is not serialized is returned as it is; None if no row has a key.
            values: likewise.
            headers: checked; None if no row has any.

        Raises:
            SerializationError: a serializer failed; the error names the row.
        """
        made = [
            self._row(
                topic,
                row,
                keys[row] if keys is not None and self.has_key else None,
                values[row] if self.has_value else None,
                () if headers is None else headers[row] or (),
            )
            for row in range(len(values))
        ]
        some_keys = tuple(row[0] for row in made) if keys is not None and self.has_key else keys
        some_values = tuple(row[1] for row in made) if self.has_value else values
        some_headers = tuple(row[2] or None for row in made)
        return some_keys, some_values, some_headers if any(some_headers) else None

    def _row(
        self, topic: str, row: int, key: Any, value: Any, headers: tuple[Header, ...]
    ) -> tuple[Any, Any, tuple[Header, ...]]:
        try:
            return self._serialized(topic, key, value, headers)
        except SerializationError as error:
            # Changed in place: a serializer may raise a class of its own, which cannot be rebuilt
            # here.
            error.args = (f"row {row}: {error}",)
            raise

    def _serialized(
        self, topic: str, key: Any, value: Any, checked: tuple[Header, ...]
    ) -> tuple[Any, Any, tuple[Header, ...]]:
        headers: HeaderList = list(checked)
        # The key first, as in the Java client. confluent-kafka's rules may need it for the value.
        if self._key is not None and key is not None and type(key) is not Serialized:
            key = _bytes_of("key", key, self._key, topic, headers)
        if self._value is not None and value is not None and type(value) is not Serialized:
            value = _bytes_of("value", value, self._value, topic, headers)
        if len(headers) == len(checked) and all(map(is_, headers, checked)):
            return key, value, checked
        try:
            return key, value, check_headers(headers)
        except (TypeError, ValueError) as error:
            raise SerializationError(
                f"a serializer has left headers that cannot be written, for topic {topic!r}:"
                f" {error}"
            ) from error


def _bytes_of(
    field: Field, data: object, call: SerializerCall, topic: str, headers: HeaderList
) -> bytes | None:
    try:
        made = call(topic, data, headers)
    # A serializer may choose its own error, and with it the caller's reaction (`recovery`).
    except KafkaError:
        raise
    except Exception as error:
        raise SerializationError(
            f"{field}_serializer failed for topic {topic!r} and a {type(data).__name__}: {error!r}"
        ) from error
    if made is None or type(made) is bytes:
        return made
    # A subclass of bytes is not taken by compiled code: make it exactly bytes.
    if isinstance(made, bytes | bytearray | memoryview):
        return bytes(made)
    advice = "it must return bytes"
    if inspect.iscoroutine(made):
        made.close()  # or Python would warn that nobody has awaited it
        advice = "await it in your program, and send its bytes without a serializer"
    raise SerializationError(
        f"{field}_serializer returned a {type(made).__name__} for topic {topic!r}: {advice}"
    )
