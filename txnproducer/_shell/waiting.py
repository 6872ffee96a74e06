"""Wait for something that needs a broker, but fail early if no host name exists.

Owns: this one wait. Must not know: the condition to wait for.
"""

from __future__ import annotations

from collections.abc import Callable

from txnproducer._core.producer_core import ProducerCore
from txnproducer._shell.io_thread import IoThread

__all__ = ["wait_for_brokers"]


def wait_for_brokers(
    io: IoThread, core: ProducerCore, is_done: Callable[[], bool], timeout_s: float
) -> bool:
    """Block until `is_done()` or the time-out. Return whether it is done.

    Args:
        io: the producer's loop.
        core: the producer's core.
        is_done: cheap; called with the lock held.
        timeout_s: in seconds.

    Raises:
        InvalidConfigurationError: no host of `bootstrap_servers` exists.
    """
    tries = core.failed_tries
    io.wait_until(lambda: is_done() or tries.has_no_host, timeout_s)
    with io.lock:
        # Asked first: a result that is there is better than the error.
        if is_done():
            return True
        if tries.has_no_host:
            raise tries.no_host_error()
    return False
