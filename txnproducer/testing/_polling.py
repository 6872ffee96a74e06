"""The wait for a condition that nothing announces.

Owns: one function. Must not know: Kafka, processes, the condition.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import Retrying, retry_if_not_result, stop_after_delay, wait_fixed


def wait_until(is_done: Callable[[], object], timeout: float, every: float) -> bool:
    """Look until a condition holds or the time is over. Return whether it holds.

    Args:
        is_done: the condition; looked at once at least. Its errors end the wait.
        timeout: seconds.
        every: seconds between two looks.
    """
    look_again = Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(every),
        retry=retry_if_not_result(bool),
        retry_error_callback=lambda _: False,
    )
    return bool(look_again(is_done))
