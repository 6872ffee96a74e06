"""The compiled twins of `record_buffer`, `rows` and `murmur2`, where they are described.

A value that does not take the fast path is checked, and refused, by the functions of those
modules.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memcpy, memset

import os
from array import array

from txnproducer._record.format import BATCH_OVERHEAD_BYTES, MAX_RECORD_OVERHEAD_BYTES
from txnproducer._record.record_buffer import (
    check_timestamp,
    encode_headers,
    no_headers,
    to_encode,
    too_large,
)

cdef extern from "_varint.h":
    size_t txn_varint_size(long long value) noexcept nogil
    char* txn_put_varint(char* at, long long value) noexcept nogil

cdef extern from "_murmur2.h":
    unsigned int txn_murmur2(const unsigned char* data, size_t size) noexcept nogil

cdef extern from "_record_hash.h":
    ctypedef struct txn_hash:
        unsigned long long low
        unsigned long long high
    ctypedef txn_hash (*txn_hash_function)(const void* data, size_t size) noexcept nogil
    char* txn_put_int32(char* at, int value) noexcept nogil
    char* txn_put_field(char* at, const char* data, long long size) noexcept nogil
    char* txn_put_hashed_headers(char* at, const char* encoded) noexcept nogil

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
        /* Another thread may take a reference meanwhile. */
    #define txn_keeps_buffers 0
    #else
    #define txn_keeps_buffers 1
    #endif
    #define txn_has_one_reference(object) (Py_REFCNT(object) == 1)
        /* What it has in memory, also beyond its length. */
    #define txn_capacity(object) (((PyByteArrayObject *)(object))->ob_alloc - 1)
    """
    bint txn_keeps_buffers
    bint txn_has_one_reference(PyObject* object) noexcept
    Py_ssize_t txn_capacity(PyObject* object) noexcept

cdef enum:
    OVERHEAD_BYTES = 61
    # The capacity of a new buffer, unless its batch may not become that large.
    FIRST_CAPACITY_BYTES = 1 << 20
    NO_ROOM = -1

    # Of this capacity and above, buffers are used again: the pages of a new one cost a quarter of
    # the time that its records take.
    LEAST_KEPT_BYTES = 16 * 1024
    # The capacity of all that are kept, in use or not.
    MOST_KEPT_BYTES = 8 * 1024 * 1024
    # So many are looked at for one that is free.
    MOST_LOOKS = 4

cdef long long MAX_INT32 = 0x7FFFFFFF
cdef long long MAX_INT64 = 0x7FFFFFFFFFFFFFFF


def murmur2(bytes data not None):
    """Return the unsigned 32-bit murmur2 hash of a key."""
    return txn_murmur2(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef long long to_timestamp(object timestamp_ms) except? -2:
    cdef int is_beyond = 0
    cdef long long number
    if type(timestamp_ms) is not int:
        check_timestamp(timestamp_ms)
    number = PyLong_AsLongLongAndOverflow(timestamp_ms, &is_beyond)
    if is_beyond or number < -1 or number == MAX_INT64:
        check_timestamp(timestamp_ms)
    return number


cdef inline char* put_bytes(char* at, object data) noexcept:
    """Write a length and the bytes that it counts; None is written as the length -1."""
    cdef Py_ssize_t size
    if data is None:
        return txn_put_varint(at, -1)
    size = PyBytes_GET_SIZE(data)
    at = txn_put_varint(at, size)
    memcpy(at, PyBytes_AS_STRING(data), size)
    return at + size


cdef inline Py_ssize_t size_of(object data) noexcept:
    """Return the number of bytes that `put_bytes` writes."""
    if data is None:
        return 1
    return txn_varint_size(PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


cdef Py_ssize_t size_of_headers(tuple headers) except -1:
    """Return the number of bytes that `put_headers` writes, or 0 if it cannot write them."""
    cdef Py_ssize_t size = txn_varint_size(PyTuple_GET_SIZE(headers))
    cdef Py_ssize_t name_size = 0
    for header in headers:
        if type(header) is not tuple or PyTuple_GET_SIZE(header) != 2:
            return 0
        name, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        if type(name) is not str or not (value is None or type(value) is bytes):
            return 0
        PyUnicode_AsUTF8AndSize(name, &name_size)
        size += txn_varint_size(name_size) + name_size + size_of(value)
    return size


cdef char* put_headers(char* at, tuple headers) except NULL:
    cdef Py_ssize_t name_size = 0
    cdef const char* name
    at = txn_put_varint(at, PyTuple_GET_SIZE(headers))
    for header in headers:
        # It was encoded when it was measured, and the string keeps the encoded form.
        name = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(header, 0), &name_size)
        at = txn_put_varint(at, name_size)
        memcpy(at, name, name_size)
        at = put_bytes(at + name_size, <object>PyTuple_GET_ITEM(header, 1))
    return at


cdef inline Py_ssize_t size_of_piece(Piece* piece) noexcept nogil:
    return 1 if piece.size < 0 else txn_varint_size(piece.size) + piece.size


cdef inline char* put_piece(char* at, Piece* piece) noexcept nogil:
    """Write a length and the bytes that it counts; null is written as the length -1."""
    at = txn_put_varint(at, piece.size)
    if piece.size <= 0:
        return at
    memcpy(at, piece.data, piece.size)
    return at + piece.size


# Buffers of batches, the oldest first. One that only this list refers to is free: it is on no
# socket, and no codec reads it.
cdef list kept_buffers = []
cdef Py_ssize_t kept_bytes = 0


cdef bytearray kept_buffer(Py_ssize_t least_bytes, Py_ssize_t most_bytes):
    """Return a buffer that is free, as long as its capacity, or None.

    Args:
        least_bytes: of its capacity.
        most_bytes: likewise; a larger one is left for larger batches.
    """
    global kept_bytes
    cdef bytearray buffer
    cdef PyObject* oldest
    cdef Py_ssize_t capacity
    for _ in range(min(MOST_LOOKS, len(kept_buffers))):
        oldest = <PyObject*>kept_buffers[0]
        capacity = txn_capacity(oldest)
        if not txn_has_one_reference(oldest) or capacity > most_bytes:
            # It must not hide those behind it.
            kept_buffers.append(kept_buffers.pop(0))
            continue
        buffer = kept_buffers.pop(0)
        kept_bytes -= capacity
        if capacity >= least_bytes:
            PyByteArray_Resize(buffer, capacity)  # within its memory, so nothing moves
            return buffer
        # It is too small, and makes room for one of the size that is wanted now.
    return None


cdef void keep_buffer(bytearray buffer) noexcept:
    """Keep a buffer, to use it again once it is free."""
    global kept_bytes
    cdef Py_ssize_t capacity = txn_capacity(<PyObject*>buffer)
    if not txn_keeps_buffers or capacity < LEAST_KEPT_BYTES:
        return
    if kept_bytes + capacity > MOST_KEPT_BYTES:
        return
    try:
        kept_buffers.append(buffer)
    except MemoryError:
        return
    kept_bytes += capacity


def forget_kept_buffers():
    """Forget them, in a forked child: threads that do not exist there may refer to them for ever."""
    global kept_bytes
    kept_buffers.clear()
    kept_bytes = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_kept_buffers)


cdef class RecordBuffer:
    def __cinit__(self, Py_ssize_t size_limit_bytes):
        self._size_limit_bytes = min(size_limit_bytes, MAX_INT32)
        self.size_bytes = OVERHEAD_BYTES
        self.base_timestamp_ms = self.max_timestamp_ms = -1
        self._growth = self._times = 1.0
        self._memory_bytes = MAX_INT64
        self._certain_limit_bytes = self._size_limit_bytes

    def set_growth(self, double growth):
        """Set the expected ratio of bytes in the finished batch to appended bytes."""
        self._growth = growth
        # A codec lets in more than the limit: to grow to that would copy, and leave holes.
        self._times = 1.0 / max(0.25, min(1.0, growth)) + 1.0 / 32  # the ratio may still improve
        self._set_certain_limit()

    def set_memory(self, Py_ssize_t memory_bytes):
        """Set the memory that the batch may use. See the Python twin."""
        self._memory_bytes = memory_bytes
        self._set_certain_limit()

    cdef void _set_certain_limit(self) noexcept:
        cdef Py_ssize_t room_bytes = self._size_limit_bytes - OVERHEAD_BYTES
        room_bytes = <Py_ssize_t>(room_bytes / max(1.0, self._growth))
        self._certain_limit_bytes = min(OVERHEAD_BYTES + room_bytes, self._memory_bytes)

    @property
    def estimated_size_bytes(self):
        """The expected size of the finished batch, by the growth that was set."""
        return OVERHEAD_BYTES + <Py_ssize_t>((self.size_bytes - OVERHEAD_BYTES) * self._growth)

    cdef bint _has_room(self, Py_ssize_t record_bytes) noexcept nogil:
        cdef Py_ssize_t estimated_bytes
        if self.is_taken:
            return False
        if not self.record_count or self.size_bytes + record_bytes <= self._certain_limit_bytes:
            return True
        if self.size_bytes + record_bytes > self._memory_bytes:
            return False
        estimated_bytes = <Py_ssize_t>((self.size_bytes - OVERHEAD_BYTES) * self._growth)
        return OVERHEAD_BYTES + estimated_bytes + record_bytes <= self._size_limit_bytes

    def fits(self, Py_ssize_t record_bytes):
        """Return whether a record of this size would be taken. An empty batch takes any."""
        return self._has_room(record_bytes)

    cdef int _reserve(self, Py_ssize_t record_bytes) except -1:
        """Make room in memory for a record. If there is no memory, nothing has changed."""
        cdef Py_ssize_t needed_bytes = self.size_bytes + record_bytes
        cdef Py_ssize_t capacity
        if needed_bytes <= self._capacity:
            return 0
        if self._buffer is None:
            capacity = <Py_ssize_t>(self._times * min(self._size_limit_bytes, FIRST_CAPACITY_BYTES))
            capacity = max(needed_bytes, capacity)
            self._buffer = kept_buffer(capacity, 2 * max(capacity, self._size_limit_bytes))
            if self._buffer is None:
                self._buffer = PyByteArray_FromStringAndSize(NULL, capacity)
            capacity = PyByteArray_GET_SIZE(self._buffer)
        else:
            # Twice as much, but not more than the batch may use.
            capacity = max(needed_bytes, min(2 * self._capacity, self._memory_bytes))
            PyByteArray_Resize(self._buffer, capacity)
        self._data = PyByteArray_AS_STRING(self._buffer)
        self._capacity = capacity
        return 0

    cpdef Py_ssize_t append_fast(
        self, long long timestamp_ms, object key, object value, tuple headers
    ) except -2:
        """Append a record. See the Python twin. The timestamp is not checked."""
        cdef Py_ssize_t count = self.record_count
        cdef Py_ssize_t headers_bytes, body_bytes, record_bytes
        cdef long long delta_ms = timestamp_ms - self.base_timestamp_ms if count else 0
        cdef bytes tail = None
        cdef char* at
        if headers is None:
            raise no_headers()
        if key is not None and type(key) is not bytes:
            key = to_encode("key", key)
        if value is not None and type(value) is not bytes:
            value = to_encode("value", value)
        if PyTuple_GET_SIZE(headers):
            headers_bytes = size_of_headers(headers)
            if not headers_bytes:
                tail = encode_headers(headers)
                headers_bytes = PyBytes_GET_SIZE(tail)
        else:
            headers_bytes = 1
        body_bytes = 1 + txn_varint_size(delta_ms) + txn_varint_size(count)
        body_bytes += size_of(key) + size_of(value) + headers_bytes
        record_bytes = txn_varint_size(body_bytes) + body_bytes
        if OVERHEAD_BYTES + record_bytes > MAX_INT32:
            raise too_large(record_bytes)
        if not self._has_room(record_bytes):
            return NO_ROOM
        self._reserve(record_bytes)
        at = txn_put_varint(self._data + self.size_bytes, body_bytes)
        at[0] = 0
        at = txn_put_varint(at + 1, delta_ms)
        at = txn_put_varint(at, count)
        at = put_bytes(at, key)
        at = put_bytes(at, value)
        if tail is not None:
            memcpy(at, PyBytes_AS_STRING(tail), headers_bytes)
        elif headers_bytes == 1:
            at[0] = 0
        else:
            put_headers(at, headers)
        self.size_bytes += record_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
            if not count:
                self.base_timestamp_ms = timestamp_ms
        return count

    cdef Py_ssize_t append_pieces(
        self, Piece* records, Py_ssize_t count, Py_ssize_t* missing_bytes
    ) noexcept nogil:
        """Append records while there is room and memory for them. Return the number appended.

        Args:
            records: three pieces each, for key, value and encoded headers; the first one has the
                timestamp.
            missing_bytes: is set to the argument for `_reserve`, or to 0.
        """
        cdef Py_ssize_t done, size, position = self.record_count
        cdef long long delta_ms
        cdef Piece* record
        cdef char* at
        missing_bytes[0] = 0
        for done in range(count):
            record = records + 3 * done
            delta_ms = record.timestamp_ms - self.base_timestamp_ms if position else 0
            size = 1 + txn_varint_size(delta_ms) + txn_varint_size(position)
            size += size_of_piece(record) + size_of_piece(record + 1) + record[2].size
            # Rows are measured before they are sent: none exceeds the format's limit.
            if not self._has_room(txn_varint_size(size) + size):
                return done
            if self.size_bytes + <Py_ssize_t>txn_varint_size(size) + size > self._capacity:
                missing_bytes[0] = txn_varint_size(size) + size
                return done
            at = txn_put_varint(self._data + self.size_bytes, size)
            at[0] = 0
            at = txn_put_varint(at + 1, delta_ms)
            at = txn_put_varint(at, position)
            at = put_piece(at, record)
            at = put_piece(at, record + 1)
            memcpy(at, record[2].data, record[2].size)
            self.size_bytes = at + record[2].size - self._data
            if record.timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms = record.timestamp_ms
                if not position:
                    self.base_timestamp_ms = record.timestamp_ms
            position += 1
            self.record_count = position
        return count

    def append(self, timestamp_ms, key, value, headers=()):
        """Append a record. See the Python twin."""
        cdef long long stamp_ms = to_timestamp(timestamp_ms)
        cdef Py_ssize_t index
        if type(headers) is not tuple:
            headers = tuple(headers)
        index = self.append_fast(stamp_ms, key, value, headers)
        return None if index == NO_ROOM else index

    def body(self):
        """Return a copy of the encoded records, of a batch that is not taken."""
        return b"" if self._data == NULL else self._data[OVERHEAD_BYTES:self.size_bytes]

    def take(self):
        """Close the buffer. Return it with room for the header before the records.

        A later call returns the same, until `drop`: an interrupt may have lost the first result.
        """
        cdef bytearray whole = self._buffer
        if not self.is_taken:
            if whole is None:
                self._buffer = bytearray(OVERHEAD_BYTES)
            else:
                if 2 * self.size_bytes < self._capacity and self._capacity >= LEAST_KEPT_BYTES:
                    # A copy of the few bytes costs less than the pages of the next large buffer.
                    self._buffer = PyByteArray_FromStringAndSize(self._data, self.size_bytes)
                else:
                    PyByteArray_Resize(whole, self.size_bytes)
                memset(PyByteArray_AS_STRING(self._buffer), 0, OVERHEAD_BYTES)
            self._data = NULL
            self._capacity = 0
            self._certain_limit_bytes = -1
            self.is_taken = True
            # Last, since everything above belongs together.
            if whole is not None:
                keep_buffer(whole)
        return self._buffer

    def drop(self):
        """Forget the records that were taken: from now on they are the caller's alone."""
        self._buffer = bytearray()


cdef enum:
    # This many rows are looked up at a time. The work on them then needs no interpreter.
    CHUNK_ROWS = 256
    # More than any cluster has, and small enough for a table with one counter for each.
    MAX_PARTITIONS = 1 << 20
    NO_PARTITION = -1
    # The lengths of topic, partition, key and value in the hashed layout.
    HASHED_LENGTHS_BYTES = 16

cdef object MASK_64 = (1 << 64) - 1

cdef char* NO_HEADERS = b"\0"


cdef class Column:
    """One column: a tuple of bytes and None, or the buffers of a `BinaryColumn`."""

    cdef tuple items
    cdef bint is_absent
    cdef bint has_validity
    cdef bint is_wide
    cdef Py_ssize_t first_bit
    cdef const unsigned char[::1] validity
    cdef const unsigned char[::1] data
    cdef const int[::1] offsets
    cdef const long long[::1] wide_offsets

    def __cinit__(self, Py_ssize_t count, column):
        cdef Py_ssize_t length
        self.is_absent = column is None
        if column is None:
            return
        if isinstance(column, tuple):
            self.items = column
            length = len(self.items)
        else:
            length = column.count
            self._take_buffers(column)
        if length != count:
            raise ValueError(f"a column of {length} items for {count} rows")

    cdef int _take_buffers(self, column) except -1:
        """Copy the validity and the offsets: others could change them while the rows wait."""
        cdef Py_ssize_t first = column.first, end = first + column.count
        if first < 0 or len(column.offsets) <= end:
            raise ValueError(f"{len(column.offsets)} offsets are too few for {column.count} items")
        self.has_validity = column.validity is not None
        if self.has_validity:
            if 8 * len(column.validity) < end:
                raise ValueError("a bit per item is missing in the validity of a column")
            self.validity = bytes(column.validity[first >> 3:(end + 7) >> 3])
            self.first_bit = first & 7
        places = memoryview(bytes(column.offsets[first:end + 1]))
        self.is_wide = column.offsets.itemsize == 8
        if self.is_wide:
            self.wide_offsets = places.cast("q")
        else:
            self.offsets = places.cast("i")
        self.data = column.data
        self._check_offsets(column.count)
        return 0

    cdef inline long long _offset(self, Py_ssize_t item) noexcept:
        return self.wide_offsets[item] if self.is_wide else self.offsets[item]

    cdef int _check_offsets(self, Py_ssize_t count) except -1:
        """Refuse offsets that point outside the data, before anything is read there."""
        cdef long long last = 0
        cdef Py_ssize_t item
        for item in range(count + 1):
            if self._offset(item) < last:
                raise ValueError("a column's offsets go backwards")
            last = self._offset(item)
        if last > len(self.data):
            raise ValueError(f"a column's offsets lead to byte {last} of {len(self.data)}")
        return 0

    cdef inline void find(self, Py_ssize_t row, Piece* piece) noexcept:
        cdef PyObject* item
        cdef long long begin, end
        cdef Py_ssize_t bit
        piece.size = -1
        if self.is_absent:
            return
        if self.items is not None:
            item = <PyObject*>PyTuple_GET_ITEM(self.items, row)
            if item != <PyObject*>None:
                piece.data = PyBytes_AS_STRING(<object>item)
                piece.size = PyBytes_GET_SIZE(<object>item)
            return
        if self.has_validity:
            bit = self.first_bit + row
            if not self.validity[bit >> 3] >> (bit & 7) & 1:
                return
        begin, end = self._offset(row), self._offset(row + 1)
        piece.data = <const char*>&self.data[0] + begin if end > begin else NULL
        piece.size = end - begin

    cdef object item(self, Py_ssize_t row):
        cdef Piece piece
        self.find(row, &piece)
        return None if piece.size < 0 else PyBytes_FromStringAndSize(piece.data, piece.size)


cdef tuple encoded_headers(Py_ssize_t count, headers):
    cdef Py_ssize_t size
    cdef bytes encoded
    cdef list column = []
    if len(headers) != count:
        raise ValueError(f"headers for {len(headers)} of {count} rows")
    for row in headers:
        if not row:
            column.append(None)
            continue
        size = size_of_headers(row)
        if not size:
            column.append(encode_headers(row))
            continue
        encoded = PyBytes_FromStringAndSize(NULL, size)
        put_headers(PyBytes_AS_STRING(encoded), row)
        column.append(encoded)
    return tuple(column)


cdef class Rows:
    """Records to append, column by column."""

    cdef readonly Py_ssize_t count
    cdef Column _values
    cdef Column _keys
    cdef Column _encoded_headers
    cdef object _headers
    cdef const long long[::1] _stamps
    cdef long long _stamp_ms
    cdef bint _has_stamps

    def __init__(self, Py_ssize_t count, values, keys, headers, timestamps_ms):
        self.count = count
        self._values = Column(count, values)
        self._keys = Column(count, keys)
        self._headers = headers
        encoded = None if headers is None else encoded_headers(count, headers)
        self._encoded_headers = Column(count, encoded)
        self._has_stamps = not isinstance(timestamps_ms, int)
        if not self._has_stamps:
            self._stamp_ms = timestamps_ms
            return
        self._stamps = timestamps_ms
        if len(self._stamps) != count:
            raise ValueError(f"{len(timestamps_ms)} timestamps for {count} rows")

    def record(self, Py_ssize_t row):
        """Return a row's timestamp, key, value and headers."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return (
            self._stamps[row] if self._has_stamps else self._stamp_ms,
            self._keys.item(row),
            self._values.item(row),
            () if self._headers is None else self._headers[row] or (),
        )

    cdef void _find(self, Py_ssize_t row, Piece* record) noexcept:
        self._keys.find(row, record)
        self._values.find(row, record + 1)
        self._encoded_headers.find(row, record + 2)
        if record[2].size < 0:
            record[2].data = NO_HEADERS
            record[2].size = 1
        record.timestamp_ms = self._stamps[row] if self._has_stamps else self._stamp_ms

    def append_to(self, RecordBuffer buffer not None, order, Py_ssize_t start, Py_ssize_t stop):
        """Append rows to a batch while it has room. See the Python twin."""
        cdef Piece records[3 * CHUNK_ROWS]
        cdef const int[::1] rows
        cdef bint is_ordered = order is not None
        cdef Py_ssize_t position = start, index, count, done, missing_bytes, row
        if is_ordered:
            rows = order
        if start < 0 or stop > (len(rows) if is_ordered else self.count):
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        while position < stop:
            count = min(stop - position, CHUNK_ROWS)
            for index in range(count):
                row = rows[position + index] if is_ordered else position + index
                if not 0 <= row < self.count:
                    raise IndexError(row)
                self._find(row, records + 3 * index)
            index = 0
            while index < count:
                with nogil:
                    done = buffer.append_pieces(records + 3 * index, count - index, &missing_bytes)
                index += done
                if missing_bytes:
                    buffer._reserve(missing_bytes)
                elif index < count:
                    return position + index - start
            position += count
        return stop - start

    def largest(self):
        """Return the largest row, and the largest size of a batch with only this row."""
        cdef Piece record[3]
        cdef Py_ssize_t row, size, largest_row = 0, largest = -1
        for row in range(self.count):
            self._find(row, record)
            size = size_of_piece(record) + size_of_piece(record + 1) + record[2].size
            if size > largest:
                largest, largest_row = size, row
        return largest_row, BATCH_OVERHEAD_BYTES + MAX_RECORD_OVERHEAD_BYTES + largest

    def reach(self, order, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t room_bytes):
        """Return the rows that a number of bytes has room for. See the Python twin."""
        cdef Piece record[3]
        cdef const int[::1] rows = order
        cdef Py_ssize_t position, row, row_bytes, size = 0
        if start < 0 or stop > len(rows):
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        for position in range(start, stop):
            row = rows[position]
            if not 0 <= row < self.count:
                raise IndexError(row)
            self._find(row, record)
            row_bytes = 3 + size_of_piece(record) + size_of_piece(record + 1) + record[2].size
            row_bytes += txn_varint_size(row_bytes)
            if size and size + row_bytes > room_bytes:
                return position, size
            size += row_bytes
        return stop, size

    def by_partition(self, partitions, Py_ssize_t partition_count):
        """Sort the rows by partition. See the Python twin."""
        cdef const int[::1] given
        cdef int[::1] chosen = array("i", bytes(4 * self.count))
        cdef int highest = partition_count - 1
        cdef Py_ssize_t row
        cdef Piece key
        if partitions is not None:
            given = partitions
            if len(given) != self.count:
                raise ValueError(f"{len(given)} partitions for {self.count} rows")
        for row in range(self.count):
            chosen[row] = NO_PARTITION if partitions is None else given[row]
            if chosen[row] < NO_PARTITION:
                raise ValueError(f"there is no partition {chosen[row]}")
            highest = max(highest, chosen[row])
            if chosen[row] != NO_PARTITION or not partition_count:
                continue
            self._keys.find(row, &key)
            if key.size >= 0:
                chosen[row] = (
                    txn_murmur2(<const unsigned char*>key.data, key.size) & 0x7FFFFFFF
                ) % partition_count
        return sorted_rows(chosen, highest)

    def places(self, Py_ssize_t partition_count):
        """Return the partition for each row's key. See the Python twin."""
        if not 0 < partition_count <= MAX_PARTITIONS:
            raise ValueError(f"there is no topic of {partition_count} partitions")
        found = array("i", bytes(4 * self.count))
        cdef int[::1] chosen = found
        cdef Py_ssize_t row
        cdef Piece key
        for row in range(self.count):
            self._keys.find(row, &key)
            chosen[row] = NO_PARTITION if key.size < 0 else (
                txn_murmur2(<const unsigned char*>key.data, key.size) & 0x7FFFFFFF
            ) % partition_count
        return found

    def hash_sum(self, bytes topic not None, partitions, record_hash):
        """Add up the hashes of all rows. See the Python twin."""
        cdef const int[::1] given
        cdef bint are_given = partitions is not None
        cdef txn_hash_function hash_of = <txn_hash_function><size_t>record_hash.address
        cdef unsigned long long low = 0, high = 0
        cdef Py_ssize_t row, size_bytes = 0, room_bytes, capacity = 0
        cdef Piece record[3]
        cdef txn_hash found
        cdef bytearray buffer = bytearray()
        cdef char* start = NULL
        cdef char* at
        if are_given:
            given = partitions
            if len(given) != self.count:
                raise ValueError(f"{len(given)} partitions for {self.count} rows")
        for row in range(self.count):
            self._find(row, record)
            room_bytes = max(record[0].size, 0) + max(record[1].size, 0)
            size_bytes += room_bytes
            room_bytes += 4 * record[2].size + HASHED_LENGTHS_BYTES + PyBytes_GET_SIZE(topic)
            if room_bytes > capacity:
                capacity = 2 * room_bytes
                PyByteArray_Resize(buffer, capacity)
                start = PyByteArray_AS_STRING(buffer)
            at = txn_put_field(start, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
            at = txn_put_int32(at, given[row] if are_given else NO_PARTITION)
            at = txn_put_field(at, record[0].data, record[0].size)
            at = txn_put_field(at, record[1].data, record[1].size)
            at = txn_put_hashed_headers(at, record[2].data)
            if hash_of != NULL:
                found = hash_of(start, at - start)
            else:
                number = record_hash.of(PyBytes_FromStringAndSize(start, at - start))
                found.low, found.high = number & MASK_64, number >> 64
            # A sum of 128 bits in two words: the low word has overflowed if it is now smaller.
            low += found.low
            high += found.high + (low < found.low)
        return (<object>high << 64) | low, size_bytes


cdef tuple sorted_rows(int[::1] chosen, int highest):
    """Return the rows ordered by partition, and each partition's range in this order."""
    if highest >= MAX_PARTITIONS:
        raise ValueError(f"there is no partition {highest}")
    # One counter more for NO_PARTITION, and one for the end.
    starts = array("i", bytes(4 * (highest + 3)))
    order = array("i", bytes(4 * len(chosen)))
    cdef int[::1] next_places = starts
    cdef int[::1] places = order
    cdef Py_ssize_t row
    cdef int bucket
    # A counting sort, in three steps: count the rows, find where each partition starts, place
    # rows.
    for row in range(len(chosen)):
        next_places[chosen[row] + 2] += 1
    for bucket in range(1, highest + 3):
        next_places[bucket] += next_places[bucket - 1]
    runs = [
        (bucket - 1, starts[bucket], starts[bucket + 1])
        for bucket in range(highest + 2)
        if starts[bucket] != starts[bucket + 1]
    ]
    for row in range(len(chosen)):
        bucket = chosen[row] + 1
        places[next_places[bucket]] = row
        next_places[bucket] += 1
    return order, runs


def first_not_bytes(tuple items not None):
    """Return the index of the first item that is neither bytes nor None, or -1."""
    cdef Py_ssize_t index
    for index in range(PyTuple_GET_SIZE(items)):
        item = <object>PyTuple_GET_ITEM(items, index)
        if item is not None and type(item) is not bytes:
            return index
    return -1
