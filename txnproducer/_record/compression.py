"""The codecs that compress the records of a batch, under Java's names and ids.

Owns: the registry by name and by id, the framing of each codec inside Kafka, the levels, and the
error for a library that is not installed. Must not know: the meaning of the bytes.

Rules:
* A codec reports a missing library or a wrong level when it is requested: a producer must not
  learn of it from its first batch.
* One block per batch, as every Kafka client writes it. lz4 is the standard frame with independent
  blocks, of 64 KiB by default, and no content checksum (the Java client writes the same, and its
  reader refuses dependent blocks). snappy is written in the framing of xerial's snappy-java, which
  Java's reader and writer use, and read with and without it.
* The bytes of equal input are equal: no timestamps, no file names.
* A library is imported when its codec is first requested. zstd is the standard library's if that
  has it (Python 3.14).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from txnproducer.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    UnsupportedCompressionTypeError,
)

Transform = Callable[[bytes], bytes]
# Takes a view as well, so that the records are read in the batch's buffer without a copy.
Compress = Callable[["bytes | memoryview"], bytes]

_GZIP_WINDOW_BITS: Final = 31  # the largest window, with a gzip header and trailer
# The Java client takes this level for "no level given" and uses the fast compressor; every other
# level is high compression.
_LZ4_JAVA_DEFAULT_LEVEL: Final = 9
_LZ4_LOWEST_HIGH_COMPRESSION: Final = 3

# The sizes of lz4's blocks, and their ids in its frame format. For blocks above 64 KiB lz4
# searches in another way, which is faster and finds less: a fifth less in text, four fifths less
# in data that can hardly be compressed.
LZ4_BLOCKS: Final = MappingProxyType({65_536: 4, 262_144: 5, 1_048_576: 6, 4_194_304: 7})
LEAST_LZ4_BLOCK_BYTES: Final = min(LZ4_BLOCKS)

# The highest level with compressors that are kept. They take 1 to 5 MB each, above it up to 19.
_HIGHEST_KEPT_ZSTD: Final = 9

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_VERSIONS: Final = struct.pack(">ii", 1, 1)  # its own and the oldest that can read it
_XERIAL_HEADER_BYTES: Final = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
# The block size of snappy-java.
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class RecordCodec:
    """A codec at one level, ready to compress. `compress` can be called from any thread."""

    name: str
    codec_id: int
    compress: Compress


@dataclass(frozen=True, slots=True)
class _CodecKind:
    """An entry of the registry; `levels` is None for a codec without levels."""

    codec_id: int
    levels: tuple[int, int] | None
    make_compress: Callable[[int | None, int], Compress]
    decompress: Transform


def codec_names() -> tuple[str, ...]:
    """Return the names of all codecs, ordered by id."""
    return tuple(_KINDS)


# Each batch asks for its codec. The import and the checks are needed once.
@lru_cache(maxsize=64)
def codec_for(
    name: str, level: int | None = None, lz4_block_bytes: int = LEAST_LZ4_BLOCK_BYTES
) -> RecordCodec:
    """Return a codec by its name.

    Args:
        name: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        level: the compression level; None for the codec's default, which is Java's.
        lz4_block_bytes: the size of lz4's blocks, one of `LZ4_BLOCKS`. Other codecs have none.

    Raises:
        InvalidConfigurationError: no such codec, no such level, or a library that is not
            installed.
    """
    kind = _KINDS.get(name)
    if kind is None:
        raise InvalidConfigurationError(
            f"compression_type must be one of {', '.join(_KINDS)}, not {name!r}"
        )
    if level is not None:
        _check_level(name, level, kind.levels)
    return RecordCodec(name, kind.codec_id, kind.make_compress(level, lz4_block_bytes))


def codec_name(codec_id: int) -> str:
    """Return the name of a codec by its id in a batch's attributes.

    Raises:
        UnsupportedCompressionTypeError: this version does not know the id.
    """
    for name, kind in _KINDS.items():
        if kind.codec_id == codec_id:
            return name
    raise UnsupportedCompressionTypeError(f"unknown codec id {codec_id} in a batch's attributes")


def decompress(codec_id: int, data: bytes | memoryview) -> bytes:
    """Decompress the records of a batch.

    Raises:
        CorruptRecordError: the codec cannot have written the bytes.
        InvalidConfigurationError: the codec's library is not installed.
        UnsupportedCompressionTypeError: this version does not know the id.
    """
    name = codec_name(codec_id)
    try:
        return _KINDS[name].decompress(bytes(data))
    except _data_errors(name) as error:
        raise CorruptRecordError(f"records that are not valid {name}: {error}") from error


def _check_level(name: str, level: int, levels: tuple[int, int] | None) -> None:
    if levels is None:
        raise InvalidConfigurationError(f"compression_type {name!r} has no levels: leave it unset")
    lowest, highest = levels
    if not lowest <= level <= highest:
        raise InvalidConfigurationError(
            f"compression_level for {name!r} must be {lowest} to {highest}, not {level}"
        )


def _library(module: str, codec: str) -> Any:
    """Import an optional library. If it is missing, name the extra that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        name, _, _ = module.partition(".")
        raise InvalidConfigurationError(
            f"compression_type {codec!r} needs the library {name!r}, which is not installed: "
            f"pip install 'txnproducer[{codec}]'"
        ) from error


def _data_errors(name: str) -> tuple[type[Exception], ...]:
    """Return the errors that a codec's library raises for bytes that it cannot read."""
    common = (OSError, EOFError, RuntimeError, ValueError, zlib.error, struct.error)
    # Codecs' own classes share no base with these, so they are named where a library has one.
    if name == "snappy":
        return (*common, _library("cramjam", "snappy").DecompressionError)
    if name == "zstd":
        return (*common, (_standard_zstd() or _library("zstandard", "zstd")).ZstdError)
    return common


def _unchanged(data: bytes) -> bytes:
    return data


def _make_none(level: int | None, _: int) -> Compress:  # noqa: ARG001 - the registry's signature
    return bytes


def _make_gzip(level: int | None, _: int) -> Compress:
    wanted = zlib.Z_DEFAULT_COMPRESSION if level is None else level
    # Not `gzip.compress`, which puts the time into the bytes before Python 3.14.
    return lambda data: zlib.compress(data, wanted, wbits=_GZIP_WINDOW_BITS)


def _make_lz4(level: int | None, block_bytes: int) -> Compress:
    # Levels 1 and 2 are high compression in Java, but fast compression in this library.
    wanted = 0
    if level is not None and level != _LZ4_JAVA_DEFAULT_LEVEL:
        wanted = max(level, _LZ4_LOWEST_HIGH_COMPRESSION)

    compress_frame = _library("lz4.frame", "lz4").compress

    def compress(data: bytes | memoryview) -> bytes:
        frame: bytes = compress_frame(
            data,
            compression_level=wanted,
            block_size=LZ4_BLOCKS[block_bytes],
            # Java's reader refuses linked blocks.
            block_linked=False,
            store_size=False,
        )
        return frame

    return compress


def _decompress_lz4(data: bytes) -> bytes:
    frame: bytes = _library("lz4.frame", "lz4").decompress(data)
    return frame


def _make_snappy(level: int | None, _: int) -> Compress:  # noqa: ARG001 - the registry's signature
    compress_raw = _library("cramjam", "snappy").snappy.compress_raw

    def compress(data: bytes | memoryview) -> bytes:
        parts = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
        view = memoryview(data)
        for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
            block = bytes(compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            parts += (_BLOCK_LENGTH.pack(len(block)), block)
        return b"".join(parts)

    return compress


def _decompress_snappy(data: bytes) -> bytes:
    decompress_raw = _library("cramjam", "snappy").snappy.decompress_raw
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(decompress_raw(data))
    blocks = []
    # The two version numbers are skipped, not checked: some writers have them little-endian.
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        start = position + _BLOCK_LENGTH.size
        position = start + length
        # A negative length would lead back, and a slice past the end is only shorter.
        if length < 0 or position > len(data):
            raise ValueError(f"a block of {length} bytes at {start} of {len(data)}")
        blocks.append(bytes(decompress_raw(data[start:position])))
    return b"".join(blocks)


@cache
def _standard_zstd() -> Any:
    """Return the standard library's zstd, or None (before Python 3.14, or if left out)."""
    try:
        return import_module("compression.zstd")
    except ImportError:
        return None


def _make_zstd(level: int | None, _: int) -> Compress:
    # The library's default, and Java's (KIP-390).
    wanted = 3 if level is None else level
    standard = _standard_zstd()
    if standard is not None:
        return lambda data: bytes(standard.compress(data, wanted))
    zstandard = _library("zstandard", "zstd")
    # A compressor belongs to one call at a time. A new one for each batch of 64 KB would cost 6 %
    # more time. There are never more than calls at the same time.
    spares: list[Any] = []

    def compress(data: bytes | memoryview) -> bytes:
        try:
            compressor = spares.pop()
        except IndexError:
            compressor = zstandard.ZstdCompressor(level=wanted)
        frame: bytes = compressor.compress(data)
        if wanted <= _HIGHEST_KEPT_ZSTD:
            spares.append(compressor)
        return frame

    return compress


def _decompress_zstd(data: bytes) -> bytes:
    # Java writes no content size into the frame, so the one-shot call cannot read it.
    standard = _standard_zstd()
    if standard is not None:
        new_frame = standard.ZstdDecompressor
    else:
        new_frame = _library("zstandard", "zstd").ZstdDecompressor().decompressobj
    contents = []
    # A stream may be several frames, one after the other.
    while data:
        frame = new_frame()
        contents.append(frame.decompress(data))
        # From a frame that is cut off a decompressor returns what it has, without an error.
        if not frame.eof:
            raise ValueError("the bytes end inside a frame")
        data = frame.unused_data
    return b"".join(contents)


_KINDS: Final = MappingProxyType(
    {
        # The levels are the limits of KIP-390.
        "none": _CodecKind(0, None, _make_none, _unchanged),
        "gzip": _CodecKind(1, (1, 9), _make_gzip, gzip.decompress),
        "snappy": _CodecKind(2, None, _make_snappy, _decompress_snappy),
        "lz4": _CodecKind(3, (1, 17), _make_lz4, _decompress_lz4),
        "zstd": _CodecKind(4, (-131072, 22), _make_zstd, _decompress_zstd),
    }
)
