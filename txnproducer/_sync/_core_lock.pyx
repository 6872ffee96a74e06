"""The compiled twins of `threading.Lock` and of the Python classes in `core_lock`.

Compiled code takes and releases the lock without a call through the interpreter. All other code
uses the methods, which are those of `threading.Lock`: Ctrl-C ends a wait.

The lock is one word, its owner, which a thread claims by one atomic operation. The interpreter's
own locks (`PyThread_acquire_lock_timed`) read the clock at each attempt, with glibc since Python
3.11 also at one that does not wait. With one record a call that was an eighth of the sending thread's
time. So here such a lock is only slept on, as a bell.

How a thread gives way: the loop's thread sets `_is_wanted` when it wants to go on, still without
the interpreter. A sending thread looks at the flag with each record, and sleeps until the loop's
thread has got the lock. To release the lock alone would not do: the sending thread would have it
again before the loop's thread is awake.

Rules:
* Nothing here relies on the GIL: a word that several threads read and write is read and written
  by one atomic operation (`txn_*` below).
* Whoever waits for the lock counts itself first and then tries to claim it. Whoever gives the lock
  up clears the owner first and then looks for waiting threads. So one of the two sees the other.
* A ring is kept for the next sleeper, and a second one before that is the same one. So a thread
  that is woken looks again. If it then finds the lock taken, the present owner will ring.
"""

cimport cython

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PY_LOCK_ACQUIRED,
    PY_LOCK_FAILURE,
    PY_LOCK_INTR,
    PyLockStatus,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.ref cimport Py_INCREF

from time import monotonic

from txnproducer._sync.core_lock import reentered

cdef extern from *:
    """
    #define txn_load(at) __atomic_load_n(at, __ATOMIC_RELAXED)
    #define txn_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
        /* Sequentially consistent: a sleeper is counted before any thread decides to ring. */
    #define txn_add(at, value) __atomic_add_fetch(at, value, __ATOMIC_SEQ_CST)
    #define txn_count(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)
    #define txn_exchange(at, value) __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)
    static inline int txn_claim(unsigned long* at, unsigned long owner) {
        unsigned long nobody = 0;
        return __atomic_compare_exchange_n(
            at, &nobody, owner, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    """
    int txn_load(int* at) noexcept nogil
    void txn_store(int* at, int value) noexcept nogil
    unsigned long txn_load_owner "txn_load"(unsigned long* at) noexcept nogil
    void txn_store_owner "txn_exchange"(unsigned long* at, unsigned long value) noexcept nogil
    int txn_claim(unsigned long* at, unsigned long owner) noexcept nogil
    int txn_count(int* at) noexcept nogil
    int txn_add(int* at, int value) noexcept nogil
    int txn_exchange(int* at, int value) noexcept nogil

cdef enum:
        # Upper bound of a sleep: after it the threads compete for the interpreter as usual.
    SLEEP_US = 3000

cdef extern from "pythread.h" nogil:
        # As the interpreter's own locks: microseconds, and whether a signal ends the wait.
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long us, int is_heeding)


cdef class Bell:
    """Ends one thread's sleep, the present or the next."""

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock is NULL:
            raise MemoryError("no memory for a lock")
        PyThread_acquire_lock_timed(self._lock, 0, 0)

    def __dealloc__(self):
        if self._lock is not NULL:
            if not self._is_rung:
                PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    cdef void ring(self) noexcept nogil:
        """End the sleep of one thread."""
        # The thread that turns it from 0 to 1 releases the lock, so it is never released twice.
        if not txn_exchange(&self._is_rung, 1):
            PyThread_release_lock(self._lock)

    cdef PyLockStatus sleep(self, long long us, bint is_heeding_signals) noexcept nogil:
        """Sleep until a ring, for so many microseconds at most; -1 for no bound."""
        cdef PyLockStatus status
        status = PyThread_acquire_lock_timed(self._lock, us, is_heeding_signals)
        if status == PY_LOCK_ACQUIRED:
            txn_exchange(&self._is_rung, 0)
        return status


# A bell refers to nothing, so no cycle goes through these two. The collector must not take it away.
@cython.no_gc
cdef class Lock:
    def __cinit__(self):
        self._bell = Bell()

    cdef bint try_take(self) noexcept:
        """Take the lock if it is free. Return whether it was taken."""
        return txn_claim(&self._owner, PyThread_get_thread_ident())

    cdef int take(self) except -1:
        """Take the lock. Wait for it without a bound."""
        if not self.try_take():
            self._wait(-1.0)
        return 0

    cdef bint _is_taken(self) noexcept:
        return txn_load_owner(&self._owner) != 0

    cdef int give(self) except -1:
        """Release the lock."""
        if not self._is_taken():
            raise RuntimeError("release of a lock that is not taken")
        txn_store_owner(&self._owner, 0)
        if txn_count(&self._waiting):
            self._bell.ring()
        return 0

    cdef bint _wait(self, double timeout_s) except -1:
        """Wait for the lock, without a bound if the time-out is negative. Return whether taken."""
        cdef PyLockStatus status
        cdef bint is_taken = False
        cdef long long left_us = -1
        cdef double deadline = monotonic() + timeout_s if timeout_s >= 0 else 0
        cdef unsigned long caller = PyThread_get_thread_ident()
        # Without a time-out, the wait for a lock that this thread holds would never end.
        if timeout_s < 0 and self.is_mine():
            raise reentered("call it")
        txn_add(&self._waiting, 1)
        try:
            while True:
                if timeout_s >= 0:
                    left_us = max(0, <long long>((deadline - <double>monotonic()) * 1e6))
                # Without the interpreter, for which this thread may wait longer than the lock is
                # held: others must not come first meanwhile, nor this thread miss the next ring.
                with nogil:
                    is_taken = txn_claim(&self._owner, caller)
                    status = PY_LOCK_ACQUIRED
                    while not is_taken and status == PY_LOCK_ACQUIRED:
                        status = self._bell.sleep(left_us, 1)
                        is_taken = txn_claim(&self._owner, caller)
                        if left_us >= 0:
                            break
                if is_taken or status == PY_LOCK_FAILURE or left_us == 0:
                    return is_taken
                if status == PY_LOCK_INTR:
                    # Run the signal's handler, which may raise, and then go on waiting.
                    PyErr_CheckSignals()
        finally:
            txn_add(&self._waiting, -1)

    def acquire(self, bint blocking=True, double timeout=-1):
        """Take the lock. Return whether it was taken."""
        if self.try_take():
            return True
        return blocking and self._wait(timeout)

    def is_mine(self):
        """Return whether the calling thread holds the lock."""
        return txn_load_owner(&self._owner) == PyThread_get_thread_ident()

    def release(self):
        """Release the lock."""
        self.give()

    def locked(self):
        """Return whether any thread holds the lock."""
        return self._is_taken()

    def reset_after_fork(self):
        """Make the lock free, in a forked child. See the Python twin."""
        # The old bell stays as it is: a thread that does not exist in this process may sleep on it,
        # or have ended its sleep without saying so. The count of waiting threads stays as well, so
        # the new bell may be rung in vain. A signal handler can fork while its own thread waits.
        # That wait goes on in the child, and takes one off the count at its end.
        Py_INCREF(self._bell)
        self._bell = Bell()
        txn_store_owner(&self._owner, 0)

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, *_):
        self.give()


@cython.no_gc
cdef class LoopPriority:
    def __cinit__(self):
        self._bell = Bell()

    cdef bint is_wanted(self) noexcept nogil:
        """Return whether sending threads should give way."""
        return txn_load(&self._is_wanted)

    cdef void want_interpreter(self) noexcept nogil:
        """Note that the loop's thread is awake. Needs no interpreter."""
        txn_store(&self._is_wanted, 1)

    cdef void have(self) noexcept:
        """Note that the loop's thread has the lock, and wake the sleeping threads."""
        txn_exchange(&self._is_wanted, 0)
        self._wake_one()

    cdef void _wake_one(self) noexcept:
        """Wake one sleeping thread, which then wakes the next one."""
        if txn_count(&self._sleepers):
            self._bell.ring()

    cdef int sleep(self) except -1:
        """Wait until the loop's thread has the lock."""
        cdef PyLockStatus status
        txn_add(&self._sleepers, 1)
        if not txn_count(&self._is_wanted):
            # The loop's thread has got the lock meanwhile and saw no sleeper, so it will not ring.
            txn_add(&self._sleepers, -1)
            return 0
        with nogil:
            status = self._bell.sleep(SLEEP_US, 0)
        txn_add(&self._sleepers, -1)
        # It may have been rung once more, or after the time-out: the next sleep would end at once.
        if self._bell.sleep(0, 0) == PY_LOCK_ACQUIRED or status == PY_LOCK_ACQUIRED:
            self._wake_one()
        return 0

    def give_way(self):
        """Let the loop's thread go on, if it wants to. See the Python twin."""
        if self.is_wanted():
            self.sleep()

    def take_first(self, Lock lock not None):
        """Take a lock before the threads that send. See the Python twin."""
        if lock.try_take():
            return
        txn_store(&self._is_wanted, 1)
        try:
            lock.take()
        finally:
            self.have()
