"""The points of the protocol at which a coordinator's answer is judged, each reached by hand.

A point is a driver with one request out, and the result of the call that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.core.txn_driver import TP0, TxnDriver
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
)
from txnproducer.errors import TopicAuthorizationError


@dataclass
class Point:
    """A driver with a request out, and the result of the call that waits."""

    driver: TxnDriver
    result: Any = None


def initializing(driver: TxnDriver) -> Point:
    result = driver.manager.initialize_transactions()
    driver.take()
    return Point(driver, result)


def initializing_with_coordinator(driver: TxnDriver) -> Point:
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    return Point(driver, result)


def bumping(driver: TxnDriver) -> Point:
    driver.begin()
    driver.add_partition()
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    # Without bump support nothing but an upgrade sets it; the table is about the answer alone.
    driver.manager.identity.is_bump_required = True
    result = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.take()
    return Point(driver, result)


def adding_partitions(driver: TxnDriver) -> Point:
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    return Point(driver)


def adding_offsets(driver: TxnDriver) -> Point:
    driver.begin()
    result = driver.send_offsets()
    driver.take()
    return Point(driver, result)


def finding_group(driver: TxnDriver) -> Point:
    driver.begin()
    result = driver.send_offsets()
    if not driver.manager.identity.is_transaction_v2_enabled:
        driver.expect(AddOffsetsToTxnRequest)
    driver.take()
    return Point(driver, result)


def committing_offsets(driver: TxnDriver) -> Point:
    point = finding_group(driver)
    driver.reply()
    driver.take()
    return point


def committing(driver: TxnDriver) -> Point:
    driver.begin()
    driver.add_partition()
    result = driver.manager.begin_commit()
    driver.take()
    return Point(driver, result)


def aborting(driver: TxnDriver) -> Point:
    driver.begin()
    driver.add_partition()
    result = driver.manager.begin_abort()
    driver.take()
    return Point(driver, result)


def initializing_without_transactions(driver: TxnDriver) -> Point:
    driver.as_sender(driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed)
    driver.take()
    return Point(driver)


POINTS: dict[str, Callable[[TxnDriver], Point]] = {
    "FindCoordinator(txn)": initializing,
    "InitProducerId(init)": initializing_with_coordinator,
    "InitProducerId(bump)": bumping,
    "AddPartitionsToTxn": adding_partitions,
    "AddOffsetsToTxn": adding_offsets,
    "FindCoordinator(group)": finding_group,
    "TxnOffsetCommit": committing_offsets,
    "EndTxn(commit)": committing,
    "EndTxn(abort)": aborting,
    "InitProducerId(idempotent)": initializing_without_transactions,
}
