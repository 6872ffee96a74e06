"""Links of a cluster that can be cut in one direction or in both, or slowed down.

Why it exists: a partition lies between two processes, and on one machine all have one address. So
a proxy stands before each listener, and finds out from the kernel which process has connected.
Owns: the proxies, on 127.0.0.1 only, and the state of each direction. A direction that is cut
holds its bytes and delivers them when it heals, as TCP would by sending them again; a connection
that is made meanwhile is accepted and says nothing.
Must not know: Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

HOST = "127.0.0.1"
OTHERS = "others"
_LOOK_S = 0.02
_PART_BYTES = 65_536


class Links:
    """Proxies before listeners. Used as a context manager.

    Args:
        processes: returns the process ids by the names of the parties; a connection from another
            process belongs to `OTHERS`.
    """

    def __init__(self, processes: Callable[[], dict[str, Iterable[int]]]) -> None:
        self._processes = processes
        self._cut: frozenset[tuple[str, str]] = frozenset()
        self._slow: frozenset[tuple[str, str]] = frozenset()
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._tasks: set[asyncio.Task] = set()
        self._servers: list[asyncio.Server] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _cancel(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The transports close in the loop's next rounds, and tell of it to none of these tasks.
        await asyncio.sleep(_LOOK_S)

    def add(self, party: str, port: int) -> int:
        """Put a proxy before a party's listener, and return the proxy's port."""

        async def listen() -> int:
            # Not a coroutine: asyncio would complain about each one that is cancelled at the end.
            def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = self._loop.create_task(self._serve(party, port, reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            server = await asyncio.start_server(serve, HOST, 0)
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Hold everything from the first party of a pair to the second."""
        self._cut = frozenset(pairs)

    def slow(self, pairs: Iterable[tuple[str, str]], delay_s: float) -> None:
        """Delay every part from the first party of a pair to the second."""
        self._slow, self._delay_s = frozenset(pairs), delay_s

    def heal(self) -> None:
        self._cut = self._slow = frozenset()

    async def _passes(self, source: str, target: str) -> None:
        if (source, target) in self._slow:
            await asyncio.sleep(self._delay_s)  # the delay is the fault
        while (source, target) in self._cut:
            # As long as the cut lasts. `stop` cancels it.
            await asyncio.sleep(_LOOK_S)

    async def _serve(
        self, party: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._party_of(writer)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await self._passes(source, party)
            # Its answer to the connection has to come back as well.
            await self._passes(party, source)
            there, back = await asyncio.open_connection(HOST, port)
            with contextlib.closing(back):
                await asyncio.gather(
                    self._carry(source, party, reader, back),
                    self._carry(party, source, there, writer),
                )

    async def _carry(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(_PART_BYTES):
                await self._passes(source, target)
                writer.write(part)
                await writer.drain()
        await self._passes(source, target)
        writer.close()

    def _party_of(self, writer: asyncio.StreamWriter) -> str:
        peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        inode = _inode(peer[1], own[1])
        for name, pids in self._processes().items():
            if any(_has_socket(pid, inode) for pid in pids):
                return name
        return OTHERS


def _inode(local_port: int, remote_port: int) -> str:
    """Return the inode of the socket of a connection between two ports, by its first end."""
    local, remote = f":{local_port:04X}", f":{remote_port:04X}"
    # A JVM's sockets speak IPv6, with the address of IPv4 in it.
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(local) and fields[2].endswith(remote):
                return fields[9]
    return ""


def _has_socket(pid: int, inode: str) -> bool:
    wanted, folder = f"socket:[{inode}]", f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as text, for speed
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == wanted:  # noqa: PTH115
                    return True
    return False
