"""Batches have the bytes of the Java client's, which `java_batches.json` holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from txnproducer._record import RecordBatch, RecordBatchBuilder, decode_marker

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "java_batches.json").read_text("utf-8"))
BATCHES = {batch["name"]: batch for batch in GOLDEN["batches"]}
UNCOMPRESSED = [name for name, batch in BATCHES.items() if batch["compression"] == "none"]
MARKERS = [name for name, batch in BATCHES.items() if batch["is_control"]]
HEADER_FIELDS = [
    "compression",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "is_transactional",
    "is_control",
]
LENGTH_AND_CRC = (slice(8, 12), slice(17, 21))


def content(data):
    if data is None:
        return None
    if isinstance(data, int):
        return (b"0123456789abcdef" * (data // 16 + 1))[:data]
    return bytes.fromhex(data)


def records_of(golden):
    return [
        (
            timestamp_ms,
            content(key),
            content(value),
            tuple((name, content(value)) for name, value in headers),
        )
        for timestamp_ms, key, value, headers in GOLDEN["record_sets"][golden["records"]]
    ]


def build(golden):
    builder = RecordBatchBuilder(1 << 20, golden["compression"], is_control=golden["is_control"])
    for index, record in enumerate(records_of(golden)):
        assert builder.append(*record) == index
    builder.set_producer_state(
        golden["producer_id"],
        golden["producer_epoch"],
        golden["base_sequence"],
        golden["is_transactional"],
    )
    return builder.build()


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_uncompressed_batches_have_the_bytes_of_the_java_client(name):
    assert build(BATCHES[name]).hex() == BATCHES[name]["batch"]


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_the_java_client_are_read(name):
    golden = BATCHES[name]
    batch = RecordBatch(bytes.fromhex(golden["batch"]))

    assert [tuple(record[1:]) for record in batch] == records_of(golden)
    for field in HEADER_FIELDS:
        assert getattr(batch.header, field) == golden[field]


@pytest.mark.parametrize("name", BATCHES)
def test_only_length_and_crc_of_a_header_depend_on_how_a_codec_compresses(name):
    ours, java = (
        bytearray(build(BATCHES[name])[:61]),
        bytearray.fromhex(BATCHES[name]["batch"])[:61],
    )
    for field in LENGTH_AND_CRC:
        ours[field] = java[field] = bytes(4)

    assert ours.hex() == java.hex()


@pytest.mark.parametrize("name", MARKERS)
def test_markers_of_the_java_coordinator_are_decoded(name):
    golden = BATCHES[name]
    (record,) = RecordBatch(bytes.fromhex(golden["batch"]))
    marker = decode_marker(record.key, record.value)

    assert marker is not None
    assert marker.type.name.lower() == name.split()[0]
    assert marker.coordinator_epoch == golden["coordinator_epoch"]
    assert (marker.key(), marker.value()) == (record.key, record.value)
