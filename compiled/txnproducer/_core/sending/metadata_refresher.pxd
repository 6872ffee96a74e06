"""The types with which `metadata_refresher` is compiled."""

from txnproducer._core.metadata cimport Metadata
from txnproducer._core.sending.request_tracker cimport RequestTracker

cdef class MetadataRefresher:
    cdef public Metadata _metadata
    cdef public object _client
    cdef public RequestTracker _requests
    cdef public object _retry_backoff_ms
    cdef public object _on_update
    cdef public object _on_refusal
    cdef public bint _is_in_flight

    cpdef object step(self, object now_ms)
