"""The fast path of `send`, compiled, for records of bytes and a batch that has room.

It has no twin in Python: `RecordWriter._send_any` does the same with every check, and takes each
record that does not qualify here. Owns: the checks of types, the clock, the lock around an append.
Rules:
* `send` becomes a method of the producer's own class, not an object of its own. So a bound `send`
  that a program keeps also keeps the producer, and a test can replace `send` on the class.
"""

cimport cython

from cpython.dict cimport PyDict_Items
from cpython.object cimport PyCallable_Check
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from txnproducer._core.append.fast_append cimport FastAppend
from txnproducer._sync._core_lock cimport Lock, LoopPriority


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text) noexcept

# A larger number goes to `_send_any`: the arithmetic here is in 64 bits.
cdef long long MAX_STAMP_MS = 1 << 62


cdef bint is_callback(object given) noexcept:
    return given is None or PyCallable_Check(given)


cdef bint is_bytes_or_none(object data) noexcept:
    return data is None or type(data) is bytes


cdef bint is_ascii(object text) noexcept:
    # Another text may have no encoding at all.
    return type(text) is str and PyUnicode_IS_ASCII(text)


cdef bint is_named_pair(object header) noexcept:
    return type(header) is tuple and len(<tuple>header) == 2 and is_ascii((<tuple>header)[0])


cdef tuple to_headers(object headers):
    """Return headers as a tuple, or None if they need a closer look."""
    cdef tuple pairs
    # Copied first, by one call: another thread may change a list or a dict meanwhile.
    if type(headers) is dict:
        pairs = tuple(PyDict_Items(headers))
    elif type(headers) is list or type(headers) is tuple:
        pairs = tuple(headers)
    else:
        return None
    for header in pairs:
        if not is_named_pair(header):
            return None
        if not is_bytes_or_none((<tuple>header)[1]):
            return to_encoded(pairs)
    return pairs


cdef tuple to_encoded(tuple pairs):
    """Return headers of which some values are text, or None if they need a closer look."""
    cdef list encoded = []
    for header in pairs:
        if not is_named_pair(header):
            return None
        name, value = <tuple>header
        if not is_bytes_or_none(value):
            if not is_ascii(value):
                return None
            value = (<str>value).encode("ascii")
        encoded.append((name, value))
    return tuple(encoded)


cdef bint is_count(object number) noexcept:
    return type(number) is int and number >= 0


# No `tp_clear`: the garbage collector would take the lock from a thread that still sends with it.
@cython.no_gc_clear
cdef class FastSender:
    """Base class of `RecordWriter` that has the fast path of `send`.

    All records that do not qualify go to the writer's `_send_any`, with the same arguments. Those
    of a producer with serializers go to its `_serialize_and_send`, and come back as bytes.
    """

    cdef FastAppend _records
    cdef Lock _lock
    cdef LoopPriority _priority
    cdef object _transactions  # knows the number of the one that is open
    cdef bint _is_fast
    cdef object _made_by  # the serializers, or None

    def _enable_fast_path(
        self,
        object core not None,
        Lock lock not None,
        LoopPriority priority not None,
        object serializers,
    ):
        """Let qualifying records take the fast path from now on.

        Args:
            core: the producer's.
            lock: guards the core.
            priority: by which this thread gives way to the loop's thread.
            serializers: the producer's, by which a record goes before it qualifies; None without.
        """
        cdef FastAppend records = core.fast_append
        if records is None:
            raise TypeError("the core has no fast append")
        self._transactions = core
        self._records = records
        self._lock = lock
        self._priority = priority
        self._made_by = serializers
        self._is_fast = True

    def _disable_fast_path(self):
        """Send every record through `_send_any` from now on."""
        self._is_fast = False

    def _try_serialized(
        self, topic, value, key, headers, partition, timestamp_ms, on_delivery, transaction
    ):
        """Call `_try_send`, which Python code cannot reach, for a record that was serialized.

        Args:
            topic, value, key, headers, partition, timestamp_ms, on_delivery: as for `send`.
            transaction: the number of the one that was open when `send` was called.
        """
        return self._try_send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, transaction
        )

    cdef object _try_send(
        self, topic, value, key, headers, partition, timestamp_ms, on_delivery, transaction
    ):
        """Return the record's future, or None if nothing was done."""
        cdef timespec now
        cdef long long stamp_ms
        cdef tuple checked = () if headers is None else to_headers(headers)
        if not self._is_fast or type(topic) is not str or checked is None:
            return None
        if not is_bytes_or_none(value) or not is_bytes_or_none(key) or not is_callback(on_delivery):
            return None
        if partition is not None and not is_count(partition):
            return None
        if timestamp_ms is None:
            clock_gettime(CLOCK_REALTIME, &now)
            stamp_ms = now.tv_sec * 1000 + now.tv_nsec // 1000000
        elif is_count(timestamp_ms) and timestamp_ms < MAX_STAMP_MS:
            stamp_ms = timestamp_ms
        else:
            return None
        # The loop's thread goes first. Otherwise this thread, which never sleeps, would keep the
        # lock from it, and full batches would wait.
        if self._priority.is_wanted():
            self._priority.sleep()
        self._lock.take()
        try:
            if transaction is not None and transaction != self._transactions.transaction_number:
                return None
            return self._records.try_append(
                topic, value, key, checked, partition, stamp_ms, on_delivery
            )
        finally:
            self._lock.give()


# A function, not a method of the class above: Cython does not check how those are called.
def send(
    FastSender self not None,
    topic,
    value=None,
    key=None,
    headers=None,
    partition=None,
    timestamp_ms=None,
    on_delivery=None,
):
    """Write a record. It replaces `RecordWriter.send` in the class."""
    if self._made_by is not None:
        return self._serialize_and_send(
            self._made_by, topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
    try:
        future = self._try_send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, None
        )
    except BaseException as error:
        self._lose_in_callback(topic, error)
        raise
    if future is not None:
        return future
    return self._send_any(topic, value, key, headers, partition, timestamp_ms, on_delivery)
