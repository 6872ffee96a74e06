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
class TxnPoint:
    """A driver with a request out, and the result of the call that waits."""

    driver: TxnDriver
    result: Any = None


def initializing(driver: TxnDriver) -> TxnPoint:
    result = driver.manager.initialize_transactions()
    driver.take()
    return TxnPoint(driver, result)


def initializing_with_coordinator(driver: TxnDriver) -> TxnPoint:
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    return TxnPoint(driver, result)


def bumping(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    driver.add_partition()
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    # Without bump support nothing but an upgrade sets it; the table is about the answer alone.
    driver.manager.identity.is_bump_required = True
    result = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.take()
    return TxnPoint(driver, result)


def adding_partitions(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    return TxnPoint(driver)


def adding_offsets(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    result = driver.send_offsets()
    driver.take()
    return TxnPoint(driver, result)


def finding_group(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    result = driver.send_offsets()
    if not driver.manager.identity.is_transaction_v2_enabled:
        driver.expect(AddOffsetsToTxnRequest)
    driver.take()
    return TxnPoint(driver, result)


def committing_offsets(driver: TxnDriver) -> TxnPoint:
    point = finding_group(driver)
    driver.reply()
    driver.take()
    return point


def committing(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    driver.add_partition()
    result = driver.manager.begin_commit()
    driver.take()
    return TxnPoint(driver, result)


def aborting(driver: TxnDriver) -> TxnPoint:
    driver.begin()
    driver.add_partition()
    result = driver.manager.begin_abort()
    driver.take()
    return TxnPoint(driver, result)


def initializing_without_transactions(driver: TxnDriver) -> TxnPoint:
    driver.as_sender(driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed)
    driver.take()
    return TxnPoint(driver)


POINTS: dict[str, Callable[[TxnDriver], TxnPoint]] = {
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
