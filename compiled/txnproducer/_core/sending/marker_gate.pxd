"""The types with which `marker_gate` is compiled."""

from txnproducer._core.sending.request_tracker cimport RequestTracker

cdef class MarkerGate:
    cdef public object _client
    cdef public RequestTracker _requests
    cdef public object _transactional_id
    cdef public bint _is_open
    cdef public long long _ended_ms
    cdef public long long _next_question_ms
    cdef public long _questions
    cdef public object _transaction
    cdef public bint _is_asking

    cpdef object transaction_ended(self, long long now_ms)
    cpdef object wait_ms(self, object coordinator, long long now_ms)
    cdef bint _is_late(self, long long now_ms)
