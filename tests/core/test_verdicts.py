"""Properties of the verdict tables alone: unknown codes, success, the errors they make.

What the whole producer does with each code at each point is compared with the Java client in
`test_oracle.py`.
"""

from __future__ import annotations

import pytest

from txnproducer import errors
from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.verdicts import Action, Form
from txnproducer.errors import ErrorCode, KafkaError

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
    code = ErrorCode.POLICY_VIOLATION
    error = table.error(table.judge(code), code)
    assert type(error) is KafkaError
    assert "InitProducerId was answered POLICY_VIOLATION (44)" in str(error)
    assert error.recovery == "fix"


@pytest.mark.conformance("3.19")
def test_a_refused_group_is_named():
    table, code = verdicts.TXN_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED
    error = table.error(table.judge(code), code, group_id="orders")
    assert isinstance(error, errors.GroupAuthorizationError)
    assert error.group_id == "orders"


def test_an_abort_answered_with_transaction_abortable_raises_a_plain_error():
    table, code = verdicts.END_TXN_ABORT, ErrorCode.TRANSACTION_ABORTABLE
    verdict = table.judge(code)
    assert verdict == (Action.FATAL, Form.CAUSED)
    assert type(table.error(verdict, code).__cause__) is errors.TransactionAbortableError
