"""The types with which `sequence_manager` is compiled."""

cimport cython

from txnproducer._core.sequences.partition_map cimport TxnPartitionEntry, TxnPartitionMap

cdef class SequenceManager:
    cdef public bint _is_transactional
    cdef public object producer_id_and_epoch
    cdef public TxnPartitionMap partitions
    cdef public dict _unresolved
    cdef public set _to_rewrite
    cdef public dict _known_as
    cdef public bint _is_bump_due
    cdef public bint _is_id_new

    # What the ready check asks of each waiting batch, and each drained one once more.
    @cython.locals(entry=TxnPartitionEntry)
    cpdef bint is_gated(self, object batch)
    @cython.locals(entry=TxnPartitionEntry)
    cpdef object number(self, object batch)
    cpdef bint is_known_in(self, object topic_partition)
    cdef bint _is_stale(self, TxnPartitionEntry entry)
    @cython.locals(entry=TxnPartitionEntry)
    cpdef bint has_in_flight_batches(self, object topic_partition)
    @cython.locals(entry=TxnPartitionEntry)
    cpdef bint is_memory_of_broker_used_up(self, object topic_partition)
    @cython.locals(entry=TxnPartitionEntry)
    cpdef object first_in_flight_sequence(self, object topic_partition)
