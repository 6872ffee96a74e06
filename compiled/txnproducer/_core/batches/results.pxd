"""The types with which `results` is compiled."""

cdef class ProduceRequestResult:
    cdef public object _record_errors
    cdef public long long base_offset
    cdef public tuple child_starts
    cdef public tuple children
    cdef public bint is_done
    cdef public bint is_set
    cdef public object listeners
    cdef public long long log_append_time_ms
    cdef public object topic_partition
    cdef public object waiter
