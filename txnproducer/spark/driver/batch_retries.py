"""Retries of a whole batch: after which errors, how often, how soon.

Owns: the choice, the wait, the warning. Must not know: transactions, how a batch is written.

Rules:
* A refusal, a mistake in the frame's or the driver's code, and a stop are not tried again.
* The wait ends at once when the query is stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
)

from txnproducer.errors import KafkaError
from txnproducer.spark import errors
from txnproducer.spark.session import is_of_spark, tells_of_stop

_LOG = logging.getLogger(__name__)
MOST_ATTEMPTS: Final = 3
# `query.stop()` waits for the driver, so a stop must end the wait soon.
_POLL_S: Final = 0.1
_REFUSALS: Final = tuple(
    f"{kind.__module__}.{kind.__qualname__}: "
    # By name in the text: a task's error reaches the driver only inside the text of Spark's.
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.SinkError)
)


def retrying(raise_if_stopped: Callable[[], None]) -> Retrying:
    """Return a function that calls another function, and retries it if that may help.

    Args:
        raise_if_stopped: raises if the query or Spark was stopped.
    """
    return Retrying(
        stop=stop_after_attempt(MOST_ATTEMPTS),
        wait=wait_exponential(multiplier=0.5, max=10),
        retry=retry_if_exception(_is_worth_a_retry),
        before_sleep=_warn_of_retry,
        sleep=lambda seconds: _sleep(seconds, raise_if_stopped),
        # The batch's own error, and not tenacity's `RetryError`, tells the user the way out.
        reraise=True,
    )


def _sleep(seconds: float, raise_if_stopped: Callable[[], None]) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        raise_if_stopped()
        time.sleep(min(left_s, _POLL_S))


def _warn_of_retry(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    _LOG.warning(
        "the batch is aborted, and begins again (%d of %d attempts are over): %s: %s",
        state.attempt_number,
        MOST_ATTEMPTS,
        type(error).__name__,
        error,
    )


def _is_worth_a_retry(error: BaseException) -> bool:
    if tells_of_stop(error):
        return False
    if isinstance(error, KafkaError):
        # Another attempt meets the same mistake of the user's.
        return error.recovery != "fix"
    # Spark's error: an executor was lost, or the frame itself fails. A refusal by a task of the
    # shuffle is a part of its text.
    return is_of_spark(error) and not any(name in str(error) for name in _REFUSALS)
