"""The types with which `drain` is compiled."""

cimport cython

from txnproducer._core.metadata cimport Metadata
from txnproducer._core.batches.partition_queues cimport PartitionQueue
from txnproducer._core.batches.producer_batch cimport ProducerBatch
from txnproducer._core.batches.record_accumulator cimport RecordAccumulator
from txnproducer._core.sequences.sequence_manager cimport SequenceManager

@cython.locals(
    queue=PartitionQueue,
    head=ProducerBatch,
    is_hurried=cython.bint,
    wait_ms=cython.longlong,
    linger_ms=cython.longlong,
    by_leader=dict,
)
cpdef object check_ready(
    RecordAccumulator accumulator, Metadata metadata, object identity, long long now_ms
)
cdef bint _is_hurried(RecordAccumulator accumulator, object identity)
cdef long long _linger_left_ms(
    PartitionQueue queue, ProducerBatch head, long long linger_ms, long long now_ms
)
@cython.locals(sequences=SequenceManager)
cpdef bint is_gated(ProducerBatch head, object identity)
