"""The compression of a full batch before the step that sends it, without the core's lock.

Owns: what becomes of an exception in it. Must not know: the thread, the core.
"""

from __future__ import annotations

from txnproducer._shell.driven import FullBatch
from txnproducer._sync.held_logs import held_logger

__all__ = ["compress"]

_LOG = held_logger(__name__)


def compress(batch: FullBatch, thread_name: str) -> None:
    """Compress a batch.

    Args:
        batch: full, so that no record comes to it any more.
        thread_name: of the caller, for the log.
    """
    try:
        batch.compress()
    except Exception:  # noqa: BLE001 - the step that sends it fails likewise, and handles it
        _LOG.debug("%s: could not compress", thread_name, exc_info=True)
