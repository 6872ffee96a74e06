"""The types with which `partition_map` is compiled."""

cdef class TxnPartitionEntry:
    cdef public list _in_flight
    cdef public long long last_acked_offset
    cdef public long long last_acked_sequence
    cdef public long long next_sequence
    cdef public object producer_id_and_epoch
    cdef public object topic_partition

cdef class TxnPartitionMap:
    cdef dict _entries

    cpdef TxnPartitionEntry find(self, object topic_partition)
