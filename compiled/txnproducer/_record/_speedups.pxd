"""The parts that other compiled modules may call without going through Python."""

cdef struct Piece:
    # A part of a record, at its present place; a size of -1 is null. The first of a record's
    # pieces has its timestamp.
    const char* data
    Py_ssize_t size
    long long timestamp_ms

cdef class RecordBuffer:
    cdef bytearray _buffer
    cdef char* _data
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _size_limit_bytes
    cdef Py_ssize_t _certain_limit_bytes
    cdef Py_ssize_t _memory_bytes
    cdef double _growth
    # The capacity of a new buffer, as a multiple of the limit.
    cdef double _times
    cdef readonly Py_ssize_t record_count
    cdef readonly Py_ssize_t size_bytes
    cdef readonly long long base_timestamp_ms
    cdef readonly long long max_timestamp_ms
    cdef readonly bint is_taken

    cdef void _set_certain_limit(self) noexcept
    cdef bint _has_room(self, Py_ssize_t record_bytes) noexcept nogil
    cdef int _reserve(self, Py_ssize_t record_bytes) except -1
    cpdef Py_ssize_t append_fast(
        self, long long timestamp_ms, object key, object value, tuple headers
    ) except -2
    cdef Py_ssize_t append_pieces(
        self, Piece* records, Py_ssize_t count, Py_ssize_t* missing_bytes
    ) noexcept nogil
