"""Helper of the examples: a server program as its users start it, with a port that is free."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_END_S = 30.0


@contextmanager
def server_program(
    module: str, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module's program in this folder, and end it with SIGTERM, as an operator does."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        close_fds=False,  # the socket of `listening` is for the program
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST_END_S)
    finally:
        process.kill()  # does nothing after its end
        process.wait()


def has_ended_well(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a program has ended by itself after SIGTERM."""
    return process.returncode in (0, -signal.SIGTERM)


@contextmanager
def listening() -> Iterator[tuple[str, str]]:
    """Give the address of a socket that listens, and its number, by which a server takes it.

    The clients' connections wait in it until the server is there.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(True)
        yield f"http://127.0.0.1:{server.getsockname()[1]}", str(server.fileno())
