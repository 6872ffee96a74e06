"""Every error code as the answer to Produce, against what the Java client was seen to do.

The whole core runs here, on a scripted client: a batch of one record is out, the application has
or has not begun to commit or abort, and the partition is answered with the code.
"""

from __future__ import annotations

import pytest

from tests.core.oracle import PRODUCE_TABLES, compare, seen_error, seen_result
from tests.harness import TP0, CoreHarness
from tests.scripted_client import MODERN_VERSIONS, NO_BUMP_VERSIONS
from txnproducer._protocol.messages import API_KEY_OF, ApiKey, CoordinatorType, MetadataRequest

# How long the loop runs on after an answer, if nothing is sent.
_RUN_ON_MS = 400


def producer_in(mode):
    """Return a harness in the oracle's mode, with an identity, and in a transaction if it can."""
    is_transactional = mode != "idempotent"
    harness = CoreHarness(
        transactional_id="t" if is_transactional else None,
        transaction_version=2 if mode == "TV2" else 1,
    )
    harness.client.default_versions = NO_BUMP_VERSIONS if mode == "TV1nb" else MODERN_VERSIONS
    if not is_transactional:
        harness.start_idempotent(producer_id=77, producer_epoch=0)
        return harness
    harness.init_transactions(producer_id=77, producer_epoch=0)
    harness.begin_transaction()
    if mode != "TV2":
        harness.client.prepare_add_partitions()
    return harness


def call_that_waits(harness, table):
    """Begin the commit or the abort that the table's name tells of."""
    if "committing" in table["name"]:
        return harness.core.begin_commit()
    if "aborting" in table["name"]:
        return harness.core.begin_abort()
    return None


def name_of(request):
    kind = API_KEY_OF[type(request)]
    if kind is ApiKey.FIND_COORDINATOR:
        is_group = request.key_type is CoordinatorType.GROUP
        return f"FindCoordinator({'group' if is_group else 'txn'})"
    return type(request).__name__.removesuffix("Request")


def requests_sent(harness):
    """Return the names of all requests, in order, but those for metadata."""
    bodies = [request.body for request in harness.client.requests]
    return [name_of(body) for body in bodies if not isinstance(body, MetadataRequest)]


def fate(future):
    if not future.done():
        return "retry"
    return "success" if future.error is None else "failed"


def seen_now(harness, result):
    """Return what the application can see at this moment of its transaction."""
    seen = {
        "state": harness.state.name,
        "last_error": seen_error(harness.manager.last_error),
        "epoch": harness.manager.producer_id_and_epoch.producer_epoch,
    }
    if result is not None:
        seen["result"] = seen_result(result)
        seen["result_error"] = seen_error(result.error)
    return seen


def observe(table, code):
    """Answer a batch with a code; return all that the oracle's fields ask for."""
    harness = producer_in(table["mode"])
    future = harness.send()
    harness.settle()
    (request,) = harness.client.outstanding.values()
    result = call_that_waits(harness, table)
    harness.run_for(1_000)  # long enough for new metadata to be asked for without a backoff
    assert requests_sent(harness) == table["requests_sent"]

    harness.client.answer_produce(request, code, base_offset=10, log_start_offset=0)
    for event in harness.client.take_due_events():
        harness.core.handle(event, harness.now_ms)
    harness.run_callbacks()
    seen = seen_now(harness, result)
    seen["future"] = fate(future)
    is_success = seen["future"] == "success"
    seen["future_offset"] = future.metadata().offset if is_success else None
    seen["future_error"] = seen_error(future.error) if future.done() else None
    seen["next_seq"] = harness.manager.sequences.sequence_number(TP0)

    sent_before, asked_before = len(requests_sent(harness)), metadata_requests(harness)
    harness.run_until(
        lambda: len(requests_sent(harness)) > sent_before,
        until_ms=harness.now_ms + _RUN_ON_MS,
    )
    seen["next_request"] = next(iter(requests_sent(harness)[sent_before:]), None)
    seen["metadata_update"] = metadata_requests(harness) > asked_before
    settled = {f"settled_{name}": value for name, value in seen_now(harness, result).items()}
    return seen | settled


def metadata_requests(harness):
    return len(harness.client.sent(ApiKey.METADATA))


@pytest.mark.parametrize("name", PRODUCE_TABLES)
def test_every_code_to_a_batch_is_taken_as_the_java_client_takes_it(name):
    comparison = compare(PRODUCE_TABLES[name], observe)
    assert comparison.count == 135
    assert comparison.wrong == []
