"""Rows appended by column are the records appended one by one, for both twins."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from txnproducer._record import RecordBatch, batch_builder, record_buffer
from txnproducer._record import rows as python_rows
from txnproducer._record.format import batch_size_upper_bound, size_in_bytes
from txnproducer._record.murmur2 import murmur2
from txnproducer._record.rows import MAX_PARTITIONS, NO_PARTITION, BinaryColumn

from .strategies import BASE_MS, headers, record_lists, timestamps, unhurried

compiled: Any
try:
    compiled = import_module("txnproducer._record._speedups")
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(
    compiled is None, reason="there are no compiled parts: `make env` makes them"
)
LARGE = 10_000_000
each_implementation = settings(unhurried, suppress_health_check=[HealthCheck.differing_executors])


def binary_column(items, first=0, *, is_wide=False, has_validity=None) -> Any:
    """Return items as Arrow lays them out, with others around them, and data under nulls."""
    laid_out = [b"before"] * first + list(items) + [b"behind"]
    offsets, data = array("q" if is_wide else "i", [0]), b""
    bits = bytearray((len(laid_out) + 7) // 8)
    for index, item in enumerate(laid_out):
        data += b"hidden" if item is None else item
        offsets.append(len(data))
        bits[index >> 3] |= (item is not None) << (index & 7)
    if has_validity is None:
        has_validity = None in items
    validity = memoryview(bytes(bits)) if has_validity else None
    return BinaryColumn(len(items), first, validity, memoryview(offsets), memoryview(data))


def laid_out_columns(items: tuple[bytes | None, ...]) -> st.SearchStrategy[Any]:
    """Draw one of the ways in which a column can come."""
    has_null = None in items
    columns = st.builds(
        lambda first, is_wide, has_validity: binary_column(
            items, first, is_wide=is_wide, has_validity=has_null or has_validity
        ),
        st.integers(0, 20),
        st.booleans(),
        st.booleans(),
    )
    ways = [st.just(items), columns]
    if not any(item is not None for item in items):
        ways.append(st.just(None))
    return st.one_of(ways)


@st.composite
def laid_out_rows(draw):
    """Draw records, and the columns that stand for them."""
    records = draw(record_lists)
    if draw(st.booleans()):
        stamp = draw(timestamps)
        records = [(stamp, *record[1:]) for record in records]
        stamps: Any = stamp
    else:
        stamps = array("q", [record[0] for record in records])
    headers: Any = None
    if draw(st.booleans()):
        headers = tuple(record[3] or draw(st.sampled_from([None, ()])) for record in records)
    else:
        records = [(*record[:3], ()) for record in records]
    keys = draw(laid_out_columns(tuple(record[1] for record in records)))
    values = draw(laid_out_columns(tuple(record[2] for record in records)))
    return records, (len(records), values, keys, headers, stamps)


def seen(buffer):
    """Return all that a buffer tells of its batch."""
    return (
        buffer.body(),
        buffer.record_count,
        buffer.size_bytes,
        buffer.estimated_size_bytes,
        buffer.base_timestamp_ms,
        buffer.max_timestamp_ms,
    )


def appended_one_by_one(records, size_limit_bytes, growth):
    """Return the batches that the records fill, by the pure twin."""
    buffers: list[record_buffer.RecordBuffer] = []
    for record in records:
        if buffers and buffers[-1].append(*record) is not None:
            continue
        buffers.append(record_buffer.RecordBuffer(size_limit_bytes))
        buffers[-1].set_growth(growth)
        assert buffers[-1].append(*record) == 0
    return [seen(buffer) for buffer in buffers]


def sorted_by_hand(keys, partitions, partition_count):
    def place(row):
        if partitions is not None and partitions[row] != NO_PARTITION:
            return partitions[row]
        if keys[row] is None or not partition_count:
            return NO_PARTITION
        return (murmur2(keys[row]) & 0x7FFFFFFF) % partition_count

    places = [place(row) for row in range(len(keys))]
    order = sorted(range(len(keys)), key=places.__getitem__)
    numbers = sorted(set(places))
    runs, start = [], 0
    for number in numbers:
        runs.append((number, start, start + places.count(number)))
        start += places.count(number)
    return order, runs


class RowsTests:
    rows: Any
    buffer: Any
    first_not_bytes: Any

    def batches(self, rows, order, stop, size_limit_bytes, growth):
        """Return the batches that rows fill."""
        filled, position = [], 0
        while position < stop:
            buffer = self.buffer(size_limit_bytes)
            buffer.set_growth(growth)
            taken = rows.append_to(buffer, order, position, stop)
            assert taken == buffer.record_count > 0
            filled.append(seen(buffer))
            position += taken
        return filled

    # append_to

    @each_implementation
    @given(
        drawn=laid_out_rows(),
        size_limit_bytes=st.sampled_from([0, 61, 150, 1_000, 20_000, LARGE]),
        growth=st.sampled_from([1.0, 0.2, 0.7, 1.3]),
        rng=st.one_of(st.none(), st.randoms(use_true_random=False)),
    )
    @example(
        drawn=([(BASE_MS, None, None, ())] * 2, (2, None, None, None, BASE_MS)),
        size_limit_bytes=LARGE,
        growth=1.0,
        rng=None,
    )
    def test_rows_fill_batches_as_the_records_do_one_by_one(
        self, drawn, size_limit_bytes, growth, rng
    ):
        records, columns = drawn
        order = None
        if rng is not None:
            order = array("i", range(len(records)))
            rng.shuffle(order)
            records = [records[row] for row in order]

        filled = self.batches(self.rows(*columns), order, len(records), size_limit_bytes, growth)

        assert filled == appended_one_by_one(records, size_limit_bytes, growth)

    @pytest.mark.parametrize("count", [255, 256, 257, 3_000, 17_000])
    def test_all_rows_go_into_one_batch(self, count):
        records = [
            (BASE_MS + n % 7, b"key-%d" % n, b"value-%d" % n, (("n", b"%d" % n),))
            for n in range(count)
        ]
        rows = self.rows(
            count,
            binary_column([record[2] for record in records]),
            tuple(record[1] for record in records),
            tuple(record[3] for record in records),
            array("q", [record[0] for record in records]),
        )

        assert self.batches(rows, None, count, LARGE, 1.0) == appended_one_by_one(
            records, LARGE, 1.0
        )

    @pytest.mark.parametrize("first", [0, 5])
    @pytest.mark.parametrize("is_wide", [False, True])
    def test_a_column_keeps_its_items_if_its_offsets_change_later(self, is_wide, first):
        items = (b"one", None, b"three", b"", b"five")
        column = binary_column(items, first, is_wide=is_wide)
        validity = bytearray(column.validity)
        column.validity = memoryview(validity)
        rows = self.rows(5, column, column, None, BASE_MS)
        for index in range(first, first + 6):
            column.offsets[index] = 2**31 - 1 - index
        validity[:] = b"\xff" * len(validity)
        buffer = self.buffer(LARGE)

        assert rows.append_to(buffer, None, 0, 5) == 5
        assert [rows.record(row)[2] for row in range(5)] == list(items)
        one_by_one = [(BASE_MS, item, item, ()) for item in items]
        assert [seen(buffer)] == appended_one_by_one(one_by_one, LARGE, 1.0)

    def test_a_batch_grows_beyond_its_first_memory(self):
        records = [(BASE_MS, None, bytes([n]) * 300_000, ()) for n in range(9)]
        rows = self.rows(9, tuple(record[2] for record in records), None, None, BASE_MS)

        assert self.batches(rows, None, 9, LARGE, 1.0) == appended_one_by_one(records, LARGE, 1.0)

    def test_rows_follow_records_and_records_follow_rows(self):
        rows = self.rows(2, (b"one", b"two"), None, None, BASE_MS - 5)
        buffer = self.buffer(LARGE)

        assert buffer.append(BASE_MS, None, b"first") == 0
        assert rows.append_to(buffer, None, 0, 2) == 2
        assert buffer.append(BASE_MS + 5, None, b"last") == 3

        one_by_one = [(BASE_MS, b"first"), (BASE_MS - 5, b"one"), (BASE_MS - 5, b"two")]
        one_by_one.append((BASE_MS + 5, b"last"))
        records = [(stamp, None, value, ()) for stamp, value in one_by_one]
        assert [seen(buffer)] == appended_one_by_one(records, LARGE, 1.0)

    def test_a_part_of_an_order_is_appended(self):
        rows = self.rows(4, (b"0", b"1", b"2", b"3"), None, None, BASE_MS)
        buffer = self.buffer(LARGE)

        assert rows.append_to(buffer, array("i", [3, 1, 0, 2]), 1, 3) == 2

        expected = [(BASE_MS, None, b"1", ()), (BASE_MS, None, b"0", ())]
        assert [seen(buffer)] == appended_one_by_one(expected, LARGE, 1.0)

    @pytest.mark.parametrize("compression", ["none", "lz4"])
    def test_a_batch_of_rows_is_built_and_read_like_any_other(self, compression):
        rows = self.rows(50, tuple(b"%d" % n for n in range(50)), None, None, BASE_MS)
        one_by_one, at_once = (
            type("Builder", (batch_builder.RecordBatchBuilder,), {"buffer_class": buffer})(
                LARGE, compression
            )
            for buffer in (record_buffer.RecordBuffer, self.buffer)
        )
        for n in range(50):
            one_by_one.append(BASE_MS, None, b"%d" % n)

        assert rows.append_to(at_once.records_buffer, None, 0, 50) == 50
        for builder in (one_by_one, at_once):
            builder.set_producer_state(1, 2, 3, True)

        assert at_once.build() == one_by_one.build()
        assert [record.value for record in RecordBatch(at_once.build())] == [
            b"%d" % n for n in range(50)
        ]

    def test_a_batch_that_was_taken_takes_no_row(self):
        rows = self.rows(1, (b"v",), None, None, BASE_MS)
        buffer = self.buffer(LARGE)
        rows.append_to(buffer, None, 0, 1)
        buffer.take()

        assert rows.append_to(buffer, None, 0, 1) == 0
        assert buffer.record_count == 1

    def test_no_rows_are_none(self):
        rows = self.rows(0, (), (), (), array("q"))

        assert rows.append_to(self.buffer(LARGE), None, 0, 0) == 0
        assert rows.append_to(self.buffer(LARGE), array("i"), 0, 0) == 0
        assert rows.by_partition(array("i"), 3) == (array("i"), [])
        assert rows.by_partition(None, 0) == (array("i"), [])

    @pytest.mark.parametrize(
        ("order", "start", "stop"),
        [
            (None, -1, 1),
            (None, 0, 3),
            ([0, 1, 0], 0, 4),
            ([0, 1, 0], -1, 3),
            ([2], 0, 1),
            ([-1], 0, 1),
            ([2**31 - 1], 0, 1),
        ],
    )
    def test_a_row_that_there_is_not_is_refused(self, order, start, stop):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)
        given_order = None if order is None else array("i", order)
        buffer = self.buffer(LARGE)

        with pytest.raises(IndexError):
            rows.append_to(buffer, given_order, start, stop)

        assert buffer.record_count == 0

    # the shape of a row

    @each_implementation
    @given(drawn=laid_out_rows())
    def test_a_row_is_its_record_and_the_largest_is_named_with_its_size(self, drawn):
        records, columns = drawn
        rows = self.rows(*columns)
        sizes = [batch_size_upper_bound(*record[1:]) for record in records]

        assert rows.count == len(records)
        assert [rows.record(row) for row in range(rows.count)] == records
        assert rows.largest() == (sizes.index(max(sizes)), max(sizes))

    @pytest.mark.parametrize("row", [-1, 2, 1 << 40])
    def test_a_record_of_no_row_is_refused(self, row):
        with pytest.raises(IndexError):
            self.rows(2, (b"0", b"1"), None, None, BASE_MS).record(row)

    # by_partition

    @each_implementation
    @given(
        keys=st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=40),
        partition_count=st.sampled_from([0, 1, 2, 3, 50]),
        data=st.data(),
    )
    def test_rows_are_sorted_by_partition_and_stay_in_order_there(
        self, keys, partition_count, data
    ):
        numbers = st.sampled_from([NO_PARTITION, NO_PARTITION, 0, 1, 2, 60])
        size = len(keys)
        given_places = data.draw(
            st.one_of(st.none(), st.lists(numbers, min_size=size, max_size=size))
        )
        partitions = None if given_places is None else array("i", given_places)
        column = data.draw(laid_out_columns(tuple(keys)))
        rows = self.rows(len(keys), None, column, None, BASE_MS)

        order, runs = rows.by_partition(partitions, partition_count)

        assert order.typecode == "i"
        assert (list(order), runs) == sorted_by_hand(keys, given_places, partition_count)

    @pytest.mark.parametrize("partition", [-2, -(2**31), MAX_PARTITIONS, 2**31 - 1])
    def test_a_partition_that_there_cannot_be_is_refused(self, partition):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)

        with pytest.raises(ValueError, match=f"there is no partition {partition}"):
            rows.by_partition(array("i", [0, partition]), 2)

    def test_the_last_partition_that_there_can_be_is_sorted(self):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)
        last = MAX_PARTITIONS - 1

        assert rows.by_partition(array("i", [last, 0]), 0) == (
            array("i", [1, 0]),
            [(0, 0, 1), (last, 1, 2)],
        )

    # reach

    @each_implementation
    @given(drawn=laid_out_rows(), room_bytes=st.integers(-1, 300), data=st.data())
    def test_rows_reach_as_far_as_their_bytes_and_at_least_one_does(self, drawn, room_bytes, data):
        records, columns = drawn
        order = array("i", data.draw(st.permutations(range(len(records)))))
        start = data.draw(st.integers(0, len(order)))
        stop = data.draw(st.integers(start, len(order)))

        reached, size = self.rows(*columns).reach(order, start, stop, room_bytes)

        sizes = [size_in_bytes(0, 0, *records[row][1:]) for row in order[start:stop]]
        assert size == sum(sizes[: reached - start])
        assert size <= room_bytes or reached - start <= 1
        assert reached == stop or size + sizes[reached - start] > room_bytes
        assert reached > start or start == stop

    @pytest.mark.parametrize(
        ("order", "start", "stop"),
        [([0, 1], -1, 1), ([0, 1], 0, 3), ([0, 2], 0, 2), ([-1, 0], 0, 2)],
    )
    def test_rows_that_there_are_not_reach_nowhere(self, order, start, stop):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)

        with pytest.raises(IndexError):
            rows.reach(array("i", order), start, stop, LARGE)

    # Refusals

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (((b"v",), None, None, 0), "a column of 1 items for 2 rows"),
            ((None, (b"k",) * 3, None, 0), "a column of 3 items for 2 rows"),
            ((binary_column([b"v"]), None, None, 0), "a column of 1 items for 2 rows"),
            ((None, binary_column([None] * 3), None, 0), "a column of 3 items for 2 rows"),
            ((None, None, ((),), 0), "headers for 1 of 2 rows"),
            ((None, None, None, array("q", [1])), "1 timestamps for 2 rows"),
            ((None, None, None, array("q", [1] * 3)), "3 timestamps for 2 rows"),
        ],
    )
    def test_a_column_of_another_length_is_refused(self, columns, message):
        with pytest.raises(ValueError, match=message):
            self.rows(2, *columns)

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_partitions_of_another_length_are_refused(self, count):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)

        with pytest.raises(ValueError, match=f"{count} partitions for 2 rows"):
            rows.by_partition(array("i", [0] * count), 2)

    @pytest.mark.parametrize("header", [(b"name", b"v"), ("name", "text")])
    def test_a_header_of_another_type_is_refused(self, header):
        def append():
            rows = self.rows(1, (b"v",), None, ((header,),), BASE_MS)
            rows.append_to(self.buffer(LARGE), None, 0, 1)

        with pytest.raises(TypeError, match="a header's"):
            append()

    @pytest.mark.parametrize(
        ("items", "index"),
        [
            ((), -1),
            ((b"a", None, b""), -1),
            ((b"a", None, "b", 3), 2),
            ((bytearray(b"a"),), 0),
            ((b"a", type("Subclass", (bytes,), {})(b"b")), 1),
        ],
    )
    def test_the_first_item_that_is_not_bytes_is_found(self, items, index):
        assert type(self).first_not_bytes(items) == index


class TestPythonRows(RowsTests):
    rows = python_rows.Rows
    buffer = record_buffer.RecordBuffer
    first_not_bytes = staticmethod(python_rows.first_not_bytes)


@needs_compiled
class TestCompiledRows(RowsTests):
    rows: Any = getattr(compiled, "Rows", None)
    buffer: Any = getattr(compiled, "RecordBuffer", None)
    first_not_bytes = staticmethod(getattr(compiled, "first_not_bytes", print))

    @each_implementation
    @given(drawn=laid_out_rows(), partition_count=st.integers(0, 5))
    def test_both_twins_do_the_same(self, drawn, partition_count):
        _, columns = drawn
        twins = (self.rows(*columns), python_rows.Rows(*columns))
        count = columns[0]

        assert len({twin.largest() for twin in twins}) == 1
        (order, runs), other = (twin.by_partition(None, partition_count) for twin in twins)
        assert (order, runs) == other
        buffers = self.buffer(LARGE), record_buffer.RecordBuffer(LARGE)
        for twin, buffer in zip(twins, buffers, strict=True):
            assert twin.append_to(buffer, order, 0, count) == count
        assert seen(buffers[0]) == seen(buffers[1])

    # Nothing may be read where a column's buffers end: there is no bound but these checks.

    @pytest.mark.parametrize("code", ["i", "q"])
    @pytest.mark.parametrize(
        ("offsets", "message"),
        [
            ([0, 1, 9], "lead to byte 9 of 3"),
            ([0, 2**31 - 1, 2**31 - 1], "lead to byte 2147483647 of 3"),
            ([0, 2, 1], "go backwards"),
            ([0, -1, 2], "go backwards"),
            ([-1, 1, 2], "go backwards"),
            ([0, 1], "2 offsets are too few for 2 items"),
            ([], "0 offsets are too few for 2 items"),
        ],
    )
    def test_offsets_that_lead_out_of_the_data_are_refused(self, code, offsets, message):
        column = BinaryColumn(2, 0, None, memoryview(array(code, offsets)), memoryview(b"abc"))

        with pytest.raises(ValueError, match=message):
            self.rows(2, column, None, None, BASE_MS)

    @pytest.mark.parametrize("first", [-1, 1, 1 << 40])
    def test_a_beginning_that_the_offsets_do_not_have_is_refused(self, first):
        offsets = memoryview(array("i", [0, 1, 2]))
        column = BinaryColumn(2, first, None, offsets, memoryview(b"abc"))

        with pytest.raises(ValueError, match="3 offsets are too few for 2 items"):
            self.rows(2, None, column, None, BASE_MS)

    def test_offsets_before_the_columns_beginning_are_of_no_account(self):
        offsets = memoryview(array("i", [7, 1, 2, -5]))
        column = BinaryColumn(1, 1, None, offsets, memoryview(b"abc"))

        assert self.rows(1, column, None, None, BASE_MS).record(0)[2] == b"b"

    @pytest.mark.parametrize(("first", "size"), [(0, 0), (0, 1), (7, 1), (8, 1)])
    def test_a_validity_that_is_too_short_is_refused(self, first, size):
        count = 9 - first % 8
        offsets = memoryview(array("i", [0] * (first + count + 1)))
        column = BinaryColumn(count, first, memoryview(bytes(size)), offsets, memoryview(b""))

        with pytest.raises(ValueError, match="a bit per item is missing"):
            self.rows(count, column, None, None, BASE_MS)


@given(headers=st.lists(st.one_of(st.none(), headers), min_size=1, max_size=5))
def test_headers_of_none_and_of_no_header_are_the_same(headers):
    rows = python_rows.Rows(len(headers), None, None, tuple(headers), BASE_MS)

    assert [rows.record(row)[3] for row in range(len(headers))] == [row or () for row in headers]
