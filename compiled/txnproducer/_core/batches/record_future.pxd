"""The types with which `record_future` is compiled."""

cimport cython


cdef class DeliveryFuture:
    pass


@cython.final
cdef class FutureRecordMetadata(DeliveryFuture):
    cdef object _result
    cdef Py_ssize_t _index
    cdef long long _timestamp_ms
    cdef Py_ssize_t _key_size
    cdef Py_ssize_t _value_size
