"""A Python peer: it writes transactions of always the same rows.

Must not know: any client.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Rows:
    """The rows that a peer writes.

    Attributes:
        values: of the records.
        places: their partitions, or None: there is one.
        repeats: how many times all this makes a transaction.
    """

    values: list[bytes]
    places: list[int] | None
    repeats: int

    def parts(self, count: int) -> list[Rows]:
        """Return a share of them for each thread."""
        if count == 1:
            return [self]
        places = self.places
        return [
            Rows(self.values[n::count], None if places is None else places[n::count], self.repeats)
            for n in range(count)
        ]


class Peer(Protocol):
    """Writes transactions of always the same rows."""

    version: str

    def begin(self) -> None: ...
    def write(self) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Threads:
    """Sends parts: the only one here, several by a thread each."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def run(self, send: Callable[[Rows], None], parts: list[Rows]) -> None:
        if self._pool is None:
            send(parts[0])
        else:
            list(self._pool.map(send, parts))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
