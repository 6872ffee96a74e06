"""The compact forms of flexible versions (KIP-482), for the codecs that do not use the schemas.

Must not know: which message has which form.
"""

from __future__ import annotations

from struct import Struct

FRAME_HEAD = Struct(">ihhi")  # size, api key, version, correlation id
# An answer's correlation id and the tags of its header.
ANSWER_HEAD_BYTES = 5
NO_TAGS = 0
_INT16 = Struct(">h")


def client_id_and_tags(client_id: str) -> bytes:
    """Return the client id and the tags, which follow the correlation id in a request's header."""
    name = client_id.encode()
    return _INT16.pack(len(name)) + name + b"\x00"


def compact_string(text: str) -> bytes:
    """Return a string with its length before it."""
    encoded = text.encode()
    out = bytearray()
    # Compact lengths are one more than they say: zero stands for null.
    put_uvarint(out, len(encoded) + 1)
    return bytes(out + encoded)


def read_compact_string(payload: memoryview, at: int) -> tuple[str, int]:
    """Return a string that must not be null, and the position after it.

    Raises:
        ValueError: the string is null, or reaches beyond the payload.
    """
    length, at = read_uvarint(payload, at)
    end = at + length - 1
    # Checked here, since a slice beyond the end is silently shorter.
    if not at <= end <= len(payload):
        raise ValueError("a string without a length, or longer than its message")
    return str(payload[at:end], "utf-8"), end


def read_compact_count(payload: memoryview, at: int, most: int) -> tuple[int, int]:
    """Return the number of elements of an array that must not be null, and the position after it.

    Raises:
        ValueError: the array is null, or has more than `most` elements.
        IndexError: the count reaches beyond the payload.
    """
    count, at = read_uvarint(payload, at)
    if count == 0:
        raise ValueError("an array is null")
    if count - 1 > most:
        raise ValueError(f"an array has more than {most} elements")
    return count - 1, at


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned variable-length integer."""
    # Seven bits a byte, the lowest first. The eighth says that another byte follows.
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(payload: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned variable-length integer and the position after it.

    Raises:
        ValueError: the integer has more than five bytes.
        IndexError: the integer reaches beyond the payload.
    """
    value = shift = 0
    while True:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        # A length has 32 bits. Without a limit damaged bytes could build an integer of any size.
        if shift > 28:
            raise ValueError("a length has more than five bytes")
