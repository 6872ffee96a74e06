"""The compiled twin of `io_calls`, which describes it. It is built only where epoll exists."""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR

from txnproducer._sync._core_lock cimport LoopPriority

from os import strerror

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/epoll.h>
    static int txn_wait(int selector_fd, int* fds, int* masks, int count, int timeout_ms) {
        struct epoll_event events[64];
        int ready = epoll_wait(selector_fd, events, count < 64 ? count : 64, timeout_ms);
        for (int index = 0; index < ready; index++) {
            fds[index] = events[index].data.fd;
                    /* As in `selectors`: a broken connection is ready for everything. */
            masks[index] = (events[index].events & ~EPOLLOUT ? 1 : 0)
                | (events[index].events & ~EPOLLIN ? 2 : 0);
        }
        return ready < 0 ? -errno : ready;
    }
    """
    int txn_wait(int selector_fd, int* fds, int* masks, int count, int timeout_ms) nogil

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)

cdef extern from "string.h" nogil:
    void* memset(void* data, int value, size_t size)

cdef enum:
    MAX_EVENTS = 64
    MAX_BUFFERS = 64
    RECEIVE_BYTES = 65536


cdef class IoCalls:
    cdef LoopPriority _priority
    # The latest selector, its descriptor, and its map, which follows its changes: to ask for them
    # costs a call.
    cdef object _selector
    cdef int _selector_fd
    cdef object _keys

    def __init__(self, LoopPriority priority not None):
        self._priority = priority

    def wait(self, selector, int timeout_ms):
        """Return the sockets that are ready. See the Python twin."""
        cdef int fds[MAX_EVENTS]
        cdef int masks[MAX_EVENTS]
        cdef int selector_fd, count, index
        if selector is not self._selector:
            self._selector, self._selector_fd = selector, selector.fileno()
            # The dict behind the map, where it has this name: the map's own look-up takes three
            # calls for each socket that is ready.
            self._keys = getattr(selector, "_fd_to_key", None) or selector.get_map()
        selector_fd = self._selector_fd
        # The loop's thread says that it is awake before it waits for the interpreter, so that
        # a thread that sends sees it and gives way.
        with nogil:
            count = txn_wait(selector_fd, fds, masks, MAX_EVENTS, timeout_ms)
            self._priority.want_interpreter()
        self._priority.have()
        if count < 0 and count != -EINTR:
            raise OSError(-count, strerror(-count))
        ready = []
        for index in range(count):
            try:
                key = self._keys[fds[index]]
            except KeyError:
                continue
            ready.append((key, masks[index] & key.events))
        return ready

    def send_parts(self, sock, parts):
        """Send the first parts. See the Python twin."""
        cdef Py_buffer views[MAX_BUFFERS]
        cdef iovec vectors[MAX_BUFFERS]
        cdef msghdr message
        cdef int fd = sock.fileno()
        cdef int count = 0, index
        cdef ssize_t sent
        try:
            for part in parts:
                if count == MAX_BUFFERS:
                    break
                PyObject_GetBuffer(part, &views[count], PyBUF_SIMPLE)
                vectors[count].iov_base = views[count].buf
                vectors[count].iov_len = views[count].len
                count += 1
            memset(&message, 0, sizeof(message))
            message.msg_iov = vectors
            message.msg_iovlen = count
            # With the GIL held: the call does not wait, and to get the GIL back could take 5 ms.
            sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                PyErr_SetFromErrno(OSError)
            return sent
        finally:
            for index in range(count):
                PyBuffer_Release(&views[index])

    def receive(self, sock, Py_ssize_t size):
        """Return the received bytes. See the Python twin."""
        cdef char data[RECEIVE_BYTES]
        cdef ssize_t received
        if size < 0:
            raise ValueError("negative buffersize in recv")
        received = recv(sock.fileno(), data, min(size, RECEIVE_BYTES), MSG_DONTWAIT)
        if received < 0:
            PyErr_SetFromErrno(OSError)
        return PyBytes_FromStringAndSize(data, received)
