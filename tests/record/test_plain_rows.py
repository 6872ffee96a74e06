"""Rows with only a value fill batches many at a time, and exactly as the records one by one."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.counting import counted
from tests.interrupts import IS_THOROUGH, Interrupt, Interrupter
from txnproducer._record import record_buffer, value_runs
from txnproducer._record.batch_reader import decode_records
from txnproducer._record.format import batch_size_upper_bound
from txnproducer._record.record_buffer import RecordBuffer
from txnproducer._record.rows import BinaryColumn, Rows
from txnproducer.errors import RecordTooLargeError

from .strategies import BASE_MS
from .test_rows import LARGE, binary_column, compiled, each_implementation, needs_compiled, seen

# Around the places where the varint of an index grows, and where the table of varints ends.
INDEXES = [0, 1, 2, 50, 62, 63, 64, 65, 8_100, 8_190, 8_191, 8_192, 16_300, 16_384]
# Likewise for lengths.
EDGES = [0, 1, 63, 64, 127, 128, 4_096, 4_097, 8_191, 8_192, 16_383, 16_384]
STAMPS = [BASE_MS, BASE_MS - 1, BASE_MS + 63, BASE_MS + 64, -1, 2**62]


def bytes_of(lengths):
    """Return values of these lengths, most of which differ from their neighbours."""
    return tuple(
        (b"%d " % number + b"x" * length)[:length] for number, length in enumerate(lengths)
    )


@st.composite
def value_columns(draw):
    """Draw the values of many rows: of one length, of a few lengths, or of many."""
    one = draw(st.integers(0, 200))
    kinds = [st.just(one), st.sampled_from([9, 70, 700]), st.integers(0, 200)]
    kinds.append(st.one_of(st.integers(0, 200), st.sampled_from(EDGES)))
    # A few lengths again and again: to draw one for each row takes long.
    drawn = draw(st.lists(draw(st.sampled_from(kinds)), min_size=1, max_size=40))
    count, step = draw(st.integers(10, 300)), draw(st.integers(1, 7))
    return bytes_of(drawn[row * step % len(drawn)] for row in range(count))


def begun(buffer_class, count, room_bytes=LARGE, growth=1.0, memory_bytes=LARGE):
    """Return a buffer with so many records, and room for more bytes."""

    def fill(buffer):
        for index in range(count):
            assert buffer.append(BASE_MS, None, b"before") == index
        return buffer

    size_bytes = fill(RecordBuffer(LARGE)).size_bytes
    buffer = fill(buffer_class(size_bytes + room_bytes))
    buffer.set_growth(growth)
    buffer.set_memory(size_bytes + memory_bytes)
    return buffer


def appended_one_by_one(buffer, values, stamp_ms=BASE_MS):
    """Append values while they fit, and return the number of those that did."""
    for count, value in enumerate(values):
        if buffer.append(stamp_ms, None, value) is None:
            return count
    return len(values)


class PlainRowsTests:
    rows: Any
    buffer: Any

    @each_implementation
    @given(
        values=value_columns(),
        count=st.sampled_from(INDEXES),
        stamp_ms=st.sampled_from(STAMPS),
        room_bytes=st.one_of(st.integers(0, 20_000), st.just(LARGE)),
        growth=st.sampled_from([1.0, 0.0, 0.2, 0.7, 1.3]),
        memory_bytes=st.one_of(st.integers(0, 30_000), st.just(LARGE)),
        rng=st.one_of(st.none(), st.randoms(use_true_random=False)),
        data=st.data(),
    )
    def test_one_call_takes_the_rows_that_fit_one_by_one(
        self, values, count, stamp_ms, room_bytes, growth, memory_bytes, rng, data
    ):
        order, in_order = None, values
        if rng is not None:
            order = array("i", range(len(values)))
            rng.shuffle(order)
            in_order = tuple(values[row] for row in order)
        start = data.draw(st.integers(0, len(values) - 10))
        stop = data.draw(st.integers(start + 10, len(values)))
        rows = self.rows(len(values), values, None, None, stamp_ms)
        limits = room_bytes, growth, memory_bytes
        one_by_one, at_once = (
            begun(RecordBuffer, count, *limits),
            begun(self.buffer, count, *limits),
        )

        taken = rows.append_to(at_once, order, start, stop)

        assert taken == appended_one_by_one(one_by_one, in_order[start:stop], stamp_ms)
        assert seen(at_once) == seen(one_by_one)
        # Whatever comes next finds the same buffer.
        following = BASE_MS + 9, None, b"after"
        assert at_once.append(*following) == one_by_one.append(*following)
        assert seen(at_once) == seen(one_by_one)

    @pytest.mark.parametrize("is_ordered", [False, True])
    @pytest.mark.parametrize("count", [63, 64, 65, 600, 8_191, 8_192, 8_193, 17_000])
    @pytest.mark.parametrize("lengths", [[20], [0, 1, 20, 63, 64, 65, 100]])
    def test_all_rows_go_into_one_batch(self, lengths, count, is_ordered):
        values = bytes_of(lengths[row % len(lengths)] for row in range(count))
        rows = self.rows(count, values, None, None, BASE_MS)
        order = array("i", range(count - 1, -1, -1)) if is_ordered else None
        one_by_one, at_once = RecordBuffer(LARGE), self.buffer(LARGE)

        assert rows.append_to(at_once, order, 0, count) == count

        appended_one_by_one(one_by_one, values[::-1] if is_ordered else values)
        assert seen(at_once) == seen(one_by_one)
        assert at_once.take() == one_by_one.take()

    @pytest.mark.parametrize("growth", [1.0, 0.3])
    @pytest.mark.parametrize("size_limit_bytes", [0, 500, 16_384, 65_536])
    @pytest.mark.parametrize("large", [9, 300, 5_000, 100_000])
    def test_batch_after_batch_is_filled(self, large, size_limit_bytes, growth):
        values = bytes_of(large if row % 100 == 70 else 9 + row % 80 for row in range(3_000))
        rows = self.rows(len(values), values, None, None, BASE_MS)
        position = 0
        while position < len(values):
            one_by_one, at_once = RecordBuffer(size_limit_bytes), self.buffer(size_limit_bytes)
            for buffer in (one_by_one, at_once):
                buffer.set_growth(growth)

            taken = rows.append_to(at_once, None, position, len(values))

            assert taken == appended_one_by_one(one_by_one, values[position:]) > 0
            assert seen(at_once) == seen(one_by_one)
            position += taken
            if position < len(values):
                assert rows.append_to(at_once, None, position, len(values)) == 0
                assert seen(at_once) == seen(one_by_one)

    def test_a_batch_that_was_taken_takes_no_row(self):
        rows = self.rows(20, (b"v",) * 20, None, None, BASE_MS)
        buffer = begun(self.buffer, 3)
        before = bytes(buffer.take())

        assert rows.append_to(buffer, None, 0, 20) == 0
        assert buffer.record_count == 3
        assert buffer.take() == before

    @pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1, -(2**31)])
    def test_an_order_with_a_row_that_there_is_not_is_refused(self, bad):
        rows = self.rows(20, (b"v",) * 20, None, None, BASE_MS)
        order = array("i", range(20))
        order[0] = bad
        buffer = self.buffer(LARGE)

        with pytest.raises(IndexError):
            rows.append_to(buffer, order, 0, 20)
        assert buffer.record_count == 0

        order[0], order[19] = 0, bad
        with pytest.raises(IndexError):
            rows.append_to(buffer, order, 0, 20)
        assert [record[3] for record in decode(buffer)] == [b"v"] * buffer.record_count

    @each_implementation
    @given(values=value_columns())
    def test_the_first_of_the_largest_rows_is_found(self, values):
        sizes = [batch_size_upper_bound(None, value) for value in values]

        largest = self.rows(len(values), values, None, None, BASE_MS).largest()

        assert largest == (sizes.index(max(sizes)), max(sizes))

    @pytest.mark.parametrize("has_keys", [False, True])
    @pytest.mark.parametrize("has_headers", [False, True])
    def test_keys_and_headers_are_appended(self, has_keys, has_headers):
        keys = bytes_of(range(20)) if has_keys else None
        headers = ((("n", b"1"),),) * 20 if has_headers else None
        one_by_one, at_once = RecordBuffer(LARGE), self.buffer(LARGE)
        rows = self.rows(20, bytes_of([70] * 20), keys, headers, BASE_MS)

        assert rows.append_to(at_once, None, 0, 20) == 20

        for row in range(20):
            one_by_one.append(*rows.record(row))
        assert seen(at_once) == seen(one_by_one)
        sizes = [batch_size_upper_bound(*rows.record(row)[1:]) for row in range(20)]
        assert rows.largest() == (sizes.index(max(sizes)), max(sizes))

    @pytest.mark.parametrize("has_validity", [False, True])
    @pytest.mark.parametrize("is_wide", [False, True])
    @pytest.mark.parametrize("first", [0, 9])
    @pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1_300])
    def test_a_column_without_null_is_read(self, count, first, is_wide, has_validity):
        values = bytes_of(row * 7 % 90 for row in range(count))
        column = binary_column(values, first, is_wide=is_wide, has_validity=has_validity)
        rows = self.rows(count, column, None, None, BASE_MS)

        assert [rows.record(row)[2] for row in range(count)] == list(values)


def decode(buffer):
    return list(decode_records(buffer.body(), buffer.record_count, buffer.base_timestamp_ms))


class TestPythonPlainRows(PlainRowsTests):
    rows = Rows
    buffer = RecordBuffer

    @pytest.mark.parametrize(
        ("value", "stamp_ms"),
        [
            (None, BASE_MS),
            (bytearray(b"v"), BASE_MS),
            (type("Subclass", (bytes,), {})(b"v"), BASE_MS),
            ("text", BASE_MS),
            (b"v", True),
            (b"v", -2),
            (b"v", array("q", [BASE_MS] * 20)),
        ],
    )
    def test_rows_that_are_not_plain_are_judged_one_by_one(self, value, stamp_ms):
        values: Any = (*[b"v"] * 15, value, *[b"v"] * 4)
        stamps = [stamp_ms] * 20 if isinstance(stamp_ms, int) else stamp_ms
        outcomes = []
        for append in (
            lambda buffer: Rows(20, values, None, None, stamp_ms).append_to(buffer, None, 0, 20),
            lambda buffer: len(
                [buffer.append(*row) for row in zip(stamps, [None] * 20, values, strict=True)]
            ),
        ):
            buffer, error = begun(RecordBuffer, 1), ""
            try:
                assert append(buffer) == 20
            except (TypeError, ValueError) as refused:
                error = str(refused)
            outcomes.append((error, seen(buffer)))
        assert outcomes[0] == outcomes[1]

    def test_a_record_larger_than_the_format_allows_is_refused_in_its_turn(self, monkeypatch):
        # Stands for 2^31-1, which a test cannot afford.
        monkeypatch.setattr(record_buffer, "MAX_INT32", 61 + 20_000)
        values = (*[b"v"] * 15, b"w" * 20_000, *[b"v"] * 4)
        rows, buffer = Rows(20, values, None, None, BASE_MS), RecordBuffer(LARGE)

        with pytest.raises(RecordTooLargeError, match="a record of 200"):
            rows.append_to(buffer, None, 0, 20)

        assert [record.value for record in decode(buffer)] == [b"v"] * 15

    def test_values_alone_follow_a_record(self):
        buffer = RecordBuffer(LARGE)
        assert buffer.append_values([b"v"] * 20) == 0
        buffer.append(BASE_MS, None, b"v")
        assert buffer.append_values([]) == 0
        assert buffer.append_values([b"v"] * 20) == 20
        before = bytes(buffer.take())
        # The batch may grow while it waits to be compressed.
        buffer.set_memory(LARGE)
        assert buffer.append_values([b"v"] * 20) == 0
        assert buffer.record_count == 21
        assert bytes(buffer.take()) == before

    @pytest.mark.parametrize("is_ordered", [False, True])
    @pytest.mark.parametrize("size_limit_bytes", [1_000, 16_384, 65_536, 262_144])
    def test_a_batch_is_not_asked_about_many_more_rows_than_it_takes(
        self, monkeypatch, size_limit_bytes, is_ordered
    ):
        rows = Rows(20_000, (b"v" * 100,) * 20_000, None, None, BASE_MS)
        order = array("i", range(20_000)) if is_ordered else None
        asked = []
        append_values = RecordBuffer.append_values

        def note(buffer, values):
            asked.append(len(values))
            return append_values(buffer, values)

        monkeypatch.setattr(RecordBuffer, "append_values", note)
        buffer = RecordBuffer(size_limit_bytes)
        taken = rows.append_to(buffer, order, 0, 20_000)
        assert max(asked) <= 512
        assert sum(asked) <= 2 * taken + 64

        asked.clear()
        assert rows.append_to(buffer, order, taken, 20_000) == 0
        assert asked == []

    @pytest.mark.parametrize("is_in_arrow", [False, True])
    @pytest.mark.parametrize(("is_ordered", "limit"), [(False, 10), (True, 24)])
    @pytest.mark.parametrize("lengths", [[100], range(50, 150)])
    def test_a_row_costs_hardly_any_bytecodes(self, lengths, is_ordered, limit, is_in_arrow):
        values = bytes_of(lengths[row % len(lengths)] for row in range(20_000))
        whole = binary_column(values)

        def send(count):
            column = values[:count]
            if is_in_arrow:
                column = BinaryColumn(count, 0, None, whole.offsets, whole.data)
            rows = Rows(count, column, None, None, BASE_MS)
            rows.largest()
            order, position = array("i", range(count)) if is_ordered else None, 0
            while position < count:
                position += rows.append_to(RecordBuffer(1 << 16), order, position, count)

        send(20_000)
        few, many = (counted(partial(send, count))["opcode"] for count in (2_000, 20_000))
        assert (many - few) / 18_000 <= limit

    def test_only_small_values_are_copied_before_the_batch_is_taken(self):
        for length, is_kept in ((10, False), (400, False), (1_000, True)):
            values = bytes_of([length] * 200)
            buffer = RecordBuffer(LARGE)
            Rows(200, values, None, None, BASE_MS).append_to(buffer, None, 0, 200)
            is_in_pieces = any(chunk is values[150] for chunk in buffer._chunks)
            assert is_in_pieces is is_kept
            assert is_kept or len(buffer._chunks) < 20

    def test_tables_of_too_many_lengths_are_not_kept(self, monkeypatch):
        value_runs._length_table.cache_clear()
        monkeypatch.setattr(value_runs, "_MOST_LENGTHS", 100)
        values = bytes_of(row * 7 % 1_000 for row in range(3_000))
        one_by_one, at_once = RecordBuffer(LARGE), RecordBuffer(LARGE)

        assert Rows(3_000, values, None, None, BASE_MS).append_to(at_once, None, 0, 3_000) == 3_000

        appended_one_by_one(one_by_one, values)
        assert seen(at_once) == seen(one_by_one)
        assert all(len(value_runs._length_table(size).sizes) <= 100 for size in range(2, 16))

    @pytest.mark.parametrize("lengths", [[100], [5, 100, 70, 600]])
    @pytest.mark.parametrize("room_bytes", [20_000, LARGE])
    def test_an_interrupt_at_any_point_leaves_whole_records(self, room_bytes, lengths):
        values = bytes_of(lengths[row % len(lengths)] for row in range(300))
        order = array("i", range(299, -1, -1))
        rows = Rows(300, values, None, None, BASE_MS + 1)
        in_order = values[::-1]
        expected = begun(RecordBuffer, 60, room_bytes, 0.9)
        taken = appended_one_by_one(expected, in_order, BASE_MS + 1)

        def append(interrupter):
            value_runs._length_table.cache_clear()
            buffer = begun(RecordBuffer, 60, room_bytes, 0.9)
            append_to = partial(rows.append_to, buffer, order, 0, 300)
            return buffer, partial(interrupter.run, append_to)

        noted = Interrupter(is_by_line=not IS_THOROUGH)
        _, call = append(noted)
        assert call() == taken
        assert len(noted.passed) > 20
        for point in noted.passed:
            buffer, call = append(Interrupter(point, is_by_line=not IS_THOROUGH))
            with pytest.raises(Interrupt):
                call()
            assert buffer.size_bytes == 61 + len(buffer.body()), point
            found = [record.value for record in decode(buffer)]
            done = buffer.record_count - 60
            assert found == [*[b"before"] * 60, *in_order[:done]], point
            assert buffer.max_timestamp_ms == BASE_MS + (done > 0), point
            # The call that follows goes on from there, with the tables as they were left.
            assert rows.append_to(buffer, order, done, 300) == taken - done, point
            assert seen(buffer) == seen(expected), point


@needs_compiled
class TestCompiledPlainRows(PlainRowsTests):
    rows: Any = getattr(compiled, "Rows", None)
    buffer: Any = getattr(compiled, "RecordBuffer", None)
