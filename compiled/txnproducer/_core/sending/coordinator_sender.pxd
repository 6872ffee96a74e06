"""The types with which `coordinator_sender` is compiled."""

from txnproducer._core.sending.marker_gate cimport MarkerGate
from txnproducer._core.metadata cimport Metadata
from txnproducer._core.batches.record_accumulator cimport RecordAccumulator
from txnproducer._core.sending.request_tracker cimport RequestTracker

cdef class CoordinatorSender:
    cdef public object _transactions
    cdef public object _client
    cdef public RequestTracker _requests
    cdef public Metadata _metadata
    cdef public RecordAccumulator _accumulator
    cdef public object _refusals
    cdef public object _request_timeout_ms
    cdef public object _retry_backoff_ms
    cdef public MarkerGate _gate
    cdef public object _inquiry
    cdef public object _in_hand
    cdef public object _taken_ms
    cdef public dict _not_before_ms

    cpdef object ask_about_loss(self, object now_ms)
    cpdef object step(self, object now_ms)
    cdef object _hold_data(self, object now_ms)
    cdef object _drop_unsent_batches(self)
    cdef object _send(self, object handler, object now_ms)
