"""The bound on memory of waiting records (`buffer_memory`), and the queue of callers for it.

Owns: the count of free bytes and the queue of tickets. Must not know: buffers, which Python's own
allocator keeps; here they are only counted. Must not wait: a caller gets a ticket, and asks again.

Rules:
* First come, first served: while a ticket waits, no other caller is served. Otherwise a large
  record could starve.
* Bytes go back exactly once, at once or in parts.
"""

from __future__ import annotations

from collections import deque

from txnproducer.errors import IllegalStateError


class MemoryTicket:
    """A place in the queue for memory.

    A caller that may have to give it up makes it before it is in the queue: an interrupt can come
    between the return of a new ticket and its assignment.

    Attributes:
        size_bytes: how much it waits for.
    """

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class BufferPool:
    """Count memory.

    Args:
        total_bytes: how much there is.
    """

    __slots__ = ("available_bytes", "is_closed", "total_bytes", "waiting")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.available_bytes = total_bytes
        self.waiting: deque[MemoryTicket] = deque()
        self.is_closed = False

    @property
    def is_exhausted(self) -> bool:
        """Whether a caller waits for memory, so that batches are sent before they are full."""
        return bool(self.waiting)

    def allocate(self, size_bytes: int, ticket: MemoryTicket | None = None) -> MemoryTicket | None:
        """Take memory, or a place in the queue for it.

        Args:
            size_bytes: how much, at most `total_bytes`.
            ticket: the place got by an earlier call, or a new one for this; it ends when the
                memory is there.

        Returns:
            None if the memory was taken, otherwise the ticket to wait with.
        """
        if self._is_served(size_bytes, ticket):
            # Only the head is served, so the ticket that leaves is the first one.
            if self.waiting:
                self.waiting.popleft()
            self.available_bytes -= size_bytes
            return None
        ticket = ticket or MemoryTicket()
        ticket.size_bytes = size_bytes
        # Asking again keeps the place. A second entry would outlive the first, and block the
        # queue.
        if ticket not in self.waiting:
            self.waiting.append(ticket)
        return ticket

    def allocate_more(self, size_bytes: int, ticket: MemoryTicket | None) -> bool:
        """Take more memory for a batch if it is free. This does not enter the queue.

        Args:
            size_bytes: how much.
            ticket: the caller's, if it waits; it stays in the queue.
        """
        # A growing batch waits its turn as well. Open batches could otherwise eat up the memory
        # that a ticket waits for.
        # Written out from `_is_served`, which saves each batch a call.
        if size_bytes > self.available_bytes or (self.waiting and self.waiting[0] is not ticket):
            return False
        self.available_bytes -= size_bytes
        return True

    def is_due(self, ticket: MemoryTicket) -> bool:
        """Return whether it is worth calling `allocate` again with this ticket."""
        # A closed producer gives no memory, but each caller must ask once more to learn that.
        return self.is_closed or self._is_served(ticket.size_bytes, ticket)

    def give_up(self, ticket: MemoryTicket) -> None:
        """Leave the queue: the wait timed out, was interrupted, or is not needed any more."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def deallocate(self, size_bytes: int) -> None:
        """Give memory back.

        Raises:
            IllegalStateError: more than was taken.
        """
        # Raised and not clipped: memory that came back twice would let the producer exceed its
        # bound.
        if self.available_bytes + size_bytes > self.total_bytes:
            raise IllegalStateError(
                f"{size_bytes} bytes of buffer memory came back twice: {self.available_bytes} of "
                f"{self.total_bytes} were free already"
            )
        self.available_bytes += size_bytes

    def close(self) -> None:
        """Give no more memory. Each caller in the queue asks once more, and learns the end."""
        self.is_closed = True

    def _is_served(self, size_bytes: int, ticket: MemoryTicket | None) -> bool:
        if self.waiting and self.waiting[0] is not ticket:
            return False
        return size_bytes <= self.available_bytes
