"""The ids of a pool's producers: of a worker that is alone on its machine, by a lock file.

Why it exists: two processes with one transactional id fence each other for ever. A worker's number
must be its own before the first producer takes an id.
Owns: the lock file, the numbers of the producers of one worker. Must not know: producers.
Rules:
* A lock is the system's (flock): it ends with its process, however that ends.
* A forked process has no part in its parent's lock. It takes one of its own.
* An id is given out once, also if its producer has failed: that one's place is the pool's matter.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Final, Protocol
from weakref import WeakSet

from txnproducer.errors import InvalidConfigurationError

__all__ = ["WorkerIds", "forget_at_fork"]

# Windows has no such locks.
_FCNTL: Final[Any] = importlib.import_module("fcntl") if os.name == "posix" else None
# Kafka takes any text as an id, but files and rights with prefixes do not.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Forgetting(Protocol):
    """A pool, as the hook at a fork sees it."""

    def forget_parent(self) -> None:
        """Forget all that is the parent's."""
        ...


_pools: WeakSet[Forgetting] = WeakSet()


def forget_at_fork(pool: Forgetting) -> None:
    """Have a pool forget its parent's producers in each process that is forked."""
    _pools.add(pool)


def _forget_all() -> None:
    # Right after the fork, when the child has one thread, and before its code can use a pool.
    for pool in list(_pools):
        pool.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class WorkerIds:
    """The transactional ids of one worker: `<name>-<worker>-<n>`.

    Args:
        name: of the service; the ids of all its workers begin with it.
        worker: of this process, alone among all of the service; None to take a number that no
            other process of this machine has, with the machine's name in front.
        folder: of the lock files; None for one of the user's in the system's temporary folder.
        most: numbers that are tried.
    """

    def __init__(
        self, name: str, worker: int | str | None, folder: Path | None, most: int
    ) -> None:
        self._name = _checked("name", name)
        self._given = None if worker is None else _checked("worker", str(worker))
        self._folder = folder
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._guard = threading.Lock()
        self._lock: IO[str] | None = None
        self._worker = ""
        self._count = 0

    def leave_to_parent(self) -> None:
        """Forget all of the parent's in a forked process, which keeps no part of its lock."""
        inherited = self._lock
        self._reset()
        if inherited is not None:
            inherited.close()  # the lock is the parent's as long as that has it open

    def take(self) -> str:
        """Return the next transactional id of this worker.

        Raises:
            InvalidConfigurationError: another process has the worker, or all of them; or no lock
                file can be made.
        """
        with self._guard:
            if not self._worker:
                try:
                    self._take_worker()
                except OSError as error:  # of a container without a folder that can be written to
                    raise InvalidConfigurationError(
                        f"lock_folder: no file can be locked there ({error}). Give lock_folder, a"
                        " folder of this machine in which this process may write"
                    ) from error
            number = self._count
            self._count += 1
            return f"{self._name}-{self._worker}-{number}"

    def close(self) -> None:
        """Let another process have the worker. No producer may be left."""
        with self._guard:
            lock, self._lock, self._worker = self._lock, None, ""
            self._count = 0
            if lock is not None:
                # Told apart from a close: a child of a fork may have the file open as well.
                _FCNTL.flock(lock, _FCNTL.LOCK_UN)
                lock.close()

    def _take_worker(self) -> None:
        if _FCNTL is None:
            if self._given is None:
                raise InvalidConfigurationError(
                    "worker: this system has no file locks by which processes could take numbers;"
                    " give each process a worker of its own"
                )
            self._worker = self._given
            return
        folder = self._lock_folder()
        if self._given is not None:
            path = folder / f"{self._name}-{self._given}.lock"
            self._lock = _lock(path)
            if self._lock is None:
                raise InvalidConfigurationError(
                    f"worker={self._given!r} of {self._name!r} is taken by {_holder(path)}: no"
                    " producer was made, since the two would fence each other. Use one pool in a"
                    " process, and give each process a worker of its own, or leave it out"
                )
            self._worker = self._given
            return
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())
        for number in range(self._most):
            self._lock = _lock(folder / f"{self._name}-{number}.lock")
            if self._lock is not None:
                self._worker = f"{host}-{number}"
                return
        raise InvalidConfigurationError(
            f"all {self._most} workers of {self._name!r} on this machine are taken (lock files in"
            f" {folder}): no producer was made. Raise most_workers, or end a process"
        )

    def _lock_folder(self) -> Path:
        folder = self._folder
        if folder is None:
            folder = Path(tempfile.gettempdir()) / f"txnproducer-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder for temporary files is everybody's, and so is the name.
        if self._folder is None and folder.stat().st_uid != os.getuid():
            raise InvalidConfigurationError(
                f"{folder} is another user's: give lock_folder, one that only this service uses"
            )
        return folder


def _lock(path: Path) -> IO[str] | None:
    """Return the open lock file, or None if another process has it."""
    lock = path.open("a+")
    try:
        _FCNTL.flock(lock, _FCNTL.LOCK_EX | _FCNTL.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except BaseException:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _holder(path: Path) -> str:
    process = path.read_text()
    if process == str(os.getpid()):
        return "another pool of this process"
    return f"another process of this machine ({process or 'it has just begun'})"


def _checked(label: str, value: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidConfigurationError(
            f"{label}={value!r}: letters, digits, '.', '_' and '-' alone, since transactional ids"
            " and the names of lock files are made from it"
        )
    return value
