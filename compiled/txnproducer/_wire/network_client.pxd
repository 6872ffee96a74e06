"""The types with which `network_client` is compiled."""

cdef class NetworkClient:
    cdef public object _config
    cdef public object _clock_ms
    cdef public object _rng
    cdef public object _settings
    cdef public object _codec
    cdef public object _reconnects
    cdef public object _setup_timeouts
    cdef public dict _nodes
    cdef public dict _links
    cdef public dict _api_versions
    cdef public object _known
    cdef public list _events
    cdef public list _unflushed
    cdef public object _due_ms
    cdef public bint _is_closed
    cdef public object _wakeup
    cdef public object _threads
    cdef public object _diagnoses
    cdef public object _calls
    cdef public object _selector

    cpdef bint is_ready(self, object connection, object now_ms)
    cpdef object poll(self, object timeout_ms, object now_ms)
    cdef bint _handle_ready(self, list ready, object now_ms)
    cdef bint _serve(self, object connection, int mask, object now_ms)
    cdef object _flush(self, object now_ms)
    cdef object _watch(self, object connection)
    cdef bint _is_current(self, object connection)
