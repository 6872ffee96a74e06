"""Varints, size bounds and sequence numbers, held against another client."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import util

from txnproducer._record import batch_size_upper_bound, record_size_upper_bound, size_in_bytes
from txnproducer._record import format as v2

from .strategies import records, unhurried

int64s = st.integers(-(2**63), 2**63 - 1)


@unhurried
@given(value=int64s)
@example(value=-(2**63))
@example(value=2**63 - 1)
@example(value=v2.SMALL_VARINT_COUNT)
@example(value=-1)
def test_a_varint_is_encoded_as_another_client_does_and_decodes_to_itself(value):
    expected = bytearray()
    util.encode_varint(value, expected.append)

    assert v2.encode_varint(value) == v2.varint(value) == expected
    assert v2.size_of_varint(value) == len(expected)
    assert v2.decode_varint(b"\xff" + expected + b"\xff", 1) == (value, 1 + len(expected))


def test_every_varint_of_the_table_is_the_encoded_one():
    for value, encoded in enumerate(v2.SMALL_VARINTS):
        assert encoded == v2.encode_varint(value)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_varint_that_is_cut_off_is_refused(data):
    with pytest.raises(IndexError):
        v2.decode_varint(data, 0)


@pytest.mark.parametrize("data", [b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 30])
def test_a_varint_of_more_than_64_bits_is_refused(data):
    with pytest.raises(ValueError, match="more than"):
        v2.decode_varint(data, 0)


@unhurried
@given(record=records, offset_delta=st.integers(0, 2**31 - 1), timestamp_delta=int64s)
def test_no_place_in_a_batch_makes_a_record_larger_than_its_upper_bound(
    record, offset_delta, timestamp_delta
):
    _, key, value, headers = record
    exact = size_in_bytes(offset_delta, timestamp_delta, key, value, headers)

    assert exact <= record_size_upper_bound(key, value, headers)
    assert batch_size_upper_bound(key, value, headers) == 61 + record_size_upper_bound(
        key, value, headers
    )


def test_the_upper_bound_is_21_bytes_over_the_payload():
    # length of the key (1) + key + length of the value (2) + value + number of headers (1)
    assert record_size_upper_bound(b"k", b"v" * 100) == 21 + 1 + 1 + 2 + 100 + 1
    assert record_size_upper_bound(None, None) == 21 + 1 + 1 + 1
    assert record_size_upper_bound(None, None, [("é", None), ("b", b"cd")]) == 21 + 3 + 4 + 5


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [
        (0, 0, 0),
        (5, 10, 15),
        (2**31 - 1, 1, 0),
        (2**31 - 2, 5, 3),
        (2**31 - 1, 2**31 - 1, 2**31 - 2),
    ],
)
def test_after_the_largest_sequence_number_comes_zero(sequence, increment, expected):
    assert v2.increment_sequence(sequence, increment) == expected
