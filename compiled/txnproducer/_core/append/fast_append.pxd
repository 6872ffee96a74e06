"""The types with which `fast_append` is compiled."""

cimport cython

from txnproducer._core.batches.partition_queues cimport PartitionQueue, TopicQueues
from txnproducer._core.batches.producer_batch cimport ProducerBatch
from txnproducer._core.batches.record_future cimport FutureRecordMetadata
from txnproducer._core.transactions.state cimport TransactionStateMachine
from txnproducer._record._speedups cimport RecordBuffer

cdef class FastAppend:
    cdef dict _topics
    cdef TransactionStateMachine _machine
    cdef object _fast_state
    cdef object _append_any
    cdef bint _is_ignoring_keys

    @cython.locals(
        queues=TopicQueues,
        queue=PartitionQueue,
        batch=ProducerBatch,
        buffer=RecordBuffer,
        index=Py_ssize_t,
        future=FutureRecordMetadata,
    )
    cpdef object try_append(
        self,
        object topic,
        object value,
        object key,
        tuple headers,
        object partition,
        long long timestamp_ms,
        object on_delivery,
    )

    @cython.locals(hashed=cython.longlong)
    cdef PartitionQueue _queue_for_key(self, TopicQueues queues, object key)
