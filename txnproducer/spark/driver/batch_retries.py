"""Retries of a whole batch: after which errors, how often, how soon.

Owns: the choice, the bounds, the wait, the warning. Must not know: transactions, how a batch is
written, how Spark's executors are found.

Rules:
* A refusal, a mistake in the frame's or the driver's code, and a stop are not tried again.
* A run in which an executor was lost has a bound of its own, as Spark counts no lost executor
  against a task: on spot instances that is the usual end of a run.
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
    wait_exponential,
)

from txnproducer.errors import KafkaError
from txnproducer.spark import errors
from txnproducer.spark.options import MAX_LOSSES, MAX_RUNS
from txnproducer.spark.session import is_of_spark, tells_of_stop

_LOG = logging.getLogger(__name__)
# `query.stop()` waits for the driver, so a stop must end the wait soon.
_POLL_S: Final = 0.1
_REFUSALS: Final = tuple(
    f"{kind.__module__}.{kind.__qualname__}: "
    # By name in the text: a task's error reaches the driver only inside the text of Spark's.
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.SinkError)
)


def _none(since_s: float, error: BaseException | None) -> bool:
    del since_s, error
    return False


class RunBounds:
    """How often the runs of one batch may fail.

    Args:
        max_runs: runs that failed, the last one included.
        max_losses: runs in which an executor was lost.
        has_lost: says whether an executor was lost; see `session.losses_of`.

    Attributes:
        failures: how many runs failed by themselves so far.
        losses: how many lost an executor.
    """

    def __init__(
        self,
        max_runs: int = MAX_RUNS,
        max_losses: int = MAX_LOSSES,
        has_lost: Callable[[float, BaseException | None], bool] = _none,
    ) -> None:
        self._max_runs = max_runs
        self._max_losses = max_losses
        self._has_lost = has_lost
        self._began_s = 0.0
        self.failures = self.losses = 0

    def begin(self) -> None:
        """Note the begin of a run."""
        self._began_s = time.time()  # the JVM dates a loss by this clock

    def fail(self, state: RetryCallState) -> bool:
        """Note the failure of a run. Return whether it was the last one."""
        error = None if state.outcome is None else state.outcome.exception()
        # Spark's listener may learn of a loss after the job.
        if self._has_lost(self._began_s, error):
            self.losses += 1
        else:
            self.failures += 1
        return self.failures >= self._max_runs or self.losses >= self._max_losses

    @property
    def is_last(self) -> bool:
        """Whether the run that goes on is the last one if it fails by itself."""
        return self.failures + 1 >= self._max_runs

    def __str__(self) -> str:
        return (
            f"{self.failures} of {self._max_runs} failed, and {self.losses} of {self._max_losses} "
            "lost an executor"
        )


def retrying(raise_if_stopped: Callable[[], None], bounds: RunBounds) -> Retrying:
    """Return a function that calls another function, and retries it if that may help.

    Args:
        raise_if_stopped: raises if the query or Spark was stopped.
        bounds: of these runs.
    """
    return Retrying(
        stop=bounds.fail,
        wait=wait_exponential(multiplier=0.5, max=10),
        retry=retry_if_exception(_is_worth_a_retry),
        before_sleep=lambda state: _warn_of_retry(state, bounds),
        sleep=lambda seconds: _sleep(seconds, raise_if_stopped),
        # The batch's own error, and not tenacity's `RetryError`, tells the user the way out.
        reraise=True,
    )


def _sleep(seconds: float, raise_if_stopped: Callable[[], None]) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        raise_if_stopped()
        time.sleep(min(left_s, _POLL_S))


def _warn_of_retry(state: RetryCallState, bounds: RunBounds) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    _LOG.warning(
        "the batch is aborted, and begins again (of its runs %s): %s: %s",
        bounds,
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
