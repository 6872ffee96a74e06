"""The types with which `partition_queues` is compiled."""

from txnproducer._core.batches.producer_batch cimport ProducerBatch

cdef class PartitionQueue:
    cdef public object batches
    cdef public bint is_muted
    cdef public ProducerBatch open_batch
    cdef public object topic_partition

cdef class TopicQueues:
    cdef public double compression_ratio
    cdef public Py_ssize_t partition_count
    cdef public object partitioner
    cdef public dict queues
    cdef public ProducerBatch sticky_batch
    cdef public PartitionQueue sticky_queue
    cdef public Py_ssize_t sticky_start_bytes
    cdef public object topic
