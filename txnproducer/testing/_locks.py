"""Locks between processes, which the kernel releases when their holder dies.

Owns: the lock on a file, the lock on a cluster's folder. Must not know: the contents of either.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from ._errors import EmbeddedKafkaError

__all__ = ["FolderLock", "try_lock"]


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed, and return whether that was possible."""
    try:
        # A killed holder blocks nobody.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FolderLock:
    """The lock of one cluster on its folder, which is made if it does not exist.

    Args:
        folder: the folder of data, configuration and logs.

    Raises:
        EmbeddedKafkaError: the folder cannot be written, or another cluster has it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Never removed: another process may just have opened it.
            self._file = (folder / "broker.lock").open("a")
        except OSError as error:
            raise EmbeddedKafkaError(
                f"data_dir is {folder}: the folder cannot be written: {error.strerror}. Name one"
                " that can."
            ) from error
        if not try_lock(self._file.fileno()):
            self._file.close()
            raise EmbeddedKafkaError(
                f"data_dir is {folder}: another broker uses this folder. Stop that one, or name"
                " another folder."
            )

    def release(self) -> None:
        """Let another cluster have the folder."""
        # Without this a forked child, which has the file as well, would keep the lock.
        fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
        self._file.close()
