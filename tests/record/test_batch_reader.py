"""Damaged, cut or forged batches are refused. Allowed differences between clients are accepted."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from txnproducer._record import RecordBatch, RecordBatchBuilder, read_batches, read_header
from txnproducer._record import format as v2
from txnproducer.errors import CorruptRecordError, UnsupportedCompressionTypeError

from .strategies import BASE_MS, unhurried

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def batch_bytes(count=3, compression="none"):
    builder = RecordBatchBuilder(1 << 20, compression)
    for n in range(count):
        builder.append(BASE_MS + n, b"key", b"value %d" % n, [("name", b"x"), ("null", None)])
    builder.set_producer_state(7, 3, 40, True)
    return builder.build()


def with_fields(data, **fields):
    """Change header fields and make the length and the CRC right again."""
    names = (
        "base_offset length partition_leader_epoch magic crc attributes last_offset_delta "
        "base_timestamp_ms max_timestamp_ms producer_id producer_epoch base_sequence record_count"
    )
    values = dict(zip(names.split(), v2.HEADER.unpack_from(data), strict=True))
    values["length"] = len(data) - 12
    values.update(fields)
    changed = bytearray(v2.HEADER.pack(*values.values()) + data[61:])
    struct.pack_into(">I", changed, v2.CRC_OFFSET, crc32c(changed[v2.ATTRIBUTES_OFFSET :]))
    return bytes(changed)


def batch_of(body, count=1, **fields):
    return with_fields(
        batch_bytes()[:61] + body, record_count=count, last_offset_delta=count - 1, **fields
    )


def record(fields):
    return v2.varint(len(fields)) + fields


@pytest.mark.parametrize("position", range(12, 61))
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_after_the_length_is_seen(position, bit):
    data = bytearray(batch_bytes())
    data[position] ^= 1 << bit

    if v2.LENGTH_OFFSET + 4 <= position < v2.MAGIC_OFFSET:
        # The leader epoch lies outside the CRC: a broker changes it without reading the records.
        assert len(list(RecordBatch(data))) == 3
    else:
        with pytest.raises(CorruptRecordError, match=r"CRC|magic"):
            RecordBatch(data)


@pytest.mark.parametrize("compression", CODECS)
@unhurried
@given(position=st.integers(61, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_records_is_seen(compression, position, bit):
    data = bytearray(batch_bytes(compression=compression))
    data[61 + position % (len(data) - 61)] ^= 1 << bit

    with pytest.raises(CorruptRecordError, match="the batch's CRC is 0x"):
        RecordBatch(data)


def test_the_base_offset_and_the_leader_epoch_are_the_brokers_to_set():
    data = bytearray(batch_bytes())
    struct.pack_into(">q", data, 0, 1000)
    struct.pack_into(">i", data, 12, 5)

    header = RecordBatch(data).header

    assert header.base_offset == 1000
    assert header.last_offset == 1002
    assert header.partition_leader_epoch == 5


@pytest.mark.parametrize("keep", [0, 10, 60, 61, -1])
def test_a_batch_that_is_cut_off_is_corrupt(keep):
    with pytest.raises(CorruptRecordError):
        RecordBatch(batch_bytes()[:keep])


def test_bytes_after_the_batch_are_corrupt():
    with pytest.raises(CorruptRecordError, match="bytes in"):
        RecordBatch(batch_bytes() + b"\0")


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_not_read(magic):
    data = bytearray(batch_bytes())
    data[v2.MAGIC_OFFSET] = magic

    with pytest.raises(CorruptRecordError, match=f"magic {magic}"):
        read_header(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": -1},
        {"record_count": 4},
        {"record_count": 2},
        {"last_offset_delta": -2, "record_count": 0},
        {"last_offset_delta": 1},
    ],
)
def test_counts_that_contradict_the_records_are_corrupt(fields):
    # Some of it shows in the header alone, the rest when the records are read.
    with pytest.raises(CorruptRecordError):
        list(RecordBatch(with_fields(batch_bytes(), **fields)))


@pytest.mark.parametrize("record_count", [-1, 4, 2**31 - 1])
def test_a_count_beyond_the_last_offset_is_seen_before_a_record_is_read(record_count):
    with pytest.raises(CorruptRecordError, match=f"{record_count} records with a last offset"):
        RecordBatch(with_fields(batch_bytes(), record_count=record_count))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "malformed"),
        (v2.varint(-5), "a length of -5"),
        (v2.varint(100) + b"\0\0\0\1\1\0", "a length of 100"),
        (record(b"\0\0" + v2.varint(-1) + b"\1\1\0"), "offset delta of -1"),
        (record(b"\0\0" + v2.varint(5) + b"\1\1\0"), "after the batch's last"),
        (record(b"\0\0\0" + v2.varint(-2) + b"\1\0"), "a field of -2 bytes"),
        (record(b"\0\0\0" + v2.varint(50) + b"\1\0"), "a field of 50 bytes"),
        (record(b"\0\0\0\1\1" + v2.varint(-1)), "a count of -1 headers"),
        (record(b"\0\0\0\1\1" + v2.varint(2**31 - 1)), "headers"),
        (record(b"\0\0\0\1\1" + v2.varint(1) + v2.varint(-1) + b"\1"), "without a name"),
        (record(b"\0\0\0\1\1" + v2.varint(1) + v2.varint(1) + b"\xff\1"), "malformed"),
        (record(b"\0\0\0\1\1\0surplus"), "its fields end at"),
        (record(b"\0\0\0\1\1\0") + b"surplus", "7 bytes are left"),
        (record(b"\0" + b"\xff" * 11), "malformed"),
    ],
)
def test_a_malformed_record_is_corrupt_even_under_a_right_crc(body, message):
    batch = RecordBatch(batch_of(body))

    with pytest.raises(CorruptRecordError, match=message):
        list(batch)


@pytest.mark.parametrize("compression", CODECS)
@unhurried
@given(damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
def test_no_damage_ends_in_another_error(compression, damage):
    data = bytearray(batch_bytes(20, compression))
    for position, byte in damage:
        data[61 + position % (len(data) - 61)] = byte

    try:
        records = list(RecordBatch(with_fields(data)))
    except CorruptRecordError:
        return
    assert len(records) == 20


def test_an_unknown_codec_in_the_attributes_is_not_supported():
    batch = RecordBatch(with_fields(batch_bytes(), attributes=5))

    with pytest.raises(UnsupportedCompressionTypeError):
        list(batch)


def test_a_batch_whose_records_the_cleaner_removed_keeps_its_offsets():
    batch = RecordBatch(with_fields(batch_bytes()[:61], record_count=0, last_offset_delta=9))

    assert list(batch) == []
    assert batch.header.last_offset == 9
    assert batch.header.last_sequence == 49


def test_with_the_brokers_clock_every_record_has_the_batchs_maximum():
    attributes = v2.TIMESTAMP_TYPE_MASK
    batch = RecordBatch(with_fields(batch_bytes(), attributes=attributes, max_timestamp_ms=99))

    assert batch.header.is_log_append_time
    assert [record.timestamp_ms for record in batch] == [99, 99, 99]


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (v2.TIMESTAMP_TYPE_MASK, "is_log_append_time"),
        (v2.TRANSACTIONAL_MASK, "is_transactional"),
        (v2.CONTROL_MASK, "is_control"),
        (v2.DELETE_HORIZON_MASK, "has_delete_horizon"),
    ],
)
def test_each_attribute_has_its_bit(mask, name):
    names = {"is_log_append_time", "is_transactional", "is_control", "has_delete_horizon"}
    header = read_header(with_fields(batch_bytes(), attributes=mask))

    assert {each for each in names if getattr(header, each)} == {name}


def test_batches_are_read_one_after_the_other_and_a_cut_one_at_the_end_is_left_out():
    data = batch_bytes(1) + batch_bytes(2, "lz4") + batch_bytes(3)

    assert [len(list(batch)) for batch in read_batches(data)] == [1, 2, 3]
    for cut in (1, 60, len(batch_bytes(3)) - 1):
        assert [len(list(batch)) for batch in read_batches(data[:-cut])] == [1, 2]
    assert list(read_batches(b"")) == []


def test_a_batch_that_claims_to_be_shorter_than_its_header_ends_the_reading():
    data = bytearray(batch_bytes())
    struct.pack_into(">i", data, v2.LENGTH_OFFSET, -12)

    with pytest.raises(CorruptRecordError, match="shorter than its own header"):
        list(read_batches(data))


def test_records_outlive_the_buffer_that_they_were_read_from():
    data = bytearray(batch_bytes(1))
    (decoded,) = RecordBatch(data)
    data[:] = bytes(len(data))

    assert decoded.value == b"value 0"


def test_a_batch_gives_back_its_bytes_and_shows_its_header():
    batch = RecordBatch(batch_bytes())

    assert bytes(batch) == batch_bytes()
    assert "producer_id=7" in repr(batch)
    assert batch.header.size_bytes == len(batch_bytes())
    assert batch.header.has_producer_id
