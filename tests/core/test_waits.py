"""How long the sender waits when no broker can be tried, or when nothing can change any more."""

from __future__ import annotations

import pytest

from tests.harness import CoreHarness
from txnproducer._core.metadata import NEVER_MS
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import ErrorCode, TransactionalIdAuthorizationError


@pytest.mark.parametrize("transactional_id", ["txn", None])
@pytest.mark.parametrize("retry_backoff_ms", [0, 100])
def test_the_next_step_is_due_when_a_broker_may_be_tried_again(transactional_id, retry_backoff_ms):
    harness = CoreHarness(
        transactional_id=transactional_id,
        retry_backoff_ms=retry_backoff_ms,
        bootstrap_servers="one:9092,two:9092",
    )
    harness.client.down |= {-1, -2}
    harness.client.reconnect_backoff_ms = 400
    if transactional_id:
        harness.core.init_transactions()
    harness.settle()
    harness.now_ms += 100
    assert harness.step() == 300
    # Both back off, and the earlier one decides.
    harness.now_ms += 299
    assert harness.step() == 1


def test_a_broker_that_is_there_before_its_time_is_asked(monkeypatch):
    harness = CoreHarness()
    # As where all brokers are busy: the way out is news, which has no time.
    with monkeypatch.context() as busy:
        busy.setattr(harness.client, "least_loaded_node", lambda _: None)
        busy.setattr(harness.client, "ready_delay_ms", lambda *_: NEVER_MS)
        harness.core.init_transactions()
        for _ in range(3):
            harness.step()
    harness.run_for(200)
    assert harness.client.sent(ApiKey.FIND_COORDINATOR)


@pytest.mark.parametrize("retry_backoff_ms", [0, 100])
def test_a_failed_producer_waits_for_news(retry_backoff_ms):
    harness = CoreHarness(retry_backoff_ms=retry_backoff_ms)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_produce()
    harness.run_until(harness.send().done)
    with pytest.raises(TransactionalIdAuthorizationError):
        harness.commit(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    harness.run_for(2_000)
    # Only the next refresh of the metadata is due.
    assert harness.step() > 100_000
    harness.core.initiate_close(harness.now_ms)
    harness.settle()
    assert harness.core.is_closed
    assert harness.step() == NEVER_MS
