"""The parts that other compiled modules may call without going through Python."""

from cpython.pythread cimport PyThread_type_lock

cdef class Lock:
    cdef PyThread_type_lock _lock
    # The thread that has it, 0 for none: only that thread writes it, and all threads read it.
    cdef unsigned long _owner

    cdef bint try_take(self) noexcept
    cdef int take(self) except -1
    cdef int give(self) except -1
    cdef void _have(self) noexcept
    cdef bint _is_taken(self) noexcept
    cdef bint _wait(self, double timeout_s) except -1

cdef class LoopPriority:
    # The loop's thread writes it without the interpreter. A thread that sees it late sends one
    # record more.
    cdef int _is_wanted
    cdef int _sleepers
    cdef int _is_waking
    cdef PyThread_type_lock _wakeup

    cdef bint is_wanted(self) noexcept nogil
    cdef void want_interpreter(self) noexcept nogil
    cdef void have(self) noexcept
    cdef void _wake_one(self) noexcept
    cdef int sleep(self) except -1
