"""kafka-python's clients with an owner that closes every socket and thread of theirs.

Why it exists: kafka-python 3.0 leaves two kinds of sockets to the garbage collector: the one of a
refused connection, and one that connects just as another thread closes its client. A client whose
constructor finds no broker leaves all that it has opened, its thread included. The ResourceWarning
would break users' tests that turn warnings into errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from kafka import KafkaConsumer
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket


class _OwnedSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's way to connect, with an owner that closes every socket."""

    # kafka-python chooses the class of a connection by the scheme of `proxy_url`, and makes the
    # object itself. So the owner is found by the one argument that it passes on, the address.
    SCHEMES = ("owned",)
    owners: ClassVar[dict[str, contextlib.ExitStack]] = {}

    def __init__(self, proxy_url: str) -> None:
        self._owner = self.owners[proxy_url]

    async def sock_connect(self, net: Any, sock: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect a socket for its owner, or close it."""
        try:
            connected = await super().sock_connect(net, sock, *args, **kwargs)
        except BaseException:
            sock.close()
            raise
        self._owner.callback(sock.close)
        return connected

    @classmethod
    @contextlib.contextmanager
    def owner(cls) -> Iterator[str]:
        """Yield an address, and at the end close every socket that was connected by it."""
        with contextlib.ExitStack() as sockets:
            address = f"{cls.SCHEMES[0]}://{id(sockets)}"
            cls.owners[address] = sockets
            try:
                yield address
            finally:
                # Before the sockets are closed by the outer block: no later connection finds this
                # owner.
                del cls.owners[address]


class _UnleakedSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's way to connect, which closes the socket of a refused connection."""

    SCHEMES = ("unleaked",)

    def __init__(self, proxy_url: str) -> None:
        del proxy_url

    async def sock_connect(self, net: Any, sock: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect a socket, or close it."""
        try:
            return await super().sock_connect(net, sock, *args, **kwargs)
        except BaseException:
            sock.close()
            raise


# For a client that lives long: an owner would keep each of its sockets.
CLOSES_REFUSED: Final = {"proxy_url": f"{_UnleakedSocket.SCHEMES[0]}://"}


@contextlib.contextmanager
def owned_connections() -> Iterator[dict[str, Any]]:
    """Yield settings of a kafka-python client. The block's end closes all that it has opened.

    The client itself has to be closed before.
    """
    with contextlib.ExitStack() as cleanup:
        address = cleanup.enter_context(_OwnedSocket.owner())

        def make_connections(**config: Any) -> KafkaNetClient:
            connections = KafkaNetClient(**config)
            cleanup.callback(connections.close)
            return connections

        yield {"kafka_client": make_connections, "proxy_url": address}


@contextlib.contextmanager
def owned_consumer(bootstrap_servers: str, **config: Any) -> Iterator[KafkaConsumer]:
    """Yield a consumer without a group that leaves no trace on the cluster, nor in the process.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        **config: kafka-python's settings. A proxy that the user names wins.
    """
    with owned_connections() as owned:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers.split(","),
            # There is no group to commit to.
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **{**owned, **config},
        )
        try:
            yield consumer
        finally:
            consumer.close()
