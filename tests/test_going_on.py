"""A cluster that is away for longer than calls wait, and the documented loop that gets over it.

A second of the cluster's absence is played in a few milliseconds; the proportions are those of the
default settings and an absence of two minutes.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import ErrorCode, IllegalStateError, KafkaError, KafkaTimeoutError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PATIENCE_S = 10.0
MAX_BLOCK_MS = 100  # stands for a minute
AWAY_S = 0.25
NEEDED = {ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT}
OFFSETS = ({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))


@pytest.fixture
def one(client):
    producer = TransactionalProducer("boot:9092", "txn", linger_ms=0)
    producer.init_transactions()
    producer._max_block_s = MAX_BLOCK_MS / 1000
    yield producer
    producer.close(0)


@pytest.fixture
def run_once():
    """Take the loop out of the page."""
    page = Path(__file__).parents[1] / "docs" / "errors.md"
    [loop] = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(loop, names)
    return names["run_once"]


def ends_sent(client):
    return [request.is_commit for request in client.sent(ApiKey.END_TXN)]


def time_out_an_abort(one, client):
    """Leave a block by an exception while the cluster does not answer its abort."""
    client.held.add(ApiKey.END_TXN)
    block = one.transaction()
    block.__enter__()
    one.send("topic", b"value")
    error = ValueError("the user's")
    block.__exit__(ValueError, error, None)
    assert "abort_transaction did not finish" in error.__notes__[0]
    return block


def test_the_next_block_waits_for_an_abort_that_has_timed_out(one, client):
    time_out_an_abort(one, client)
    one._max_block_s = PATIENCE_S
    threading.Timer(0.05, client.release, [ApiKey.END_TXN]).start()
    with one.transaction() as block:
        one.send("topic", b"value")
    assert block.outcome == "committed"
    assert ends_sent(client) == [False, True]


def test_it_waits_up_to_max_block_ms_and_can_be_tried_again(one, client):
    time_out_an_abort(one, client)
    block = one.transaction()
    with pytest.raises(KafkaTimeoutError, match="abort_transaction") as caught:
        block.__enter__()
    assert caught.value.recovery == "resume"
    assert block.outcome == "aborted"  # nothing was written
    client.release(ApiKey.END_TXN)
    one._max_block_s = PATIENCE_S
    with block:
        one.send("topic", b"value")
    assert block.outcome == "committed"


def test_a_begin_without_a_block_names_the_abort_that_has_to_be_seen(one, client):
    time_out_an_abort(one, client)
    with pytest.raises(IllegalStateError, match=r"call abort_transaction\(\)"):
        one.begin_transaction()


def test_an_abort_that_cannot_fail_any_more_is_reported_before_its_answer(one, client):
    assert time_out_an_abort(one, client).outcome == "aborted"


def test_an_abort_after_a_commit_that_was_sent_is_not_reported_before_its_answer(one, client):
    client.held.add(ApiKey.END_TXN)
    block = one.transaction()
    with pytest.raises(KafkaTimeoutError):
        with block:
            one.send("topic", b"value")
    with pytest.raises(KafkaTimeoutError):
        one.abort_transaction()
    assert block.outcome == "open"


def test_the_next_block_raises_the_error_of_the_abort(one, client):
    time_out_an_abort(one, client)
    one._max_block_s = PATIENCE_S
    client.prepare_end_txn(ErrorCode.INVALID_PRODUCER_EPOCH)
    with client._guard:
        [request] = client.waiting(ApiKey.END_TXN)
        client.held.clear()
        client._end(request, client._prepared[ApiKey.END_TXN].popleft())
    client.wakeup()
    with pytest.raises(KafkaError) as caught:
        one.transaction().__enter__()
    assert caught.value.recovery == "restart"


@pytest.mark.parametrize("has_offsets", [False, True])
def test_the_documented_loop_gets_over_a_cluster_that_is_away(one, client, run_once, has_offsets):
    written = []

    def write():
        written.append(one.send("topic", b"value"))
        if has_offsets:
            one.send_offsets_to_transaction(*OFFSETS)

    client.held.update(NEEDED)
    threading.Timer(AWAY_S, client.release, NEEDED).start()
    run_once(one, write, attempts=20)
    assert ends_sent(client).count(True) == 1
    assert written[-1].result(0)
    assert one.transaction_state == "READY"


def test_the_documented_loop_writes_again_after_an_abort_that_has_timed_out(one, client, run_once):
    client.prepare_produce(ErrorCode.INVALID_TXN_STATE)
    client.held.add(ApiKey.END_TXN)
    threading.Timer(AWAY_S, client.release, [ApiKey.END_TXN]).start()
    run_once(one, lambda: one.send("topic", b"value"), attempts=20)
    assert ends_sent(client) == [False, True]


def test_the_documented_loop_never_rewrites_records_that_may_be_committed(one, client, run_once):
    client.held.add(ApiKey.END_TXN)
    written = []
    with pytest.raises(KafkaError):
        run_once(one, lambda: written.append(one.send("topic", b"value")), attempts=2)
    assert len(written) == 1
