"""The end of a driver of prepared parts, at a step that counts, in the process of a test."""

from __future__ import annotations

from integration.spark_frames import keyless
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient


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
