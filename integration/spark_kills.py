"""The end of a driver at a step that counts, in the process of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from integration.spark_frames import keyless
from txnproducer import TransactionalProducer
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient

_T = TypeVar("_T")


class DeadDriverError(BaseException):
    """The end of a driver that was killed. No `except Exception` of the sink's sees it."""


def kill(patch, ended):
    """Kill the driver that ends parts when it has ended as many; None: before it decides."""
    real = CoordinatorClient.end_ids

    def die(self, leases, *, is_commit, timeout_ms):
        real(self, list(leases)[:ended], is_commit=is_commit, timeout_ms=timeout_ms)
        raise DeadDriverError

    def die_before(*_):
        raise DeadDriverError

    if ended is None:
        patch.setattr(PreparedRuns, "decide", die_before)
    else:
        patch.setattr(CoordinatorClient, "end_ids", die)


def others(spark):
    """Make a frame of other rows, in another number of partitions."""
    return keyless(spark, 30, partitions=4, first=1000)


@contextmanager
def kill_at_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Yield a function that ends the driver before its n-th step towards the cluster."""
    count = 0
    last: int | None = None
    names = (
        "init_transactions",
        "begin_transaction",
        "send",
        "send_offsets_to_transaction",
        "commit_transaction",
    )

    def counted(usual: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: TransactionalProducer, *arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == last:
                raise DeadDriverError
            return usual(self, *arguments, **named)

        return step

    for name in names:
        monkeypatch.setattr(
            TransactionalProducer, name, counted(getattr(TransactionalProducer, name))
        )

    def begin(n: int | None) -> None:
        nonlocal count, last
        count, last = 0, n

    yield begin
    begin(None)


def start_at_each_step(
    kill_at: Callable[[int | None], None], start: Callable[[], _T], most: int = 60
) -> tuple[_T, int]:
    """Start a driver again and again, each time killed one step later, until one lives.

    Returns:
        The result of the start that lived, and the number of those that were killed.
    """
    for step in range(1, most):
        kill_at(step)
        try:
            return start(), step - 1
        except DeadDriverError:
            continue  # the next start finds what this one has left
        finally:
            kill_at(None)
    pytest.fail("the start has more steps")
