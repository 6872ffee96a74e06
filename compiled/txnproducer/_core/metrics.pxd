"""The types with which `metrics` is compiled."""

cimport cython

cdef class _Stat:
    cdef long long _count
    cdef long long _last_count
    cdef double _last_max
    cdef double _last_sum
    cdef double _max
    cdef long long _start_ms
    cdef double _sum

    cpdef object record(self, double value, long long now_ms)

    @cython.locals(elapsed=cython.longlong, is_next=cython.bint)
    cdef object _roll(self, long long now_ms)

cdef class Metrics:
    cdef dict _totals
    cdef dict _stats
    cdef dict _rates

    @cython.locals(stat=_Stat)
    cpdef object observe(self, object name, double value, long long now_ms)

    @cython.locals(stat=_Stat)
    cpdef object count(self, object name, double amount, long long now_ms)
