"""The listener that the proxies of the tests have in common: a thread for each connection.

Owns: `ListeningProxy`. It listens on 127.0.0.1 only. Must not know: how a connection is served.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final, Self

from txnproducer.testing._config import HOST

PATIENCE_S: Final = 20.0


class ListeningProxy:
    """A proxy before one broker. It is used as a context manager, and serves while it is open.

    Args:
        address: of the broker.

    Attributes:
        port: where it listens.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._is_closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted(client)

    def accepted(self, client: socket.socket) -> None:
        """Serve a connection, in a thread that `_run` starts. Each proxy does it in its way."""
        raise NotImplementedError  # a proxy that forgets it should not pass as one that is silent
