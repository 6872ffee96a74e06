"""The points of the protocol at which the Java client was watched, each reached by a real core.

A point is a producer with one request out, after the calls and the scripted answers that the
table's `setup` tells of. `observe` answers the request with a code, and reads what can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.core.oracle import Row, Table
from tests.core.txn_driver import response_to
from tests.harness import TP0, CoreHarness
from tests.scripted_client import NO_BUMP_VERSIONS
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._protocol.messages import (
    ApiKey,
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
    ProduceRequest,
    Request,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch

PRODUCER = ProducerIdAndEpoch(77, 0)
NEXT_EPOCH = ProducerIdAndEpoch(77, 1)
# How long the loop runs on after an answer, if nothing is sent.
RUN_ON_MS = 400


@dataclass
class CorePoint:
    """A producer with a request out, and the call and record that wait for it."""

    harness: CoreHarness
    result: TransactionalRequestResult | None = None
    future: FutureRecordMetadata | None = None


# --- ways to the points -----------------------------------------------------------------------


def initializing(harness: CoreHarness) -> CorePoint:
    return CorePoint(harness, harness.core.init_transactions())


def initializing_with_coordinator(harness: CoreHarness) -> CorePoint:
    harness.client.prepare_find_coordinator()
    return initializing(harness)


def initializing_without_transactions(harness: CoreHarness) -> CorePoint:
    return CorePoint(harness)


def begin(harness: CoreHarness) -> None:
    harness.init_transactions(PRODUCER.producer_id, PRODUCER.producer_epoch)
    harness.begin_transaction()


def adding_partitions(harness: CoreHarness) -> CorePoint:
    begin(harness)
    harness.manager.maybe_add_partition(TP0)
    return CorePoint(harness)


def with_a_partition(harness: CoreHarness) -> CorePoint:
    """Begin, and bring a partition into the transaction, without a record."""
    harness.client.prepare_add_partitions()
    point = adding_partitions(harness)
    harness.settle()
    return point


def committing(harness: CoreHarness) -> CorePoint:
    with_a_partition(harness)
    return CorePoint(harness, harness.core.begin_commit())


def aborting(harness: CoreHarness) -> CorePoint:
    with_a_partition(harness)
    return CorePoint(harness, harness.core.begin_abort())


def bumping_after_a_failed_record(harness: CoreHarness) -> CorePoint:
    harness.client.prepare_produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    point = producing(harness)
    harness.client.prepare_end_txn()
    return CorePoint(harness, harness.core.begin_abort(), point.future)


def bumping_after_an_upgrade(harness: CoreHarness) -> CorePoint:
    """Raise the epoch for the only reason there is where the client can't do it by itself."""
    with_a_partition(harness)
    harness.client.set_transaction_version(2)
    harness.client.prepare_end_txn()
    return CorePoint(harness, harness.core.begin_abort())


def adding_offsets(harness: CoreHarness) -> CorePoint:
    begin(harness)
    return CorePoint(harness, harness.send_offsets())


def finding_group(harness: CoreHarness) -> CorePoint:
    harness.client.prepare_add_offsets()
    return adding_offsets(harness)


def committing_offsets(harness: CoreHarness) -> CorePoint:
    point = finding_group(harness)
    harness.client.prepare_find_coordinator()
    return point


def producing(harness: CoreHarness) -> CorePoint:
    if harness.manager.is_transactional:
        begin(harness)
        harness.client.prepare_add_partitions()
    else:
        harness.start_idempotent(PRODUCER.producer_id, PRODUCER.producer_epoch)
    future = harness.send(key=b"k", value=b"v")
    harness.settle()
    return CorePoint(harness, future=future)


def producing_while_committing(harness: CoreHarness) -> CorePoint:
    point = producing(harness)
    return CorePoint(harness, harness.core.begin_commit(), point.future)


def producing_while_aborting(harness: CoreHarness) -> CorePoint:
    point = producing(harness)
    return CorePoint(harness, harness.core.begin_abort(), point.future)


POINTS: dict[str, Callable[[CoreHarness], CorePoint]] = {
    "FindCoordinator(txn)": initializing,
    "InitProducerId(init)": initializing_with_coordinator,
    "InitProducerId(bump)/TV1": bumping_after_a_failed_record,
    "InitProducerId(bump)/TV1nb": bumping_after_an_upgrade,
    "AddPartitionsToTxn": adding_partitions,
    "AddOffsetsToTxn": adding_offsets,
    "FindCoordinator(group)": finding_group,
    "TxnOffsetCommit": committing_offsets,
    "EndTxn(commit)": committing,
    "EndTxn(abort)": aborting,
    "InitProducerId(idempotent)": initializing_without_transactions,
    "Produce(1 record, logStartOffset=0, first batch,inTxn)": producing,
    "Produce(1 record, logStartOffset=0, first batch,committing)": producing_while_committing,
    "Produce(1 record, logStartOffset=0, first batch,aborting)": producing_while_aborting,
}


def reach(table: Table) -> CorePoint:
    """Return a fresh producer at a table's point. Its request is out."""
    name, mode = table["name"], table["mode"]
    harness = CoreHarness(
        transactional_id=None if mode == "idempotent" else "t",
        transaction_version=2 if mode == "TV2" else 1,
    )
    if mode == "TV1nb":
        harness.client.default_versions = NO_BUMP_VERSIONS
    way = POINTS.get(name) or POINTS[name.rpartition("/")[0]]
    point = way(harness)
    harness.run_for(1_000)  # long enough for new metadata to be asked for without a backoff
    return point


# --- requests and answers ---------------------------------------------------------------------


def kind_of(body: Request) -> str:
    """Name a request as the oracle does."""
    name = type(body).__name__.removesuffix("Request")
    if isinstance(body, FindCoordinatorRequest):
        return f"{name}({'group' if body.key_type is CoordinatorType.GROUP else 'txn'})"
    return name


def requests_of(harness: CoreHarness) -> list[str]:
    """Return the kinds of all requests but Metadata, in order."""
    bodies = (request.body for request in harness.client.requests)
    return [kind_of(body) for body in bodies if not isinstance(body, MetadataRequest)]


def answer(harness: CoreHarness, table: Table, code: int) -> None:
    """Answer the request that is out, and let the core take the answer in, but not go on."""
    (request,) = harness.client.outstanding.values()
    if isinstance(request.body, ProduceRequest):
        harness.client.answer_produce(request, code, base_offset=10, log_start_offset=0)
    else:
        identity = _identity_in_answer(table["name"])
        harness.client.answer(request, response_to(request.body, code, identity))
    for event in harness.client.take_due_events():
        harness.core.handle(event, harness.now_ms)
    harness.run_callbacks()


def _identity_in_answer(table_name: str) -> ProducerIdAndEpoch | None:
    if table_name.startswith("InitProducerId(bump)"):
        return NEXT_EPOCH
    if table_name.startswith("EndTxn") and table_name.endswith("TV2"):
        return NEXT_EPOCH
    return PRODUCER if table_name.startswith("InitProducerId") else None


# --- what is seen -----------------------------------------------------------------------------


def observe(table: Table, code: int) -> Row:
    """Bring a producer to a point, answer with a code, and return the visible outcome."""
    point = reach(table)
    harness = point.harness
    answer(harness, table, code)
    seen = _now(point) | _record(point)
    seen["in_txn"] = TP0 in harness.manager.progress.open.partitions
    sent = len(requests_of(harness))
    asked = len(harness.client.sent(ApiKey.METADATA))
    harness.run_until(
        lambda: len(requests_of(harness)) > sent, until_ms=harness.now_ms + RUN_ON_MS
    )
    seen["next_request"] = next(iter(requests_of(harness)[sent:]), None)
    seen["metadata_update"] = len(harness.client.sent(ApiKey.METADATA)) > asked
    return seen | {f"settled_{name}": value for name, value in _now(point).items()}


def _now(point: CorePoint) -> Row:
    manager = point.harness.manager
    seen = {
        "state": manager.machine.state.name,
        "last_error": _error(manager.machine.last_error),
        "epoch": manager.identity.producer_id_and_epoch.producer_epoch,
    }
    if point.result is not None:
        seen["result"] = _result(point.result)
        seen["result_error"] = _error(point.result.error)
    return seen


def _record(point: CorePoint) -> Row:
    future = point.future
    if future is None:
        return {}
    fate = "retry"
    if future.done():
        fate = "success" if future.error is None else "failed"
    return {
        "future": fate,
        "future_offset": future.metadata().offset if fate == "success" else None,
        "future_error": _error(future.error) if fate == "failed" else None,
        "next_seq": point.harness.manager.sequences.partitions.get_or_create(TP0).next_sequence,
    }


def _result(result: Any) -> str:
    if not result.is_completed:
        return "pending"
    return "done" if result.error is None else "failed"


def _error(error: BaseException | None) -> Row | None:
    if error is None:
        return None
    cause = error.__cause__
    return {
        "type": type(error).__name__,
        "cause": None if cause is None else type(cause).__name__,
    }
