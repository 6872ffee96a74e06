"""The standard streams when they cannot be written, as on a full disk.

Why it exists: a result that could not be written is an error with a name, and no defect of this
program. A message for people is no result: a command goes on without it.
Owns: the error of an output that was not written, the stream of the messages, the place of a
standard output that is closed. Must not know: any subcommand.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

__all__ = ["Messages", "OutputError", "named_failures", "replace_closed_output"]

_NO_MORE = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Messages(io.TextIOWrapper):
    """The standard error of a program, which drops all text after the first that fails.

    Attributes:
        is_used: whether there was a text.
    """

    is_used = False

    def write(self, text: str, /) -> int:
        """Write a text, or drop it."""
        self.is_used = True
        try:
            return super().write(text)
        except OSError:
            _discard(self)
            return len(text)

    def flush(self) -> None:
        """Write the text that waits, or drop it."""
        try:
            super().flush()
        except OSError:
            _discard(self)

    @classmethod
    def use(cls) -> None:
        """Take the place of `sys.stderr`, if that is the one that Python has made."""
        given = sys.stderr
        if given is not None and given is sys.__stderr__ and isinstance(given, io.TextIOWrapper):
            sys.stderr = cls(
                given.buffer, given.encoding, given.errors, line_buffering=given.line_buffering
            )


class OutputError(click.ClickException):
    """The failure to write the output. The rest of the output is dropped."""

    # As for all that a person has to change first (`main.EXIT_FATAL`).
    exit_code = 4

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output could not be written: {error.strerror}")
        _discard(sys.stdout)


@contextmanager
def named_failures() -> Iterator[None]:
    """Turn the error of a file or a device that takes no more into an `OutputError`."""
    try:
        yield
    except OSError as error:
        # After a closed pipe click ends quietly.
        if error.errno not in _NO_MORE:
            raise
        raise OutputError(error) from error


def replace_closed_output() -> None:
    """Let a write to a standard output that is closed fail, where Python would drop it."""
    if sys.stdout is None:
        # Whatever is written to a file that was opened to be read fails with EBADF.
        readable = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = os.fdopen(readable, "w", encoding="utf-8")


def _discard(stream: TextIO) -> None:
    # The stream stays: it is flushed at exit, and text that it has kept would fail again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
