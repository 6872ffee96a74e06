"""kafka-python's clients with an owner that closes every socket and thread of theirs.

Why it exists: kafka-python 3.0 leaves two kinds of sockets to the garbage collector: the one of a
refused connection, and one that connects just as another thread closes its client. A client whose
constructor finds no broker leaves all that it has opened, its thread included. The ResourceWarning
would break users' tests that turn warnings into errors.
"""

from __future__ import annotations

import contextlib
import threading
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


# A thread that has been started runs sooner, on however slow a machine.
_LONGEST_START_S: Final = 5.0
# kafka-python refuses one below the time that a fetch may wait, which is half of it.
_LEAST_TIMEOUT_MS: Final = 1000

# For a client that lives long: an owner would keep each of its sockets.
CLOSES_REFUSED: Final = {"proxy_url": f"{_UnleakedSocket.SCHEMES[0]}://"}


def _end(connections: KafkaNetClient) -> None:
    """Close a client's connections, also after an interrupt in the start of its thread."""
    loop = connections._net  # noqa: SLF001 - kafka-python has no other way
    if loop._io_thread is not None and not loop._closed:  # noqa: SLF001 - likewise
        # kafka-python cannot join a thread that has not begun, and its loop forgets at its begin
        # that it has to stop. The join would then never end.
        has_begun = threading.Event()
        with contextlib.suppress(Exception):  # a loop that has failed can be closed at once
            loop.call_soon_threadsafe(has_begun.set)
            if not has_begun.wait(_LONGEST_START_S):
                # It hangs, as in the look-up of a name, and ends when that does.
                loop.stop(timeout_ms=0)
                return
    connections.close()


@contextlib.contextmanager
def owned_connections() -> Iterator[dict[str, Any]]:
    """Yield settings of a kafka-python client. The block's end closes all that it has opened.

    The client itself has to be closed before.
    """
    with contextlib.ExitStack() as cleanup:
        address = cleanup.enter_context(_OwnedSocket.owner())

        def make_connections(**config: Any) -> KafkaNetClient:
            connections = KafkaNetClient(**config)
            cleanup.callback(_end, connections)
            return connections

        yield {"kafka_client": make_connections, "proxy_url": address}


def consumer_limits(timeout: float) -> dict[str, int]:
    """Return kafka-python's settings for a consumer with little time.

    Without them it waits 30 s for its first broker, and for each answer.

    Args:
        timeout: seconds; one at least is given.
    """
    limit_ms = max(_LEAST_TIMEOUT_MS, int(timeout * 1000))
    request_ms = min(limit_ms, KafkaConsumer.DEFAULT_CONFIG["request_timeout_ms"])
    return {"bootstrap_timeout_ms": limit_ms, "request_timeout_ms": request_ms}


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
