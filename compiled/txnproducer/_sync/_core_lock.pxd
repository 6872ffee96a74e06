"""The parts that other compiled modules may call without going through Python."""

from cpython.pythread cimport PyLockStatus, PyThread_type_lock

cdef class Bell:
    # Taken, but for the time between a ring and the end of the sleep that it ends.
    cdef PyThread_type_lock _lock
    cdef int _is_rung

    cdef void ring(self) noexcept nogil
    cdef PyLockStatus sleep(self, long long us, bint is_heeding_signals) noexcept nogil

cdef class Lock:
    # The thread that has it, 0 for none.
    cdef unsigned long _owner
    cdef int _waiting
    cdef Bell _bell

    cdef bint try_take(self) noexcept
    cdef int take(self) except -1
    cdef int give(self) except -1
    cdef bint _is_taken(self) noexcept
    cdef bint _wait(self, double timeout_s) except -1

cdef class LoopPriority:
    # The loop's thread writes it without the interpreter. A thread that sees it late sends one
    # record more.
    cdef int _is_wanted
    cdef int _sleepers
    cdef Bell _bell

    cdef bint is_wanted(self) noexcept nogil
    cdef void want_interpreter(self) noexcept nogil
    cdef void have(self) noexcept
    cdef void _wake_one(self) noexcept
    cdef int sleep(self) except -1
