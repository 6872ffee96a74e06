"""A strict reader of answers, by Kafka's message schemas.

Why it exists: kafka-python's own decoder trusts the bytes. It accepts a null where the schema
allows none, a negative length for null, a length beyond the end for a shorter value, and it
ignores bytes after the message. A variable-length integer without an end costs it quadratic time.
A client that takes part in commits must not guess.
Owns: the reading of every field type, by the JSON schemas that kafka-python carries.
Must not know: the meaning of an answer (`answer_checks` does), sockets.
Rules, whose violation is an error of the whole message:
* A null stands only where the schema allows one at this version, and only as a length of -1.
* No length or count exceeds the rest of the message, so that memory stays in proportion to it.
* Arrays and tags have no more elements than the caller allows: millions of them, with a hundred
  bytes and a microsecond each, would stop the I/O thread for seconds. They are counted before they
  are read. Integers in arrays are not counted, since they are read at once.
* A variable-length integer has at most five bytes. Tags ascend, and fill their announced size.
* Nothing follows the message.
"""

from __future__ import annotations

import re
import uuid
from array import array
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct
from struct import error as struct_error
from sys import byteorder
from typing import Any, TypeAlias

from .compact import NO_TAGS, read_uvarint

Json: TypeAlias = Mapping[str, Any]
# The number of elements that the rest of the message may have: a list of one number.
_Left: TypeAlias = list[int]
# Takes the message and a position; returns the value and the position after it.
_Read: TypeAlias = Callable[[memoryview, int, _Left], tuple[Any, int]]
# Takes a length or a count as well.
_ReadSized: TypeAlias = Callable[[memoryview, int, int, _Left], tuple[Any, int]]

_CORRELATION_ID_BYTES = 4
_INT16, _INT32 = Struct(">h"), Struct(">i")
_FEW_INT32S = tuple(Struct(f">{count}i") for count in range(8))
# The limit if the request does not determine one. Handshakes have some hundred elements.
MOST_ELEMENTS = 10_000
_NO_UUID = uuid.UUID(int=0)
_UUID_BYTES = 16
# How `struct` reads types of fixed size; `bitfield` is kafka-python's own name for some int32.
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "bitfield": "i",
    "int64": "q",
}
_NO_FIELD: Json = {"versions": "none", "type": ""}
# Its answers have the old header at every version: the client may not know the version (KIP-511).
_NEVER_FLEXIBLE_HEADER = "ApiVersionsResponse"


def read_answer(
    schema: Any, version: int, payload: memoryview, most_elements: int = MOST_ELEMENTS
) -> Any:
    """Read an answer's header and body.

    Args:
        schema: kafka-python's class of the answer.
        version: the version of the request.
        payload: the frame without its size.
        most_elements: the largest number of elements of all its arrays.

    Returns:
        A named tuple of the fields, under kafka-python's names, and of the `version`. A field that
        the version does not have has its default.

    Raises:
        ValueError: the bytes break the schema.
    """
    read_header_tags, read_body = _readers(schema, version)
    left = [most_elements]
    try:
        _, at = read_header_tags(payload, _CORRELATION_ID_BYTES, left)
        answer, at = read_body(payload, at, left)
    except (IndexError, struct_error) as error:
        raise ValueError("the message ends too soon") from error
    if at != len(payload):
        raise ValueError(f"{len(payload) - at} bytes follow the message")
    return answer


@cache
def _readers(schema: Any, version: int) -> tuple[_Read, _Read]:
    json = schema.json
    is_flexible = _has(json["flexibleVersions"], version)
    has_tags = is_flexible and json["name"] != _NEVER_FLEXIBLE_HEADER
    # Never on the wire, so it has its default.
    version_field = {"name": "Version", "type": "int16", "versions": "none", "default": version}
    read_body = _struct_reader([*json["fields"], version_field], version, is_flexible)
    return _tags_reader({}) if has_tags else _nothing, read_body


# --- structs ------------------------------------------------------------------------------------


def _struct_reader(fields: list[Json], version: int, is_flexible: bool) -> _Read:
    names = [_snake_case(field["name"]) for field in fields]
    struct = namedtuple("struct", names)  # type: ignore[misc]  # noqa: PYI024
    defaults = [_default(field) for field in fields]
    steps = _steps(fields, version, is_flexible)
    tagged = {
        field["tag"]: (index, _field_reader(field, version, is_flexible))
        for index, field in enumerate(fields)
        if _has(field.get("taggedVersions"), version)
    }
    read_tags = _tags_reader(tagged) if is_flexible else _nothing

    def read(data: memoryview, at: int, left: _Left) -> tuple[Any, int]:
        values = defaults.copy()
        for where, read_fields in steps:
            values[where], at = read_fields(data, at, left)
        tags, at = read_tags(data, at, left)
        for index, value in tags:
            values[index] = value
        return struct._make(values), at

    return read


def _steps(fields: list[Json], version: int, is_flexible: bool) -> list[tuple[Any, _Read]]:
    """Return the steps that read the fields. Neighbours of fixed size are read in one step."""
    steps: list[tuple[Any, _Read]] = []
    run = ""
    for index, field in enumerate([*fields, _NO_FIELD]):
        is_here = _has(field["versions"], version)
        is_here = is_here and not _has(field.get("taggedVersions"), version)
        layout = _FIXED.get(field["type"], "") if is_here else ""
        if run and not layout:
            steps.append((slice(index - len(run), index), _fixed(Struct(f">{run}"))))
            run = ""
        run += layout
        if is_here and not layout:
            steps.append((index, _field_reader(field, version, is_flexible)))
    return steps


def _tags_reader(tagged: Mapping[int, tuple[int, _Read]]) -> _Read:
    """Return a reader of the values of known tags, each with the index of its field."""

    def read(data: memoryview, at: int, left: _Left) -> tuple[Sequence[tuple[int, Any]], int]:
        if data[at] == NO_TAGS:
            return (), at + 1
        values: list[tuple[int, Any]] = []
        count, at = read_uvarint(data, at)
        # Before the loop: a count of billions would be worked through until the bytes end.
        _take(left, count, "tags")
        last = -1
        for _ in range(count):
            tag, at = read_uvarint(data, at)
            # KIP-482 requires ascending tags, so a repeated one would set a field twice.
            if tag <= last:
                raise ValueError(f"tag {tag} follows tag {last}")
            last = tag
            size, at = read_uvarint(data, at)
            end = _end(data, at, size)
            # A tag that is not known is skipped by its size: newer brokers may add tags (KIP-482).
            if tag in tagged:
                index, read_field = tagged[tag]
                value, at = read_field(data[:end], at, left)
                if at != end:
                    raise ValueError(f"the value of tag {tag} is shorter than its size")
                values.append((index, value))
            at = end
        return values, at

    return read


def _nothing(_: memoryview, at: int, __: _Left) -> tuple[tuple[()], int]:
    return (), at


def _field_reader(field: Json, version: int, is_flexible: bool) -> _Read:
    kind, name = field["type"], field["name"]
    may_be_null = _has(field.get("nullableVersions"), version)
    if kind.startswith("[]"):
        read_values: _ReadSized = _int32s
        if kind != "[]int32":
            element = {**field, "type": kind[2:], "nullableVersions": None}
            read_values = _elements_with(name, _field_reader(element, version, is_flexible))
        return _sized(name, is_flexible, may_be_null, _INT32, read_values)
    if "fields" in field:
        if may_be_null:
            raise NotImplementedError(f"{name} is a struct that may be null")
        return _struct_reader(field["fields"], version, is_flexible)
    if kind in {"string", "bytes"}:
        read_value, length = (_string, _INT16) if kind == "string" else (_bytes, _INT32)
        return _sized(name, is_flexible, may_be_null, length, read_value)
    return _uuid if kind == "uuid" else _one(_fixed(Struct(f">{_FIXED[kind]}")))


# --- values -------------------------------------------------------------------------------------


def _fixed(layout: Struct) -> _Read:
    unpack_from, size = layout.unpack_from, layout.size

    def read(data: memoryview, at: int, _: _Left) -> tuple[tuple[Any, ...], int]:
        return unpack_from(data, at), at + size

    return read


def _one(read_run: _Read) -> _Read:
    def read(data: memoryview, at: int, left: _Left) -> tuple[Any, int]:
        (value,), at = read_run(data, at, left)
        return value, at

    return read


def _uuid(data: memoryview, at: int, _: _Left) -> tuple[uuid.UUID, int]:
    end = _end(data, at, _UUID_BYTES)
    return uuid.UUID(bytes=bytes(data[at:end])), end


def _sized(
    name: str,
    is_compact: bool,
    may_be_null: bool,
    length: Struct,
    read_value: _ReadSized,
) -> _Read:
    """Return a reader of values that begin with their length or their count."""

    def read(data: memoryview, at: int, left: _Left) -> tuple[Any, int]:
        if is_compact:
            size, at = read_uvarint(data, at)
            size -= 1
        else:
            (size,) = length.unpack_from(data, at)
            at += length.size
        # An element has at least one byte, so a count is bounded like a length.
        if 0 <= size <= len(data) - at:
            return read_value(data, at, size, left)
        if size > 0:
            raise ValueError(f"{name}: {size} are announced, {len(data) - at} bytes are left")
        if size < -1 or not may_be_null:
            raise ValueError(f"{name} has the length {size}")
        return None, at

    return read


def _string(data: memoryview, at: int, size: int, _: _Left) -> tuple[str, int]:
    return str(data[at : at + size], "utf-8"), at + size


def _bytes(data: memoryview, at: int, size: int, _: _Left) -> tuple[bytes, int]:
    return bytes(data[at : at + size]), at + size


def _int32s(data: memoryview, at: int, count: int, _: _Left) -> tuple[Sequence[int], int]:
    if count < len(_FEW_INT32S):  # the usual number of replicas
        return _FEW_INT32S[count].unpack_from(data, at), at + count * _INT32.size
    end = _end(data, at, count * _INT32.size)
    numbers = array("i", bytes(data[at:end]))
    if byteorder == "little":
        numbers.byteswap()
    return numbers, end


def _elements_with(name: str, read_element: _Read) -> _ReadSized:
    def read(data: memoryview, at: int, count: int, left: _Left) -> tuple[list[Any], int]:
        _take(left, count, name)
        elements: list[Any] = []
        for _ in range(count):
            element, at = read_element(data, at, left)
            elements.append(element)
        return elements, at

    return read


def _take(left: _Left, count: int, name: str) -> None:
    if count > left[0]:
        raise ValueError(f"{name}: {count} are announced where {left[0]} are accepted")
    left[0] -= count


def _end(data: memoryview, at: int, size: int) -> int:
    end = at + size
    if end > len(data):
        raise ValueError(f"{size} are announced where {len(data) - at} bytes are left")
    return end


# --- the schemas' JSON --------------------------------------------------------------------------


def _has(versions: str | None, version: int) -> bool:
    """Return whether a range such as "3", "3-5", "3+" or "none" contains a version."""
    if not versions or versions == "none":
        return False
    first, _, last = versions.rstrip("+").partition("-")
    if versions.endswith("+"):
        return version >= int(first)
    return int(first) <= version <= int(last or first)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _default(field: Json) -> Any:
    kind, default = field["type"], field.get("default", "")
    if default == "null" or ("fields" in field and not kind.startswith("[]")):
        return None
    if kind.startswith("[]"):
        return ()
    if kind in {"string", "bytes"}:
        return default if kind == "string" else b""
    if kind == "uuid":
        return _NO_UUID
    if kind == "bool":
        return str(default).lower() == "true"
    return int(str(default or 0), 0)
