"""The types with which `producer_batch` is compiled."""

from txnproducer._record.batch_builder cimport RecordBatchBuilder

cdef class ProducerBatch:
    cdef public long _attempts_when_leader_changed
    cdef public list _callbacks
    cdef public long _leader_epoch
    cdef public long attempts
    cdef public long long backoff_ms
    cdef public long long base_sequence
    cdef public RecordBatchBuilder builder
    cdef public long long created_ms
    cdef public long long drained_ms
    cdef public object final_state
    cdef public bint in_retry
    cdef public bint is_in_flight
    cdef public bint is_memory_freed
    cdef public bint is_overtaken
    cdef public bint is_reset
    cdef public bint is_split
    cdef public bint is_transactional
    cdef public long long last_attempt_ms
    cdef public object last_error
    cdef public bint may_be_written
    cdef public bint may_come_late
    cdef public Py_ssize_t memory_bytes
    cdef public long producer_epoch
    cdef public long long producer_id
    cdef public object refusal
    cdef public object result
    cdef public object topic_partition
    cdef public bint was_sent

    cpdef bint has_reached_delivery_timeout(self, long long delivery_timeout_ms, long long now_ms)
    cpdef object maybe_update_leader_epoch(self, long leader_epoch)
    cpdef long long backoff_left_ms(self, long long now_ms)
