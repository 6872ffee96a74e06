"""The types with which `record_accumulator` is compiled."""

cimport cython

from txnproducer._core.batches.partition_queues cimport PartitionQueue

cdef class RecordAccumulator:
    cdef public object options
    cdef public object pool
    cdef public dict topics
    cdef public dict active
    cdef public list callbacks
    cdef public object full_batches
    cdef public set busy_nodes
    cdef public bint is_closed
    cdef public object _waiter
    cdef public object _rng
    cdef public bint is_compressing
    cdef public object _batch_size
    cdef public object _batch_limit
    cdef public object _retry_backoff
    cdef public dict _incomplete
    cdef public list _flushes
    cdef public dict _node_latency

    @cython.locals(
        queue=PartitionQueue,
        timeout_ms=cython.longlong,
    )
    cpdef tuple expired_batches(self, long long now_ms)
    cpdef object take_head(self, PartitionQueue queue)
