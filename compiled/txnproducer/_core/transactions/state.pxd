"""The types with which `state` is compiled."""


cdef class TransactionStateMachine:
    cdef public object name
    cdef object _watcher
    # The one attribute that is read without the lock. In an interpreter without a GIL that is safe
    # as well, since the members of an Enum are never freed.
    cdef public object state
    cdef public object last_error
    cdef public object role
