"""Codecs exchange data with those of other clients in both ways, at every level of Java's."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import cramjam
import kafka.codec
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from txnproducer._record import compression
from txnproducer._record.compression import (
    LZ4_BLOCKS,
    codec_for,
    codec_name,
    codec_names,
    decompress,
)
from txnproducer.config._settings import COMPRESSION_LEVELS, COMPRESSION_TYPES
from txnproducer.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    UnsupportedCompressionTypeError,
)

from .strategies import unhurried

if sys.version_info >= (3, 14):
    from compression import zstd as std_zstd
else:
    from backports import zstd as std_zstd

IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
THEIR_DECODERS = {
    "gzip": kafka.codec.gzip_decode,
    "snappy": kafka.codec.snappy_decode,
    "lz4": kafka.codec.lz4_decode,
    "zstd": kafka.codec.zstd_decode,
}
contents = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 20_000)).map(
        lambda p: p[0] * p[1]
    ),
)
LONG = b"".join(b"line %d of a long text\n" % n for n in range(8_000))


def test_names_and_ids_are_those_of_the_java_client():
    assert {name: codec_for(name).codec_id for name in codec_names()} == IDS
    assert {codec_name(codec_id): codec_id for codec_id in range(5)} == IDS


@pytest.mark.parametrize("name", IDS)
@unhurried
@given(content=contents)
def test_compressed_content_is_decompressed(name, content):
    codec = codec_for(name)

    assert decompress(codec.codec_id, memoryview(codec.compress(content))) == content


@pytest.mark.parametrize("name", THEIR_DECODERS)
@unhurried
@given(content=contents.filter(len))
def test_another_client_decompresses_it(name, content):
    assert bytes(THEIR_DECODERS[name](codec_for(name).compress(content))) == content


@pytest.mark.parametrize("name", THEIR_DECODERS)
def test_the_same_content_gives_the_same_bytes(name):
    assert codec_for(name).compress(LONG) == codec_for(name).compress(LONG)


@pytest.mark.parametrize(
    ("name", "level"),
    [("gzip", 1), ("gzip", 9), ("lz4", 1), ("lz4", 9), ("lz4", 17), ("zstd", -5), ("zstd", 22)],
)
def test_every_level_that_java_has_can_be_asked_for(name, level):
    codec = codec_for(name, level)

    assert decompress(codec.codec_id, codec.compress(LONG)) == LONG


def test_a_higher_level_compresses_better():
    assert len(codec_for("gzip", 9).compress(LONG)) < len(codec_for("gzip", 1).compress(LONG))
    assert len(codec_for("lz4", 12).compress(LONG)) < len(codec_for("lz4").compress(LONG))


def test_zstd_is_given_the_level():
    # Not by length: libzstd 1.5.4 makes more of these lines at level 19 than at level 1.
    assert len({codec_for("zstd", level).compress(LONG) for level in (1, 3, 19)}) == 3


def test_level_9_of_lz4_is_the_fast_one_as_in_java():
    assert codec_for("lz4", 9).compress(LONG) == codec_for("lz4").compress(LONG)
    assert len(codec_for("lz4", 1).compress(LONG)) < len(codec_for("lz4", 9).compress(LONG))


def test_lz4_is_the_frame_that_java_reads():
    info = lz4.frame.get_frame_info(codec_for("lz4").compress(LONG))

    assert not info["block_linked"]
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB
    assert not info["content_checksum"]
    assert info["content_size"] == 0


@pytest.mark.parametrize("block_bytes", LZ4_BLOCKS)
def test_lz4_has_blocks_of_the_size_that_was_asked_for(block_bytes):
    content = random.Random(1).randbytes(600_000).hex().encode()
    compressed = codec_for("lz4", None, block_bytes).compress(content)
    info = lz4.frame.get_frame_info(compressed)
    assert (info["block_size"], info["block_linked"]) == (block_bytes, False)
    assert decompress(3, compressed) == content


def test_snappy_is_in_blocks_of_32_kib_under_the_header_of_xerial():
    compressed = codec_for("snappy").compress(LONG)

    assert compressed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    (length,) = struct.unpack_from(">i", compressed, 16)
    assert bytes(cramjam.snappy.decompress_raw(compressed[20 : 20 + length])) == LONG[: 32 * 1024]


def test_snappy_without_the_header_of_xerial_is_read_too():
    assert decompress(2, snappy.compress(LONG)) == LONG


def test_frames_that_follow_one_another_are_read_as_one_content():
    zstd = zstandard.ZstdCompressor()

    assert decompress(4, zstd.compress(b"one") + zstd.compress(b"two")) == b"onetwo"
    assert decompress(1, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


@pytest.mark.parametrize("name", THEIR_DECODERS)
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"?" * 40, lambda _: b"\x82"]
)
def test_bytes_that_the_codec_did_not_write_are_corrupt(name, damage):
    data = damage(codec_for(name).compress(LONG))

    with pytest.raises(CorruptRecordError, match=f"not valid {name}"):
        decompress(IDS[name], data)


@pytest.mark.parametrize("wrong_by", [1, 1000, -1000])
def test_a_snappy_block_whose_length_leads_out_of_the_data_is_corrupt(wrong_by):
    header = codec_for("snappy").compress(b"")
    block = bytes(cramjam.snappy.compress_raw(b"content"))

    with pytest.raises(CorruptRecordError, match="a block of"):
        decompress(2, header + struct.pack(">i", len(block) + wrong_by) + block)


def test_a_snappy_block_whose_length_is_cut_off_is_corrupt():
    with pytest.raises(CorruptRecordError, match="not valid snappy"):
        decompress(2, codec_for("snappy").compress(b"content") + b"\0\0")


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_a_codec_of_the_future_is_not_supported(codec_id):
    with pytest.raises(UnsupportedCompressionTypeError, match=f"codec id {codec_id}"):
        decompress(codec_id, b"")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        InvalidConfigurationError, match="none, gzip, snappy, lz4, zstd, not 'brotli'"
    ):
        codec_for("brotli")


@pytest.mark.parametrize(
    ("name", "level", "message"),
    [
        ("gzip", 0, "1 to 9, not 0"),
        ("gzip", 10, "1 to 9, not 10"),
        ("lz4", 18, "1 to 17"),
        ("zstd", 23, "-131072 to 22"),
        ("snappy", 1, "has no levels"),
        ("none", 1, "has no levels"),
    ],
)
def test_a_level_that_the_codec_does_not_have_is_refused(name, level, message):
    with pytest.raises(InvalidConfigurationError, match=message):
        codec_for(name, level)


@pytest.mark.parametrize("writes", [True, False])
def test_zstd_of_the_standard_library_and_the_package_read_each_other(monkeypatch, writes):
    def use(*, standard):
        monkeypatch.setattr(compression, "_standard_zstd", lambda: std_zstd if standard else None)
        codec_for.cache_clear()

    try:
        use(standard=writes)
        frames = [codec_for("zstd", level).compress(memoryview(LONG)) for level in (None, -5, 22)]
        use(standard=not writes)
        assert decompress(IDS["zstd"], b"".join(frames)) == LONG * 3
        use(standard=writes)
        assert decompress(IDS["zstd"], b"".join(frames)) == LONG * 3
        for broken in (frames[0][:-1], b"no frame", frames[0] + b"x"):
            with pytest.raises(CorruptRecordError):
                decompress(IDS["zstd"], broken)
    finally:
        codec_for.cache_clear()


def test_the_package_works_without_any_codec_library():
    script = """
import sys
for name in ("lz4", "lz4.frame", "cramjam", "snappy", "zstandard", "compression.zstd"):
    sys.modules[name] = None
from txnproducer import TransactionalProducer
from txnproducer.errors import InvalidConfigurationError
TransactionalProducer("localhost:1", compression_type="gzip").close(0)
try:
    TransactionalProducer("localhost:1", compression_type="lz4")
except InvalidConfigurationError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'txnproducer[lz4]'" in run.stdout


@pytest.mark.parametrize(
    ("name", "library"), [("lz4", "lz4.frame"), ("snappy", "cramjam"), ("zstd", "zstandard")]
)
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(
    name, library, monkeypatch
):
    monkeypatch.setattr(compression, "_standard_zstd", lambda: None)
    codec_for.cache_clear()
    compressed = codec_for(name).compress(b"content")
    monkeypatch.setitem(sys.modules, library, None)
    codec_for.cache_clear()

    try:
        with pytest.raises(InvalidConfigurationError, match=rf"'txnproducer\[{name}\]'"):
            codec_for(name)
        with pytest.raises(InvalidConfigurationError, match=rf"'txnproducer\[{name}\]'"):
            decompress(IDS[name], compressed)
    finally:
        codec_for.cache_clear()


def test_the_settings_offer_the_codecs_and_levels_that_there_are():
    """The settings lie below the codecs, and cannot ask them."""
    assert codec_names() == COMPRESSION_TYPES
    for name, (low, high) in COMPRESSION_LEVELS.items():
        for level in (low, high):
            codec_for(name, level=level)
        for level in (low - 1, high + 1):
            with pytest.raises(InvalidConfigurationError, match="level"):
                codec_for(name, level=level)
    for name in set(COMPRESSION_TYPES) - set(COMPRESSION_LEVELS):
        with pytest.raises(InvalidConfigurationError, match="no levels"):
            codec_for(name, level=1)


@pytest.mark.parametrize(("level", "made_for_three"), [(None, 1), (9, 1), (10, 3)])
def test_a_compressor_for_zstd_is_used_again(level, made_for_three, monkeypatch):
    made = []
    new = zstandard.ZstdCompressor

    def count(**settings):
        made.append(new(**settings))
        return made[-1]

    monkeypatch.setattr(compression, "_standard_zstd", lambda: None)
    monkeypatch.setattr(zstandard, "ZstdCompressor", count)
    compress = compression._make_zstd(level, 0)
    assert len({compress(LONG) for _ in range(3)}) == 1
    assert len(made) == made_for_three


def test_several_threads_compress_at_the_same_time():
    compress = codec_for("zstd").compress
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(compress, [LONG] * 200)) == {compress(LONG)}
