"""The types with which `produce_sender` is compiled."""

cimport cython

from txnproducer._core.metadata cimport Metadata
from txnproducer._core.metrics cimport Metrics
from txnproducer._core.batches.producer_batch cimport ProducerBatch
from txnproducer._core.batches.record_accumulator cimport RecordAccumulator
from txnproducer._core.sending.request_tracker cimport RequestTracker

cdef class ProduceSender:
    cdef public object _options
    cdef public object _client
    cdef public RequestTracker _requests
    cdef public Metadata _metadata
    cdef public RecordAccumulator _accumulator
    cdef public object _transactions
    cdef object _drained
    cdef public Metrics _metrics
    cdef public object requests_in_flight
    cdef public dict _in_flight

    cpdef object step(self, object now_ms)
    @cython.locals(batch=ProducerBatch)
    cdef object _send_to_node(self, object node_id, object queues, object now_ms)
    @cython.locals(batch=ProducerBatch)
    cdef object _produce_partition(self, ProducerBatch batch)
    @cython.locals(batch=ProducerBatch, metrics=Metrics, record_count=cython.longlong)
    cdef object _record_sent(self, object batches, object now_ms)
