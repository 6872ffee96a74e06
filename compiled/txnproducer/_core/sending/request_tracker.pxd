"""The types with which `request_tracker` is compiled."""

cdef class RequestTracker:
    cdef public object _client
    cdef public object _request_timeout_ms
    cdef public object _next_id
    cdef public dict _awaited
    cdef public list _not_sent

    cpdef object send(self, object connection, object body, object on_end, object now_ms)
    cpdef object handle(self, object response, object now_ms)
