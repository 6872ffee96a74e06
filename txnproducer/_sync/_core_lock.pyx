"""The compiled twins of `threading.Lock` and of `core_lock.Turnstile`: see there.

Compiled code takes and releases the lock without a call through the interpreter, in a fifth of the
time. Everything else uses the methods, which are those of `threading.Lock`: a wait for it obeys
Ctrl-C.

How a thread gives way: the loop's thread says, still without the interpreter, that it wants it
(`_is_wanted`). Who sends looks at that with each record, lets go, and sleeps until the other has
got it. Letting go alone would not do: who does that has it again before the other is awake.

Rules:
* Nothing here relies on the GIL: what several threads read and write is read and written by one
  indivisible step (`txn_*` below).
* The bell is released by whoever turns `_is_rung` on, and by nobody else; it is turned off by
  whoever has taken the bell. So it is never released twice.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PY_LOCK_ACQUIRED,
    PY_LOCK_INTR,
    PyLockStatus,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)

from time import monotonic

from txnproducer._sync.core_lock import reentered

cdef extern from *:
    """
    #define txn_load(at) __atomic_load_n(at, __ATOMIC_RELAXED)
    #define txn_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
    /* In one order for all threads: who goes to sleep is counted before the bell is looked at. */
    #define txn_add(at, value) __atomic_add_fetch(at, value, __ATOMIC_SEQ_CST)
    #define txn_exchange(at, value) __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)
    """
    int txn_load(int* at) noexcept nogil
    void txn_store(int* at, int value) noexcept nogil
    unsigned long txn_load_owner "txn_load"(unsigned long* at) noexcept nogil
    void txn_store_owner "txn_store"(unsigned long* at, unsigned long value) noexcept nogil
    int txn_add(int* at, int value) noexcept nogil
    int txn_exchange(int* at, int value) noexcept nogil

cdef enum:
    # A sleep ends then, whatever happens: the interpreter decides from there.
    SLEEP_US = 3000

cdef extern from "pythread.h" nogil:
    # As the interpreter's own locks: microseconds, and whether a signal ends the wait.
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long us, int is_heeding)


cdef class Lock:
    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock is NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self._lock is not NULL:
            if self._is_taken():
                PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    cdef bint try_take(self) noexcept:
        """Take the lock if nobody has it; tell whether that came about."""
        if PyThread_acquire_lock_timed(self._lock, 0, 0) != PY_LOCK_ACQUIRED:
            return False
        self._have()
        return True

    cdef int take(self) except -1:
        """Take the lock, and wait for it as long as that takes."""
        if not self.try_take():
            self._wait(-1.0)
            self._have()
        return 0

    cdef void _have(self) noexcept:
        txn_store_owner(&self._owner, PyThread_get_thread_ident())

    cdef bint _is_taken(self) noexcept:
        return txn_load_owner(&self._owner) != 0

    cdef int give(self) except -1:
        """Release the lock."""
        if not self._is_taken():
            raise RuntimeError("release of a lock that nobody has")
        txn_store_owner(&self._owner, 0)
        PyThread_release_lock(self._lock)
        return 0

    cdef bint _wait(self, double timeout_s) except -1:
        """Wait for the lock, for ever if the time-out is negative; tell whether it was taken."""
        cdef PyLockStatus status
        cdef long long left_us = -1
        cdef double deadline = monotonic() + timeout_s
        if timeout_s < 0 and self.is_mine():
            raise reentered("call it")
        while True:
            if timeout_s >= 0:
                left_us = max(0, <long long>((deadline - <double>monotonic()) * 1e6))
            with nogil:
                status = PyThread_acquire_lock_timed(self._lock, left_us, 1)
            if status != PY_LOCK_INTR:
                return status == PY_LOCK_ACQUIRED
            PyErr_CheckSignals()

    def acquire(self, bint blocking=True, double timeout=-1):
        """Take the lock; return whether that came about."""
        if self.try_take():
            return True
        if not blocking or not self._wait(timeout):
            return False
        self._have()
        return True

    def is_mine(self):
        """Return whether the calling thread has it."""
        return txn_load_owner(&self._owner) == PyThread_get_thread_ident()

    def release(self):
        """Release the lock."""
        self.give()

    def locked(self):
        """Return whether somebody has it."""
        return self._is_taken()

    def reset_after_fork(self):
        """Make the lock free: see the other twin."""
        cdef PyThread_type_lock fresh = PyThread_allocate_lock()
        if fresh is NULL:
            raise MemoryError("no memory for a lock")
        # The old one is not freed: it may be taken, by a thread that is not here.
        self._lock = fresh
        txn_store_owner(&self._owner, 0)

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, *_):
        self.give()


cdef class Turnstile:
    def __cinit__(self):
        self._bell = PyThread_allocate_lock()
        if self._bell is NULL:
            raise MemoryError("no memory for a lock")
        PyThread_acquire_lock_timed(self._bell, 0, 0)

    def __dealloc__(self):
        if self._bell is not NULL:
            if not self._is_rung:
                PyThread_release_lock(self._bell)
            PyThread_free_lock(self._bell)

    cdef bint is_wanted(self) noexcept nogil:
        """Return whether who sends should give way."""
        return txn_load(&self._is_wanted)

    cdef void want_interpreter(self) noexcept nogil:
        """Say that the loop's thread is awake; called without the interpreter."""
        txn_store(&self._is_wanted, 1)

    cdef void have(self) noexcept:
        """Say that the loop's thread has what it wanted."""
        txn_exchange(&self._is_wanted, 0)
        self._ring()

    cdef void _ring(self) noexcept:
        """End the sleep of one thread, which ends the next one's."""
        if txn_add(&self._sleepers, 0) and not txn_exchange(&self._is_rung, 1):
            PyThread_release_lock(self._bell)

    cdef int sleep(self) except -1:
        """Wait until the loop's thread has what it wants."""
        cdef PyLockStatus status
        txn_add(&self._sleepers, 1)
        if not txn_add(&self._is_wanted, 0):
            # The other has got it since, and saw nobody asleep: nobody would ring.
            txn_add(&self._sleepers, -1)
            return 0
        with nogil:
            status = PyThread_acquire_lock_timed(self._bell, SLEEP_US, 0)
        txn_add(&self._sleepers, -1)
        if status != PY_LOCK_ACQUIRED:
            # It may have been rung since: left so, it would end the next sleep at once.
            status = PyThread_acquire_lock_timed(self._bell, 0, 0)
        if status == PY_LOCK_ACQUIRED:
            txn_exchange(&self._is_rung, 0)
            self._ring()
        return 0

    def give_way(self):
        """Let the loop's thread go on, if it wants to: see the other twin."""
        if self.is_wanted():
            self.sleep()

    def take_first(self, Lock lock not None):
        """Take a lock: see the other twin."""
        if lock.try_take():
            return
        txn_store(&self._is_wanted, 1)
        try:
            lock.take()
        finally:
            self.have()
