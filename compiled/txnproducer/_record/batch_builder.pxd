"""The types with which `batch_builder` is compiled."""

cdef class RecordBatchBuilder:
    cdef public object _attributes
    cdef public object _buffer
    cdef public object _codec
    cdef public double _compression_ratio
    cdef public bint _is_handed_out
    cdef public bint _is_stamped
    cdef public long long _memory_bytes
    cdef public tuple _producer_state
    cdef public object _sealed
    cdef public Py_ssize_t _size_limit_bytes
    cdef public object append
    cdef public object records_buffer
