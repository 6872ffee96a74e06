"""Markers at the end of a transaction are read as the Java client writes them."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch

from txnproducer._record import (
    EndTransactionMarker,
    EndTransactionType,
    RecordBatch,
    RecordBatchBuilder,
    decode_marker,
)
from txnproducer._record.control_records import control_record_type
from txnproducer.errors import CorruptRecordError


@pytest.mark.parametrize("marker_type", list(EndTransactionType))
def test_a_marker_in_a_control_batch_is_read_back_here_and_by_another_client(marker_type):
    marker = EndTransactionMarker(marker_type, coordinator_epoch=9)
    builder = RecordBatchBuilder(1024, is_transactional=True, is_control=True)
    builder.append(5, marker.key(), marker.value())
    builder.set_producer_state(1, 2, -1, True)

    batch = RecordBatch(builder.build())
    (record,) = batch
    (theirs,) = DefaultRecordBatch(builder.build())

    assert batch.header.is_control
    assert batch.header.last_sequence == -1
    assert decode_marker(record.key, record.value) == marker
    assert theirs.commit == (marker_type is EndTransactionType.COMMIT)
    assert theirs.abort == (marker_type is EndTransactionType.ABORT)


@pytest.mark.parametrize("record_type", [2, 6, -1, 99])
def test_control_records_of_other_types_are_no_markers(record_type):
    key = (0).to_bytes(2, "big") + record_type.to_bytes(2, "big", signed=True)

    assert control_record_type(key) == record_type
    assert decode_marker(key, b"anything") is None


def test_a_later_version_is_read_as_far_as_it_is_known():
    marker = decode_marker(b"\0\5\0\1more", b"\0\5\0\0\0\7more")

    assert marker == EndTransactionMarker(EndTransactionType.COMMIT, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\0"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0"),
    ],
)
def test_a_malformed_marker_is_corrupt(key, value):
    with pytest.raises(CorruptRecordError):
        decode_marker(key, value)
