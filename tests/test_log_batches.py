"""A batch gives the same newest record for a key, whether one record is decoded or all are."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.strategies import BASE_MS, timestamps, unhurried
from tests.record.test_batch_reader import batch_of, record, with_fields
from txnproducer._record import RecordBatchBuilder
from txnproducer._record import format as v2
from txnproducer._record import read_batches as read_in_full
from txnproducer._record.control_records import EndTransactionMarker, EndTransactionType
from txnproducer.admin import LogRecord, _log_batches
from txnproducer.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    UnsupportedCompressionTypeError,
)

# Lengths around which a varint grows: of the record, of its key, of its value.
_sizes = st.sampled_from([0, 1, 40, 50, 60, 63, 64, 127, 128, 8180, 8191, 8192, 16384])
_keys = st.one_of(st.none(), st.sampled_from([b"", b"p0", b"p1"]), _sizes.map(lambda n: b"k" * n))
_values = st.one_of(st.none(), _sizes.map(lambda size: b"v" * size))
_headers = st.sampled_from([(), (("name", b"x"), ("null", None))])
_records = st.lists(st.tuples(timestamps, _keys, _values, _headers), min_size=1, max_size=12)


def encoded(records, base_offset=0, compression="none", *, is_append_time=False):
    builder = RecordBatchBuilder(1 << 20, compression)
    for at_ms, key, value, headers in records:
        builder.append(at_ms, key, value, headers)
    builder.set_producer_state(7, 3, 40, True)
    data = builder.build()
    attributes = v2.HEADER.unpack_from(data)[5] | v2.TIMESTAMP_TYPE_MASK * is_append_time
    return with_fields(data, base_offset=base_offset, attributes=attributes)


def marker(kind, **fields):
    told = EndTransactionMarker(kind, coordinator_epoch=1)
    builder = RecordBatchBuilder(1 << 20)
    builder.append(BASE_MS, told.key(), told.value())
    builder.set_producer_state(7, 3, 0, True)
    attributes = v2.TRANSACTIONAL_MASK | v2.CONTROL_MASK
    return with_fields(builder.build(), attributes=attributes, base_sequence=-1, **fields)


LOG = "partition 0 of the topic t"


def read_batches(data):
    return list(_log_batches.read_batches(data, LOG))


def newest(data):
    """Return the newest records as a decoder of all records finds them."""
    return [
        {
            one.key: LogRecord(
                batch.header.base_offset + one.offset_delta, one.timestamp_ms, one.key, one.value
            )
            for one in batch
        }
        for batch in read_in_full(data)
    ]


@unhurried
@given(
    st.lists(_records, min_size=1, max_size=3), st.sampled_from(["none", "gzip"]), st.booleans()
)
def test_the_newest_of_each_key_is_found_as_by_reading_all(batches, compression, is_append_time):
    data = b"".join(
        encoded(each, 100 * n, compression, is_append_time=is_append_time)
        for n, each in enumerate(batches)
    )
    found = read_batches(data)
    assert [dict(batch.newest) for batch in found] == newest(data)
    assert [batch.first_offset for batch in found] == [100 * n for n in range(len(batches))]
    assert [batch.next_offset for batch in found] == [
        100 * n + len(each) for n, each in enumerate(batches)
    ]
    assert [batch.at_ms for batch in found] == [max(one[0] for one in each) for each in batches]
    for batch in found:
        assert (batch.producer_id, batch.is_transactional, batch.is_commit) == (7, True, None)


def test_offsets_that_compaction_has_left_out_are_kept():
    kept = encoded([(BASE_MS, b"p0", b"a", ()), (BASE_MS, b"p1", b"b", ())], 50)
    (batch,) = read_batches(with_fields(kept, base_offset=50, last_offset_delta=9))
    assert (batch.first_offset, batch.next_offset) == (50, 60)
    emptied = with_fields(kept[:61], base_offset=60, record_count=0, last_offset_delta=9)
    (batch,) = read_batches(emptied)
    assert (batch.next_offset, dict(batch.newest), batch.is_commit) == (70, {}, None)


@pytest.mark.parametrize("kind", EndTransactionType)
def test_a_marker_says_how_the_transaction_ended(kind):
    (batch,) = read_batches(marker(kind, base_offset=9))
    assert batch.is_commit is (kind == EndTransactionType.COMMIT)
    assert (batch.producer_id, batch.next_offset, dict(batch.newest)) == (7, 10, {})
    assert batch.at_ms == BASE_MS


def test_a_batch_that_is_cut_off_is_left_out():
    whole = encoded([(BASE_MS, b"p0", b"a", ())])
    cut = encoded([(BASE_MS, b"p1", b"b", ())], 1)
    for size in range(len(cut)):
        (batch,) = read_batches(whole + cut[:size])
        assert list(batch.newest) == [b"p0"]


def test_any_flipped_bit_of_the_records_is_seen():
    data = encoded([(BASE_MS, b"p0", b"a", ()), (BASE_MS, b"p0", b"b", ())])
    for position in range(v2.CRC_OFFSET, len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1
        with pytest.raises(CorruptRecordError, match=f"^{LOG}, offset 0: the CRC"):
            read_batches(bytes(flipped))


_WHOLE = record(b"\0\0\0" + v2.varint(2) + b"p0" + v2.varint(1) + b"a" + b"\0")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(_WHOLE, 2, id="fewer records than the header says"),
        pytest.param(_WHOLE * 2, 1, id="more records than the header says"),
        pytest.param(b"\xff" * 20, 1, id="a number of more than 64 bits"),
        pytest.param(record(b"\0\0\0" + v2.varint(2))[:-1], 1, id="a record without its key"),
    ],
)
def test_records_that_break_the_format_are_refused(body, count):
    data = with_fields(batch_of(body, count), base_offset=9)
    with pytest.raises(CorruptRecordError, match=f"^{LOG}, offset 9: ") as found:
        read_batches(data)
    assert found.value.recovery == "fix", "another attempt reads the same bytes"


def test_a_record_that_is_asked_for_is_checked_in_full():
    # Its value reaches into the next record.
    torn = record(b"\0\0\0" + v2.varint(2) + b"p0" + v2.varint(50) + b"a" + b"\0")
    data = batch_of(torn + _WHOLE.replace(b"p0", b"p1"), 2)
    (batch,) = read_batches(with_fields(data, base_offset=9))
    assert batch.newest[b"p1"].value == b"a"
    with pytest.raises(CorruptRecordError, match=f"^{LOG}, offset 9: a malformed record"):
        batch.newest[b"p0"]


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_a_batch_of_another_magic_is_refused(magic):
    with pytest.raises(CorruptRecordError):
        read_batches(with_fields(encoded([(BASE_MS, b"p0", b"a", ())]), magic=magic))


def message(magic, size):
    """Return a message of format v0 or v1 with a value that fills a number of bytes."""
    overhead = {0: 26, 1: 34}[magic]
    at = (7).to_bytes(8) * magic  # v1 added the time
    value = (size - overhead).to_bytes(4, signed=True) + b"v" * (size - overhead)
    content = bytes([magic, 0]) + at + (-1).to_bytes(4, signed=True) + value
    content = zlib.crc32(content).to_bytes(4) + content
    return (5).to_bytes(8) + len(content).to_bytes(4) + content


@pytest.mark.parametrize(
    ("magic", "size"), [(0, 26), (0, 60), (1, 34), (1, 47), (1, 60), (1, 61), (1, 400)]
)
def test_a_message_of_an_older_format_is_refused_however_short_it_is(magic, size):
    whole = encoded([(BASE_MS, b"p0", b"a", ())])
    old = message(magic, size)
    assert len(old) == size
    for tail in (old, old + old, old[:17]):
        with pytest.raises(
            CorruptRecordError, match=f"^{LOG}, offset 5: a message of format v{magic} "
        ):
            read_batches(whole + tail)
    # Cut off before its magic, it could be of any format.
    (batch,) = read_batches(whole + old[:16])
    assert list(batch.newest) == [b"p0"]


@pytest.mark.parametrize(
    ("codec_id", "error", "text"),
    [
        pytest.param(1, CorruptRecordError, "not valid gzip", id="damaged"),
        pytest.param(7, UnsupportedCompressionTypeError, "unknown codec id 7", id="unknown"),
    ],
)
def test_records_that_cannot_be_decompressed_are_refused_with_their_place(codec_id, error, text):
    data = encoded([(BASE_MS, b"p0", b"a", ())], 9)
    attributes = v2.HEADER.unpack_from(data)[5] | codec_id
    with pytest.raises(error, match=f"^{LOG}, offset 9: .*{text}"):
        read_batches(with_fields(data, attributes=attributes))


def test_a_library_that_is_not_installed_is_named_with_the_place(monkeypatch):
    def decompress(codec_id, data):
        raise InvalidConfigurationError("pip install 'txnproducer[lz4]'")

    monkeypatch.setattr(_log_batches, "decompress", decompress)
    with pytest.raises(InvalidConfigurationError, match=rf"^{LOG}, offset 9: .*\[lz4\]"):
        read_batches(encoded([(BASE_MS, b"p0", b"a", ())], 9, "gzip"))
