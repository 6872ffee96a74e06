"""Each transaction that has ended has one line in `txnproducer.transactions`, a close has none."""

from __future__ import annotations

import logging
import math

import pytest

from tests.core.on_cluster import OnCluster, make_cluster, started
from txnproducer._core.transactions.state import Role, TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import ErrorCode, IllegalStateError, KafkaError


@pytest.fixture
def lines(caplog):
    """Return the values of each line."""
    caplog.set_level(logging.INFO, "txnproducer.transactions")
    return lambda: [r.args for r in caplog.records if r.name == "txnproducer.transactions"]


def test_a_commit_and_an_abort_have_a_line_each(lines, caplog):
    harness = started(make_cluster(2))
    harness.begin()
    harness.write(b"one")
    harness.write(b"two")
    harness.now_ms += 1500
    identity = harness.identity
    harness.end(is_commit=True)
    harness.transact(b"three")
    harness.begin()
    harness.end(is_commit=False)
    first, second, third = lines()
    assert first == {
        "transactional_id": "txn",
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "version": 2,
        "outcome": "committed",
        "ms": 1500,
        "records": 2,
        "cause": None,
    }
    assert (second["records"], second["producer_epoch"]) == (1, identity.producer_epoch + 1)
    assert (third["outcome"], third["records"], third["cause"]) == ("aborted", 0, None)
    assert "transactional_id='txn' producer_id=" in caplog.text
    assert "outcome=committed ms=1500 records=2 cause=None" in caplog.text


def test_the_cause_of_an_abort_is_the_error_that_asked_for_it(lines):
    harness = started(make_cluster(1))
    harness.begin()
    harness.write(b"one")
    harness.manager.progress.maybe_transition_to_error_state(KafkaError("a record was refused"))
    harness.end(is_commit=False)
    harness.transact(b"two")
    first, second = lines()
    assert (first["version"], first["outcome"]) == (1, "aborted")
    assert str(first["cause"]) == "a record was refused"
    assert (second["outcome"], second["cause"], second["records"]) == ("committed", None, 1)


@pytest.mark.parametrize("is_sent", [True, False])
def test_the_end_of_a_producer_ends_its_transaction(lines, is_sent):
    harness = started(make_cluster(2))
    harness.begin()
    harness.write(b"one")
    if is_sent:
        harness.lost.append(ApiKey.END_TXN)
        harness.stalled.add(ApiKey.FIND_COORDINATOR)
        harness.core.begin_commit()
        harness.settle()
    harness.manager.progress.transition_to_fatal_error(KafkaError("the end"))
    harness.manager.progress.transition_to_fatal_error(KafkaError("its consequence"))
    (line,) = lines()
    assert line["outcome"] == ("unknown" if is_sent else "aborted")
    assert str(line["cause"]) == "the end"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_poisoned_producer_logs_the_transaction_that_was_open(lines, is_open):
    harness = started(make_cluster(2))
    if is_open:
        harness.begin()
    harness.manager.machine.act_for(Role.SENDER)
    target = TransactionState.UNINITIALIZED if is_open else TransactionState.ABORTING_TRANSACTION
    with pytest.raises(IllegalStateError):
        harness.manager.machine.transition_to(target)
    assert len(lines()) == is_open


def test_no_text_is_formatted_for_a_disabled_logger(monkeypatch):
    harness = started(make_cluster(2))
    logging.getLogger("txnproducer.transactions").setLevel(logging.WARNING)
    monkeypatch.setattr(type(harness.manager.progress), "age_ms", property(lambda _: 1 / 0))
    try:
        harness.transact(b"one")
    finally:
        logging.getLogger("txnproducer.transactions").setLevel(logging.NOTSET)


def test_a_close_with_requests_on_their_way_logs_no_error(caplog):
    harness = OnCluster(make_cluster(2))
    harness.stalled.add(ApiKey.FIND_COORDINATOR)
    harness.core.init_transactions()
    harness.settle()
    harness.core.force_close(harness.now_ms)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_metrics_are_numbers():
    harness = OnCluster(make_cluster(2))
    assert not [name for name, value in harness.core.metrics().items() if math.isnan(value)]
    assert harness.core.metrics()["batch-size-avg"] == 0.0


def test_a_refusal_begins_with_the_cause_and_names_it_once():
    harness = OnCluster(make_cluster(2))
    harness.rewrite[ApiKey.INIT_PRODUCER_ID] = lambda answer: type(answer)(
        ErrorCode.POLICY_VIOLATION
    )
    result = harness.core.init_transactions()
    harness.run_until(lambda: result.is_completed)
    text = str(result.error)
    assert text.startswith("A policy of the cluster forbids the request")
    assert text.endswith("(InitProducerId was answered POLICY_VIOLATION (44))")
    assert text.count("POLICY_VIOLATION") == 1
