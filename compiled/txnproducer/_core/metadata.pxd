"""The types with which `metadata` is compiled."""

cdef class Metadata:
    cdef public tuple bootstrap_nodes
    cdef public dict nodes
    cdef public dict topics
    cdef public object version
    cdef public object cluster_id
    cdef public object last_success_ms
    cdef public object answered_ms
    cdef public object fatal_error
    cdef public object _backoff
    cdef public object _max_age_ms
    cdef public object _max_idle_ms
    cdef public dict _wanted
    cdef public dict _topic_errors
    cdef public set _new_topics
    cdef public bint _is_update_due
    cdef public bint _is_partial
    cdef public object _attempts
    cdef public object _not_before_ms
    cdef public object asked_count
    cdef public object _asked_ms
    cdef public dict _answers
    cdef public set _unknown

    cpdef tuple leader_of(self, object topic_partition)
