"""The builder's behaviour, for every implementation of it.

`RecordBatchBuilderTests` is run by one subclass for each implementation, which names the class.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from txnproducer._record import RecordBatch, batch_builder, record_buffer, size_in_bytes
from txnproducer._record.compression import RecordCodec
from txnproducer.errors import IllegalStateError, InvalidConfigurationError, RecordTooLargeError

from .strategies import BASE_MS, record_lists, unhurried

try:
    compiled = import_module("txnproducer._record._speedups").RecordBuffer
except ImportError:
    compiled = None

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
LARGE = 10_000_000
each_implementation = settings(unhurried, suppress_health_check=[HealthCheck.differing_executors])
producer_states = st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans()
)


def _interrupt(*_):
    raise KeyboardInterrupt


def with_buffer(wanted):
    """Return the builder over one of the twins."""

    class Builder(batch_builder.RecordBatchBuilder):
        buffer_class = wanted

    return Builder


def built_by_kafka_python(records, producer_id, producer_epoch, base_sequence, is_transactional):
    """Return the bytes that kafka-python makes, with the leader epoch that Java writes."""
    theirs = DefaultRecordBatchBuilder(
        2, 0, is_transactional, producer_id, producer_epoch, base_sequence, LARGE
    )
    for index, (timestamp_ms, key, value, headers) in enumerate(records):
        theirs.append(index, timestamp_ms, key, value, list(headers))
    data = bytes(theirs.build())
    return data[:12] + b"\xff\xff\xff\xff" + data[16:]


class RecordBatchBuilderTests:
    buffer_class: Any

    def builder(self, *args: Any, **kwargs: Any) -> Any:
        return with_buffer(self.buffer_class)(*args, **kwargs)

    def filled(self, records, size_limit_bytes=LARGE, **kwargs):
        builder = self.builder(size_limit_bytes, **kwargs)
        for index, record in enumerate(records):
            assert builder.append(*record) == index
        return builder

    # The bytes

    @each_implementation
    @given(records=record_lists, state=producer_states)
    @example(records=[(-1, None, None, ()), (-1, b"", b"", ())], state=(0, 0, 0, False))
    @example(records=[(2**62, None, b"v", ()), (-1, None, b"v", ())], state=(1, 2, 3, True))
    def test_uncompressed_bytes_equal_those_of_another_client(self, records, state):
        builder = self.filled(records)
        builder.set_producer_state(*state)

        assert builder.build() == built_by_kafka_python(records, *state)

    @pytest.mark.parametrize("compression", CODECS)
    @each_implementation
    @given(records=record_lists, state=producer_states)
    def test_records_survive_the_round_trip(self, compression, records, state):
        builder = self.filled(records, compression=compression)
        builder.set_producer_state(*state)

        batch = RecordBatch(builder.build())

        assert [tuple(record[1:]) for record in batch] == records
        assert [record.offset_delta for record in batch] == list(range(len(records)))
        header = batch.header
        assert header.compression == compression
        assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
        assert header.base_timestamp_ms == builder.base_timestamp_ms == records[0][0]
        assert header.max_timestamp_ms == builder.max_timestamp_ms == max(r[0] for r in records)
        assert header.record_count == builder.record_count == len(records)
        assert header.last_offset_delta == len(records) - 1
        assert state == (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_transactional,
        )

    @pytest.mark.parametrize("compression", CODECS)
    @each_implementation
    @given(records=record_lists)
    def test_another_client_reads_every_codec(self, compression, records):
        builder = self.filled(records, compression=compression)
        builder.set_producer_state(1, 2, 3, True)

        theirs = DefaultRecordBatch(builder.build())

        assert theirs.validate_crc()
        assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == records

    def test_more_records_than_the_lookup_tables_hold_are_written_and_read(self):
        records = [(BASE_MS, b"k", b"v", ())] * 17_000
        builder = self.filled(records)

        assert builder.build() == built_by_kafka_python(records, -1, -1, -1, False)
        assert [record.offset_delta for record in RecordBatch(builder.build())] == list(
            range(17_000)
        )

    def test_bytes_like_arguments_are_copied_when_they_are_appended(self):
        key, value, header = bytearray(b"key"), bytearray(b"value"), bytearray(b"header")
        builder = self.builder(LARGE)
        builder.append(BASE_MS, memoryview(key), value, [("name", header)])
        builder.append(BASE_MS, key, b"plain")
        key[:] = value[:3] = header[:3] = b"???"

        assert list(builder.records()) == [
            (BASE_MS, b"key", b"value", (("name", b"header"),)),
            (BASE_MS, b"key", b"plain", ()),
        ]

    # append: effect and return value

    @pytest.mark.conformance("5.03")
    @pytest.mark.parametrize("size_limit_bytes", [0, 1, 61, 100])
    @pytest.mark.parametrize("compression", CODECS)
    def test_an_empty_batch_takes_any_record(self, size_limit_bytes, compression):
        builder = self.builder(size_limit_bytes, compression)

        assert not builder.is_full
        assert builder.has_room_for(BASE_MS, None, b"v" * 5_000)
        assert builder.append(BASE_MS, None, b"v" * 5_000) == 0
        assert builder.is_full
        assert not builder.has_room_for(BASE_MS, None, None)
        assert builder.append(BASE_MS, None, b"v") is None
        assert builder.append(BASE_MS, None, None) is None
        assert builder.record_count == 1

    @pytest.mark.conformance("5.03")
    def test_a_record_fits_up_to_the_last_byte_of_the_limit(self):
        first = 61 + size_in_bytes(0, 0, None, b"v" * 100)
        second = size_in_bytes(1, 0, b"k", b"w" * 50)

        for limit, fits in ((first + second, True), (first + second - 1, False)):
            builder = self.builder(limit)
            builder.append(BASE_MS, None, b"v" * 100)
            assert builder.has_room_for(BASE_MS, b"k", b"w" * 50) is fits
            assert (builder.append(BASE_MS, b"k", b"w" * 50) == 1) is fits
            assert builder.is_full is fits
            assert builder.size_bytes == first + second * fits

    @each_implementation
    @given(
        records=record_lists,
        limit=st.integers(0, 40_000),
        compression=st.sampled_from(["none", "gzip"]),
        ratio=st.floats(0.05, 1.5),
        memory=st.integers(0, 80_000),
    )
    def test_append_agrees_with_has_room_for_and_changes_nothing_when_it_refuses(
        self, records, limit, compression, ratio, memory
    ):
        builder = self.builder(limit, compression)
        builder.compression_ratio = ratio
        builder.set_memory(memory)
        taken: list[Any] = []
        for record in records:
            before = self.visible_state(builder)
            has_room = builder.has_room_for(*record)
            expected_size = size_in_bytes(
                len(taken), record[0] - taken[0][0] if taken else 0, *record[1:]
            )

            index = builder.append(*record)

            assert has_room is (index is not None)
            if index is None:
                assert self.visible_state(builder) == before
            else:
                assert index == len(taken)
                assert compression == "none" or not index or builder.size_bytes <= memory
                assert builder.size_bytes == before["size_bytes"] + expected_size
                taken.append(record)
        assert list(builder.records()) == taken

    @staticmethod
    def visible_state(builder):
        names = ["record_count", "size_bytes", "estimated_size_bytes", "is_full", "is_closed"]
        names += ["base_timestamp_ms", "max_timestamp_ms", "actual_compression_ratio"]
        return {name: getattr(builder, name) for name in names}

    def test_headers_of_a_usual_record_are_never_none(self):
        builder = self.builder(LARGE)
        with pytest.raises(TypeError, match="headers must be a tuple, not None"):
            builder.records_buffer.append_fast(BASE_MS, None, b"v", None)
        assert builder.record_count == 0
        assert builder.records_buffer.append_fast(BASE_MS, None, b"v", ()) == 0

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((BASE_MS, None, "text"), TypeError, "value must be bytes or None, not str"),
            ((BASE_MS, "text", b"v"), TypeError, "key must be bytes or None, not str"),
            ((BASE_MS, None, 5), TypeError, "value must be bytes or None, not int"),
            ((BASE_MS, None, b"v", [(b"n", b"v")]), TypeError, "header's name must be a str"),
            ((BASE_MS, None, b"v", [("n", "v")]), TypeError, "header's value must be bytes"),
            ((None, None, b"v"), TypeError, "timestamp_ms must be an int, not NoneType"),
            ((BASE_MS + 0.5, None, b"v"), TypeError, "timestamp_ms must be an int, not float"),
            ((-2, None, b"v"), ValueError, "or -1, not -2"),
            ((2**63 - 1, None, b"v"), ValueError, "milliseconds since the epoch"),
        ],
    )
    @pytest.mark.parametrize("records_before", [0, 2])
    def test_a_bad_argument_is_named_and_changes_nothing(
        self, arguments, error, message, records_before
    ):
        good = [(BASE_MS - 1, b"a", b"b", ())] * records_before
        builder = self.filled(good)
        before = self.visible_state(builder)

        with pytest.raises(error, match=message):
            builder.append(*arguments)

        assert self.visible_state(builder) == before
        assert builder.append(BASE_MS + 5, None, b"good") == records_before
        assert list(builder.records()) == [*good, (BASE_MS + 5, None, b"good", ())]
        assert builder.max_timestamp_ms == BASE_MS + 5

    def test_an_empty_batch_has_no_timestamps(self):
        builder = self.builder(LARGE)

        assert (builder.base_timestamp_ms, builder.max_timestamp_ms) == (-1, -1)
        assert (builder.record_count, builder.size_bytes) == (0, 61)

    # Compression and its estimate

    def test_the_estimate_without_a_codec_is_the_size_for_any_ratio(self):
        builder = self.builder(LARGE)
        builder.compression_ratio = 0.1
        builder.append(BASE_MS, None, b"v" * 1000)

        assert builder.estimated_size_bytes == builder.size_bytes == len(self.stamped(builder))

    def test_the_estimate_follows_the_ratio_with_five_percent_to_spare(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"v" * 991)
        assert builder.size_bytes == 61 + 1000

        estimates = []
        for ratio in (1.0, 0.5, 0.0):
            builder.compression_ratio = ratio
            assert builder.compression_ratio == ratio
            estimates.append(builder.estimated_size_bytes)

        assert estimates == [61 + 1050, 61 + 525, 61]

    @pytest.mark.conformance("5.06")
    def test_a_low_ratio_lets_more_records_in_but_counts_the_new_one_in_full(self):
        value = b"v" * 100
        counts = {}
        for ratio in (1.0, 0.5, 0.1):
            builder = self.builder(5_000, "gzip")
            builder.compression_ratio = ratio
            while builder.append(BASE_MS, None, value) is not None:
                pass
            counts[ratio] = builder.record_count
            next_size = size_in_bytes(builder.record_count, 0, None, value)
            assert builder.estimated_size_bytes + next_size > 5_000

        # Records of 109 bytes, from the 65th on 110. The last goes in while those before it, at
        # their ratio and 5 percent, leave room for it in full: 4,600, 9,198 and 45,990 bytes.
        assert counts == {1.0: 42 + 1, 0.5: 64 + 20 + 1, 0.1: 64 + 354 + 1}

    @each_implementation
    @given(
        ratio=st.sampled_from([0.0, 0.05, 0.5, 0.9, 1.4]),
        sizes=st.lists(st.integers(0, 700), min_size=1, max_size=200),
        step=st.sampled_from([1, 1_000, 5_000]),
    )
    def test_with_the_memory_that_it_asks_for_a_batch_becomes_as_full_as_with_any(
        self, ratio, sizes, step
    ):
        free, bounded = (self.builder(5_000, "gzip") for _ in range(2))
        free.compression_ratio = bounded.compression_ratio = ratio
        memory = 1_000
        bounded.set_memory(memory)
        for size in sizes:
            record = (BASE_MS, None, b"v" * size)
            index = free.append(*record)
            missing = bounded.missing_memory_bytes(step, *record) if bounded.record_count else 0
            if missing:
                assert bounded.append(*record) is None
                memory += missing
                bounded.set_memory(memory)
                assert missing <= max(step, 800)
            assert bounded.append(*record) == index
            if index is None:
                break
        assert list(bounded.records()) == list(free.records())
        # It asks for no more than it could ever use.
        full_bytes = int(5_000 / (max(ratio, 0.001) * 1.05))
        assert memory <= max(1_000, bounded.size_bytes, full_bytes) + 61

    def test_memory_does_not_limit_a_batch_without_a_codec(self):
        builder = self.builder(5_000)
        builder.set_memory(1)
        assert builder.append(BASE_MS, None, b"v" * 100) == 0
        assert builder.append(BASE_MS, None, b"v" * 100) == 1
        assert builder.missing_memory_bytes(100, BASE_MS, None, b"v" * 5_000) == 0

    def test_a_closed_batch_asks_for_no_memory(self):
        builder = self.filled([(BASE_MS, None, b"v" * 500, ())], compression="gzip")
        builder.set_memory(1)
        assert builder.missing_memory_bytes(100, BASE_MS, None, b"v") > 0
        builder.close()
        builder.set_memory(2)
        assert builder.missing_memory_bytes(100, BASE_MS, None, b"v") == 0

    def test_the_estimate_is_exact_once_closed_and_the_ratio_is_known(self):
        builder = self.builder(LARGE, "gzip")
        for _ in range(100):
            builder.append(BASE_MS, None, b"again and again")
        uncompressed = builder.size_bytes - 61
        assert builder.actual_compression_ratio == 1.0

        builder.close()
        size = builder.estimated_size_bytes

        assert len(self.stamped(builder)) == size == builder.estimated_size_bytes
        assert builder.actual_compression_ratio == (size - 61) / uncompressed < 0.3

    def test_content_that_grows_under_a_codec_is_still_sent_under_it(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"x")

        assert RecordBatch(self.stamped(builder)).header.compression == "gzip"
        assert builder.actual_compression_ratio > 1.0

    def test_a_level_is_handed_to_the_codec(self):
        records = [(BASE_MS, None, b"line %d of a long text" % n, ()) for n in range(2_000)]
        fast, best = (
            len(self.filled(records, compression="gzip", compression_level=level).build())
            for level in (1, 9)
        )

        assert best < fast
        with pytest.raises(InvalidConfigurationError, match="1 to 9"):
            self.builder(LARGE, "gzip", 10)

    # Closing

    @pytest.mark.conformance("5.03")
    def test_a_closed_batch_takes_no_record_even_with_room(self):
        builder = self.filled([(BASE_MS, None, b"v", ())], compression="gzip")
        builder.close()
        builder.close()
        builder.compression_ratio = 0.1

        assert builder.is_closed
        assert builder.is_full
        assert not builder.has_room_for(BASE_MS, None, b"v")
        assert builder.append(BASE_MS, None, b"v") is None
        assert builder.append(BASE_MS + 1, None, None, [("h", None)]) is None
        assert builder.record_count == 1
        assert builder.max_timestamp_ms == BASE_MS

    def test_a_buffer_that_was_taken_takes_no_record_and_has_no_body(self):
        buffer = self.buffer_class(LARGE)
        buffer.append(BASE_MS, None, b"first")
        taken = bytes(buffer.take())
        buffer.set_memory(LARGE)
        buffer.set_growth(0.5)

        assert buffer.append(BASE_MS, None, b"second") is None
        assert buffer.record_count == 1
        assert buffer.body() == b""
        assert buffer.take() == taken

    @pytest.mark.conformance("5.03")
    def test_a_batch_closed_while_empty_stays_empty(self):
        builder = self.builder(LARGE)
        builder.close()

        assert builder.append(BASE_MS, None, b"v") is None
        assert not builder.has_room_for(BASE_MS, None, b"v")
        assert list(builder.records()) == []

    def test_building_closes(self):
        builder = self.filled([(BASE_MS, None, b"v", ())])
        assert not builder.is_closed

        builder.build()

        assert builder.is_closed

    @pytest.mark.parametrize("compression", CODECS)
    def test_the_records_can_be_had_back_at_any_time(self, compression):
        records = [(BASE_MS + n % 3, b"k", b"v" * n, (("h", b"%d" % n),)) for n in range(50)]
        builder = self.filled(records, compression=compression)

        assert list(builder.records()) == records
        builder.close()
        assert list(builder.records()) == records
        self.stamped(builder)
        assert list(builder.records()) == records
        builder.set_producer_state(9, 9, 9, False)
        assert list(builder.records()) == records

    # Producer state

    @staticmethod
    def stamped(builder):
        builder.set_producer_state(1, 2, 3, True)
        return builder.build()

    @pytest.mark.parametrize("compression", CODECS)
    def test_a_new_producer_state_rewrites_the_header_and_nothing_else(self, compression):
        records = [(BASE_MS, b"k", b"value %d" % n, ()) for n in range(20)]
        builder = self.filled(records, compression=compression)
        builder.set_producer_state(7, 3, 40, True)
        before = builder.build()
        copy = bytes(before)

        builder.set_producer_state(8, 0, 0, False)
        after = builder.build()

        assert after[61:] == before[61:]
        assert [r[1:] for r in RecordBatch(after)] == records
        header = RecordBatch(after).header
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 0, 0)
        assert not header.is_transactional
        fresh = self.filled(records, compression=compression)
        fresh.set_producer_state(8, 0, 0, False)
        assert fresh.build() == after
        # A send that is under way still reads the bytes that it was given.
        assert bytes(before) == copy

    def test_building_again_gives_the_same_object(self):
        builder = self.filled([(BASE_MS, None, b"v", ())])
        builder.set_producer_state(7, 3, 40, True)

        assert builder.build() is builder.build()

    def test_a_batch_without_a_producer_has_minus_one_everywhere(self):
        header = RecordBatch(self.filled([(BASE_MS, None, b"v", ())]).build()).header

        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert not header.has_producer_id
        assert not header.is_transactional
        assert header.last_sequence == -1

    def test_the_constructor_can_say_that_the_batch_is_transactional(self):
        builder = self.builder(LARGE, is_transactional=True)
        builder.append(BASE_MS, None, b"v")

        with pytest.raises(IllegalStateError, match="needs a producer id"):
            builder.build()

        assert RecordBatch(self.stamped(builder)).header.is_transactional

    def test_the_last_sequence_number_wraps_to_zero(self):
        builder = self.filled([(BASE_MS, None, b"v", ())] * 4)
        builder.set_producer_state(1, 0, 2**31 - 2, True)

        assert RecordBatch(builder.build()).header.last_sequence == 1

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ((-1, -1, -1, True), "needs a producer_id"),
            ((-2, 0, 0, False), "producer_id must be"),
            ((2**63, 0, 0, False), "producer_id must be"),
            ((1, -1, 0, False), "producer_epoch must be"),
            ((1, 2**15, 0, False), "producer_epoch must be"),
            ((1, 0, -1, False), "base_sequence must be"),
            ((1, 0, 2**31, False), "base_sequence must be"),
        ],
    )
    def test_a_producer_state_that_a_broker_would_refuse_is_refused(self, state, message):
        builder = self.filled([(BASE_MS, None, b"v", ())])
        before = self.stamped(builder)

        with pytest.raises(ValueError, match=message):
            builder.set_producer_state(*state)

        assert builder.build() == before

    def test_an_empty_batch_cannot_be_built_and_can_still_be_filled(self):
        builder = self.builder(LARGE)

        with pytest.raises(IllegalStateError, match="append a record first"):
            builder.build()

        assert not builder.is_closed
        assert builder.append(BASE_MS, None, b"v") == 0

    def test_an_unknown_codec_is_refused_at_once(self):
        with pytest.raises(InvalidConfigurationError, match="'brotli'"):
            self.builder(LARGE, "brotli")

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_batch_that_is_compressed_ahead_has_the_same_bytes(self, codec):
        ahead, usual = self.builder(LARGE, codec), self.builder(LARGE, codec)
        for builder in (ahead, usual):
            for number in range(100):
                builder.append(BASE_MS + number, b"key", b"value" * number, (("h", b"1"),))
        sealed = ahead.seal()
        assert list(ahead.records()) == list(usual.records())
        sealed.compress()
        assert ahead.build() == usual.build()
        assert list(ahead.records()) == list(usual.records())

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_settled_batch_holds_only_its_compressed_bytes(self, codec):
        settled, usual = self.builder(LARGE, codec), self.builder(LARGE, codec)
        for builder in (settled, usual):
            for number in range(100):
                builder.append(BASE_MS + number, b"key", b"value" * number, (("h", b"1"),))
        sealed = settled.seal()
        assert not settled.settle()  # nothing is made of them yet
        sealed.compress()
        assert settled.settle() is (codec != "none")
        assert (not sealed.records) is (codec != "none")
        assert list(settled.records()) == list(usual.records())
        if codec != "none":
            sealed.compress()  # once more does nothing
            assert settled.is_full
            assert settled.append(BASE_MS, None, b"value") is None
            assert not settled.missing_memory_bytes(1_000, BASE_MS, None, b"value" * LARGE)
        size_bytes = settled.estimated_size_bytes
        assert settled.build() == usual.build()
        assert settled.estimated_size_bytes == size_bytes
        assert settled.settle()
        assert list(settled.records()) == list(usual.records())

    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_an_interrupt_at_the_seal_loses_no_record(self, monkeypatch, codec):
        whole, interrupted = (self.builder(LARGE, codec) for _ in range(2))
        for builder in (whole, interrupted):
            builder.append(BASE_MS, b"key", b"value" * 100)
        with monkeypatch.context() as patched:
            patched.setattr(batch_builder, "SealedRecords", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                interrupted.seal()
        assert interrupted.build() == whole.build()

    def test_a_sealed_batch_takes_no_record_and_is_not_closed(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"value")
        size_bytes = builder.estimated_size_bytes

        builder.seal()

        assert builder.append(BASE_MS, None, b"value") is None
        assert not builder.has_room_for(BASE_MS, None, b"value")
        assert not builder.is_closed
        assert builder.estimated_size_bytes == size_bytes

    def test_a_batch_compressed_ahead_is_not_compressed_again(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"value")
        sealed = builder.seal()
        sealed.compress()
        sealed._codec = replace(sealed._codec, compress=_out_of_memory)

        assert builder.build()

    def test_compressing_a_batch_too_late_changes_nothing(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"value")
        sealed = builder.seal()
        data = bytes(builder.build())

        sealed.compress()

        assert bytes(builder.build()) == data

    def test_a_codec_that_fails_ahead_fails_again_and_the_records_are_kept(self):
        builder = self.builder(LARGE, "gzip")
        builder.append(BASE_MS, None, b"value")
        sealed = builder.seal()
        sealed._codec = replace(sealed._codec, compress=_out_of_memory)
        with pytest.raises(MemoryError):
            sealed.compress()
        with pytest.raises(MemoryError):
            builder.close()

        assert [record[2] for record in builder.records()] == [b"value"]


def _out_of_memory(data):
    raise MemoryError


class TestPythonRecordBatchBuilder(RecordBatchBuilderTests):
    buffer_class = record_buffer.RecordBuffer

    def test_a_record_larger_than_the_format_allows_is_refused(self, monkeypatch):
        builder = self.builder(LARGE)
        # Stands for 2^31-1, which a test cannot afford.
        monkeypatch.setattr(record_buffer, "MAX_INT32", 61 + 20_000)

        with pytest.raises(RecordTooLargeError, match=r"a record of 20011 bytes.*2\^31-1"):
            builder.append(BASE_MS, None, b"v" * 20_000)

        assert builder.record_count == 0

    def test_the_body_is_compressed_once(self, monkeypatch):
        calls: list[bytes] = []

        def count_and_keep(data: bytes | memoryview) -> bytes:
            calls.append(bytes(data))
            return calls[-1]

        codec = RecordCodec("lz4", 3, count_and_keep)
        monkeypatch.setattr(batch_builder, "codec_for", lambda *_: codec)
        builder = self.filled([(BASE_MS, None, b"v", ())])

        builder.close()
        self.stamped(builder)
        self.stamped(builder)

        assert len(calls) == 1


@pytest.mark.skipif(compiled is None, reason="there are no compiled parts: `make env` makes them")
class TestCompiledRecordBatchBuilder(RecordBatchBuilderTests):
    buffer_class = compiled


def test_the_batches_of_a_split_carry_the_records_of_the_whole():
    whole = batch_builder.RecordBatchBuilder(LARGE, "lz4")
    for n in range(300):
        whole.append(BASE_MS + n, None, b"v" * 100)
    parts = [batch_builder.RecordBatchBuilder(8_000, "lz4")]
    for record in whole.records():
        if parts[-1].append(*record) is None:
            parts.append(batch_builder.RecordBatchBuilder(8_000, "lz4"))
            assert parts[-1].append(*record) == 0

    assert len(parts) > 3
    assert list(itertools.chain(*(part.records() for part in parts))) == list(whole.records())
