"""The usual `send`, compiled: the record is bytes, and its batch is open and has room.

It has no twin in Python: `TransactionalProducer.send` does the same with every check, and is asked
for whatever is not usual here. Owns: the checks of types, the clock, the lock around one append.
"""

from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from txnproducer._core.usual_records cimport UsualRecords
from txnproducer._io_lock cimport Lock, Turnstile


cdef long long MAX_STAMP_MS = 1 << 62


cdef bint is_bytes_or_none(object data) noexcept:
    return data is None or type(data) is bytes


cdef tuple to_headers(object headers):
    """Return headers as a tuple, or None if they need a closer look."""
    if type(headers) is not list and type(headers) is not tuple:
        return None
    for header in headers:
        if type(header) is not tuple or len(<tuple>header) != 2:
            return None
        if type((<tuple>header)[0]) is not str or not is_bytes_or_none((<tuple>header)[1]):
            return None
    return tuple(headers)


cdef bint is_count(object number) noexcept:
    return type(number) is int and number >= 0


cdef class UsualSend:
    """Send usual records, and hand on all others.

    Args:
        records: of the producer's core.
        lock: guards the core.
        turnstile: where the loop's thread is given way.
        send_any: takes what is not usual here; called with the arguments of `send`, by position.
    """

    cdef UsualRecords _records
    cdef Lock _lock
    cdef Turnstile _turnstile
    cdef object _send_any
    cdef bint _is_closed

    def __init__(
        self,
        UsualRecords records not None,
        Lock lock not None,
        Turnstile turnstile not None,
        send_any,
    ):
        self._records = records
        self._lock = lock
        self._turnstile = turnstile
        self._send_any = send_any

    def send(
        self,
        topic,
        value=None,
        key=None,
        headers=None,
        partition=None,
        timestamp_ms=None,
        on_delivery=None,
    ):
        """Write a record: see `TransactionalProducer.send`."""
        future = self._try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if future is not None:
            return future
        return self._send_any(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def close(self):
        """Hand on every record from now on, also for who has kept `send`."""
        self._is_closed = True

    cdef object _try_send(
        self, topic, value, key, headers, partition, timestamp_ms, on_delivery
    ):
        """Return the record's future, or None if nothing was done."""
        cdef timespec now
        cdef long long stamp_ms
        cdef tuple checked = () if headers is None else to_headers(headers)
        if self._is_closed or type(topic) is not str or checked is None:
            return None
        if not is_bytes_or_none(value) or not is_bytes_or_none(key):
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
        if self._turnstile._is_wanted:
            self._turnstile.sleep()
        self._lock.take()
        try:
            return self._records.try_append(
                topic, value, key, checked, partition, stamp_ms, on_delivery
            )
        finally:
            self._lock.give()
