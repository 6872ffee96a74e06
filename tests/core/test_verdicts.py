"""Every error code at every coordinator request, against what the Java client was seen to do.

`tests/data/handler_oracle.json` has the outcomes of kafka-clients 4.3.1: 135 codes at each point
of the protocol. Here the transaction manager is brought to each point that needs no batch, gets
each code, and is compared in the fields that an application or a broker can see. Where this
package does something else on purpose, `on_purpose` says so; what no longer differs fails as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.txn_driver import PRODUCER, TP0, TxnDriver
from tests.core.txn_points import POINTS, Point
from txnproducer import errors
from txnproducer._core import verdicts
from txnproducer._core.verdicts import Action, Form
from txnproducer._protocol.messages import (
    CoordinatorType,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import ErrorCode, KafkaError
from txnproducer.records import ProducerIdAndEpoch

ORACLE = json.loads(
    (Path(__file__).parent.parent / "data" / "handler_oracle.json").read_text(encoding="utf-8")
)
CODES = ORACLE["codes"]
TABLES = {
    table["name"]: table for table in ORACLE["tables"] if not table["name"].startswith("Produce")
}
FIELDS = (
    "epoch",
    "in_txn",
    "next_request",
    "settled_state",
    "settled_last_error",
    "settled_result",
    "settled_result_error",
    "settled_epoch",
)


# --- the points of the protocol ---------------------------------------------------------------


def point_name(table: dict[str, Any]) -> str:
    return str(table["name"]).split("/", maxsplit=1)[0]


def point_of(table: dict[str, Any]) -> Point:
    request, mode = point_name(table), table["mode"]
    is_idempotent = request == "InitProducerId(idempotent)"
    driver = TxnDriver(
        None if is_idempotent else "t",
        version=2 if mode == "TV2" else 1,
        can_bump=mode != "TV1nb",
    )
    return POINTS[request](driver)


# --- what is seen -----------------------------------------------------------------------------


def python_name(java_name: str) -> str:
    return java_name.removesuffix("Exception") + "Error"


def seen_error(error: KafkaError | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    cause = error.__cause__
    return {
        "type": type(error).__name__,
        "cause": None if cause is None else type(cause).__name__,
    }


def expected_error(error: dict[str, str | None] | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    return {name: value and python_name(value) for name, value in error.items()}


def seen_result(result: Any) -> str:
    if not result.is_completed:
        return "pending"
    return "done" if result.error is None else "failed"


def next_request_name(driver: TxnDriver) -> str | None:
    """Let the loop run on without another answer; return the first request that it sends."""
    manager = driver.manager
    for _ in range(3):
        if manager.has_fatal_error:
            return None
        if manager.must_begin_anew:
            error = manager.last_error
            assert error is not None
            manager.fail_pending_requests(error)
            driver.as_sender(manager.transition_to_uninitialized, error)
            continue
        driver.as_sender(manager.bump_idempotent_epoch_and_reset_id_if_needed)
        request = driver.take()
        if isinstance(request, FindCoordinatorRequest):
            is_group = request.key_type is CoordinatorType.GROUP
            return f"FindCoordinator({'group' if is_group else 'txn'})"
        if request is not None:
            return type(request).__name__.removesuffix("Request")
    return None


def observe(table: dict[str, Any], code: int) -> dict[str, Any]:
    point = point_of(table)
    driver, manager = point.driver, point.driver.manager
    is_bump = point_name(table) == "InitProducerId(bump)" or (
        point_name(table).startswith("EndTxn") and table["mode"] == "TV2"
    )
    driver.reply(
        code, ProducerIdAndEpoch(77, 1) if is_bump else PRODUCER if is_init(table) else None
    )
    seen: dict[str, Any] = {
        "epoch": manager.producer_id_and_epoch.producer_epoch,
        "in_txn": manager.is_send_to_partition_allowed(TP0) or TP0 in manager._partitions,
    }
    seen["next_request"] = next_request_name(driver)
    seen["settled_state"] = driver.state.name
    seen["settled_last_error"] = seen_error(manager.last_error)
    seen["settled_epoch"] = manager.producer_id_and_epoch.producer_epoch
    if point.result is not None:
        seen["settled_result"] = seen_result(point.result)
        seen["settled_result_error"] = seen_error(point.result.error)
    return seen


def is_init(table: dict[str, Any]) -> bool:
    return point_name(table).startswith("InitProducerId")


# --- differences on purpose -------------------------------------------------------------------


def on_purpose(table: dict[str, Any], code: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in which this package differs from an observed outcome, and how."""
    request = point_name(table)
    is_init_call = request in ("FindCoordinator(txn)", "InitProducerId(init)")
    if is_init_call and row["settled_state"] == "ABORTABLE_ERROR":
        # An abort would have nothing to abort; Java's then leads to READY without an identity.
        return {"settled_state": "UNINITIALIZED", "settled_last_error": None}
    if request == "InitProducerId(bump)" and row["settled_result"] == "failed":
        # EndTxn has decided; a bump that fails after it is told by the next begin_transaction.
        return {"settled_result": "done", "settled_result_error": None}
    if (
        request == "EndTxn(abort)"
        and row["settled_state"] == "ABORTING_TRANSACTION"
        and (row["settled_result"] == "failed")
    ):
        # Java's abort stays in ABORTING_TRANSACTION for ever, where it can raise the epoch.
        error = {"type": "UnknownProducerIdError", "cause": None}
        return {"settled_state": "FATAL_ERROR", "settled_last_error": error}
    if request == "EndTxn(commit)" and code == "UNKNOWN_SERVER_ERROR":
        # What broke in the coordinator may have broken after it had written the commit.
        error = {"type": "CommitOutcomeUnknownError", "cause": "KafkaError"}
        return {"settled_result_error": error}
    if request == "FindCoordinator(group)" and row["settled_state"] == "FATAL_ERROR":
        # Java's call waits for its time-out, although nothing will come any more.
        return {
            "settled_result": "failed",
            "settled_result_error": expected_error(row["settled_last_error"]),
        }
    if request == "InitProducerId(idempotent)":
        return _on_purpose_without_transactions(code)
    return {}


def _on_purpose_without_transactions(code: str) -> dict[str, Any]:
    if code in ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"):
        # Java looks up a coordinator that such a producer does not have.
        return {"next_request": "InitProducerId"}
    if code == "TRANSACTION_ABORTABLE":
        # Java raises an illegal state in every step from then on.
        error = {"type": "KafkaError", "cause": None}
        return {"settled_state": "FATAL_ERROR", "settled_last_error": error}
    return {}


@pytest.mark.trap(7, 10, 11, 12, 13, 14, 15, 16)
@pytest.mark.parametrize("name", TABLES)
def test_every_code_is_taken_as_the_java_client_takes_it(name):
    table = TABLES[name]
    count = 0
    wrong = []
    for row in table["rows"]:
        for code in row["codes"]:
            count += 1
            expected = {field: row[field] for field in FIELDS if field in row}
            for field in ("settled_last_error", "settled_result_error"):
                if field in expected:
                    expected[field] = expected_error(expected[field])
            changes = {
                field: value
                for field, value in on_purpose(table, code, row).items()
                if field in expected
            }
            stale = [field for field, value in changes.items() if expected[field] == value]
            wrong += [f"{code}: {field} does not differ any more" for field in stale]
            expected.update(changes)
            seen = observe(table, CODES[code])
            wrong += [
                f"{code}: {field} is {seen.get(field)}, not {value}"
                for field, value in expected.items()
                if seen.get(field) != value
            ]
    assert count == len(CODES) == 135
    assert wrong == []


def test_every_point_that_needs_no_batch_is_compared():
    assert {point_name(table) for table in TABLES.values()} == set(POINTS)
    assert len(TABLES) == 25


# --- what the tables alone can show -----------------------------------------------------------

ALL_TABLES = [
    verdicts.FIND_COORDINATOR,
    verdicts.INIT_PRODUCER_ID,
    verdicts.INIT_PRODUCER_ID_IDEMPOTENT,
    verdicts.ADD_PARTITIONS_TO_TXN,
    verdicts.ADD_OFFSETS_TO_TXN,
    verdicts.TXN_OFFSET_COMMIT,
    verdicts.END_TXN_COMMIT,
    verdicts.END_TXN_ABORT,
]


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.request)
def test_a_code_from_the_future_is_an_unknown_server_error(table):
    assert table.judge(31_000) == table.judge(ErrorCode.UNKNOWN_SERVER_ERROR)
    verdict = table.judge(31_000)
    if verdict.action is Action.FATAL:
        assert "31000" in str(table.error(verdict, 31_000))


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.request)
def test_success_is_complete_and_every_row_is_a_known_code(table):
    assert table.judge(ErrorCode.NONE).action is Action.COMPLETE
    assert set(table.rows) <= {int(code) for code in ErrorCode}


def test_an_error_without_a_class_of_its_own_names_code_and_request():
    table = verdicts.INIT_PRODUCER_ID
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    error = table.error(table.judge(code), code)
    assert type(error) is KafkaError
    assert "InitProducerId was answered INVALID_TRANSACTION_TIMEOUT (50)" in str(error)
    assert error.recovery == "fix"


@pytest.mark.conformance("3.19")
def test_a_refused_group_is_named():
    table, code = verdicts.TXN_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED
    error = table.error(table.judge(code), code, group_id="orders")
    assert isinstance(error, errors.GroupAuthorizationError)
    assert error.group_id == "orders"


@pytest.mark.conformance("3.26")
@pytest.mark.trap(14)
def test_an_abort_that_should_be_aborted_is_told_as_a_plain_error():
    table, code = verdicts.END_TXN_ABORT, ErrorCode.TRANSACTION_ABORTABLE
    verdict = table.judge(code)
    assert verdict == (Action.FATAL, Form.CAUSED)
    assert type(table.error(verdict, code).__cause__) is errors.TransactionAbortableError


def test_the_request_types_of_the_points_are_those_of_the_tables():
    sent = point_of(TABLES["TxnOffsetCommit/TV2"]).driver.sent
    assert isinstance(sent[-1], TxnOffsetCommitRequest)
    assert isinstance(
        point_of(TABLES["InitProducerId(bump)/TV1"]).driver.sent[-1], InitProducerIdRequest
    )
