"""The types with which `sender` is compiled."""

from txnproducer._core.sending.coordinator_sender cimport CoordinatorSender
from txnproducer._core.sending.metadata_refresher cimport MetadataRefresher
from txnproducer._core.sending.produce_sender cimport ProduceSender
from txnproducer._core.batches.record_accumulator cimport RecordAccumulator

cdef class Sender:
    cdef public object _transactions
    cdef public CoordinatorSender _coordinators
    cdef public ProduceSender _producing
    cdef public MetadataRefresher _refresher
    cdef public RecordAccumulator _accumulator
    cdef public object _retry_backoff_ms
    cdef public object _phase

    cpdef object run_once(self, object now_ms)
    cdef object _step(self, object now_ms)
    cdef object _step_transactions(
        self, object transactions, CoordinatorSender coordinators, object now_ms
    )
