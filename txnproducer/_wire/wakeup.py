"""A cheap way to end another thread's `select`.

Why it exists: an application thread that has filled a batch must not wait for the loop's next
time-out.
Owns: one file descriptor (an eventfd if the system has it, otherwise a socket pair).
Must not know: the waiting thread.
Rules: any thread may call `set`, also while or after the loop has closed. So the descriptor lives
as long as this object: otherwise a late `set` would write into another file.
There is no flag in addition to the descriptor: an interrupt between the two would lose every later
wake-up. Callers call `set` only while the loop sleeps, so a flag would save nothing.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable


class Wakeup:
    """A flag that a selector can wait for."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            _finalize(self, os.close, self._read_fd)
        else:
            reader, writer = socket.socketpair()
            reader.setblocking(False)
            writer.setblocking(False)
            self._pair = reader, writer
            self._read_fd, self._write_fd = reader.fileno(), writer.fileno()
            _finalize(self, reader.close)
            _finalize(self, writer.close)

    def fileno(self) -> int:
        """Return the descriptor to select for reading."""
        return self._read_fd

    def set(self) -> None:
        """End the current or next `select`. Thread-safe."""
        try:  # noqa: SIM105 - that takes three calls, for each transaction
            # An eventfd takes a number of eight bytes in the machine's order; a pair takes any
            # bytes.
            os.write(self._write_fd, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        except BlockingIOError:
            pass  # a full descriptor is set already

    def clear(self) -> None:
        """Make `select` wait again. Call before looking for work, so that no wake-up is lost."""
        try:  # noqa: SIM105 - likewise
            # One read empties an eventfd, and all wake-ups that have gathered in a pair.
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            pass  # it is clear already


def _finalize(owner: Wakeup, close: Callable[..., None], *arguments: int) -> None:
    # Not at the interpreter's exit: the finalizer would run before producers are closed there, and
    # close the descriptor of a loop that still has a transaction to abort.
    weakref.finalize(owner, close, *arguments).atexit = False
