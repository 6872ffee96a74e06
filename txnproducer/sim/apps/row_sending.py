"""Sending many records by one call, as `send_batch` does.

Owns: drawing rows, and sending them run by run. Must not know: the columns of data frames, the
contents of the logs. The judge treats the rows as records, each with a future of its own.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator
from functools import partial

from txnproducer._core.append.row_appender import RowRun
from txnproducer._core.append.row_placer import Span, merged
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.batches.batch_future import FutureBatchMetadata, RowsTaken
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._record.implementation import Rows
from txnproducer._record.rows import NO_PARTITION
from txnproducer.errors import KafkaError, KafkaTimeoutError, TransactionAbortedError
from txnproducer.records import TopicPartition
from txnproducer.sim.apps.process import Condition, Process
from txnproducer.sim.apps.sending import Draft, wait_to_append
from txnproducer.sim.world.history import Attempt, SentRows
from txnproducer.sim.world.options import TOPIC

_MOST_ROWS = 12
_LOOK_AT_EACH = 3
_NO_ROWS_EACH = 7
_PARTITION = 0  # the field of a span
_HEADERS = (("trace", b"1"), ("empty", None))


def send_rows(
    process: Process, attempt: Attempt, number: int
) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
    """Send rows as `send_batch` does: partition by partition, waiting where a record would."""
    transaction = process.core.transaction_number
    drafts = _drafts(process, attempt, number)
    sent = SentRows(FutureBatchMetadata(TOPIC, len(drafts), process))
    if attempt.calls:
        look_at_call(process, attempt.calls[-1])  # it may have ended
    attempt.calls.append(sent)
    start_ms = process.now_ms
    try:
        if number % _NO_ROWS_EACH == 0:
            process.core.check_can_append()  # as a call without rows does
        yield from _check_partition(process, attempt, drafts, start_ms)
        runs = yield from _runs(process, drafts, transaction, start_ms)
        while runs:
            run = runs.popleft()
            yield from _send_run(process, attempt, sent, drafts, run, start_ms)
            # The number of the row decides, not the rng, so that this look changes nothing in the
            # run.
            if run.next % _LOOK_AT_EACH == 0:
                look_at_call(process, sent)
            # After the other runs, so that each partition gets a batch in turn.
            if run.next < run.stop:
                runs.append(run)
    except KafkaError as error:
        # Its transaction is over, and the present one is another's.
        if not isinstance(error, TransactionAbortedError):
            # As a failed `send` does: a commit without these rows would be a torn one.
            process.core.fail_transaction(error)
        return error
    return None


def _drafts(process: Process, attempt: Attempt, number: int) -> list[Draft]:
    rng = process.rng
    are_keyed, are_placed = rng.random() < 0.3, rng.random() < 0.3
    drafts = []
    for row in range(1 + rng.randrange(_MOST_ROWS)):
        # Most rows and not all, so that a call mixes rows with and without a partition or key.
        partition = None
        if are_placed and rng.random() < 0.8:
            partition = rng.randrange(process.world.options.partition_count)
        key = b"%d" % rng.randrange(9) if are_keyed and rng.random() < 0.8 else None
        value = b"%s:%d-%d:" % (attempt.name.encode(), number, row)
        filling = b"." * rng.choice((0, 0, 10, 100))
        headers = _HEADERS if rng.random() < 0.05 else ()
        drafts.append(Draft(TOPIC, value + filling, key, headers, partition, is_mistake=False))
    return drafts


def _check_partition(
    process: Process, attempt: Attempt, drafts: list[Draft], start_ms: int
) -> Generator[tuple[Condition, int], bool, None]:
    """Refuse a partition that does not exist before any row is sent."""
    placed = [draft for draft in drafts if draft.partition is not None]
    if not placed:
        return
    # If the highest one exists, the others do.
    draft = max(placed, key=_partition)
    record = draft.record(process, start_ms, is_watched=False)
    outcome: AppendBlocked | FutureRecordMetadata | None = None
    is_first = True
    while is_first or isinstance(outcome, AppendBlocked):
        is_first = False
        if isinstance(outcome, AppendBlocked):
            outcome = yield from wait_to_append(process, draft, record, outcome, start_ms)
        if not isinstance(outcome, FutureRecordMetadata):
            outcome = process.core.check_partition(
                TOPIC, _partition(draft), process.now_ms, outcome
            )
    if outcome is not None:
        record.future = outcome
        attempt.records.append(record)
        raise outcome.error or KafkaError("a row failed without an error")


def _partition(draft: Draft) -> int:
    return NO_PARTITION if draft.partition is None else draft.partition


def _runs(
    process: Process, drafts: list[Draft], transaction: int, start_ms: int
) -> Generator[tuple[Condition, int], bool, deque[RowRun]]:
    values = tuple(draft.value for draft in drafts)
    keys = tuple(draft.key for draft in drafts)
    headers = tuple(draft.headers for draft in drafts)
    rows = Rows(len(drafts), values, keys, headers, start_ms)
    are_keys_counted = any(keys) and not process.config.partitioner_ignore_keys
    if not are_keys_counted and not any(draft.partition is not None for draft in drafts):
        return deque([RowRun(rows, None, None, transaction, 0, rows.count)])
    count = (yield from _count_partitions(process)) if are_keys_counted else 0
    places = array("i", map(_partition, drafts))
    order, spans = rows.by_partition(places, count)
    # Rows without a partition are placed beforehand if others have one: in each partition, all
    # rows keep their order.
    if len(spans) > 1 and spans[0][_PARTITION] == NO_PARTITION:
        placed = yield from _placed(process, rows, order, spans[0])
        order, spans = merged(order, [*spans[1:], *placed])
    return deque(
        RowRun(rows, order, None if place == NO_PARTITION else place, transaction, start, stop)
        for place, start, stop in spans
    )


def _placed(
    process: Process, rows: Rows, order: array[int], span: Span
) -> Generator[tuple[Condition, int], bool, list[Span]]:
    """Choose partitions for rows without one that lie among rows with one."""
    placer = process.core.row_placer
    _, start, stop = span
    placed: list[Span] = []
    while start < stop:
        choice = placer.choose(TOPIC, is_first=not placed)
        if choice is None:
            yield from _count_partitions(process)
            continue
        partition, room_bytes = choice
        reached, size_bytes = rows.reach(order, start, stop, room_bytes)
        placer.note(TOPIC, size_bytes)
        # One choice for as many rows as the open batch takes: `send` switches where it ends
        # (KIP-794).
        placed.append((partition, start, reached))
        start = reached
    return placed


def _count_partitions(process: Process) -> Generator[tuple[Condition, int], bool, int]:
    core = process.core
    until_ms = process.now_ms + process.config.max_block_ms
    has_asked = False
    while True:
        partitions = core.partitions_for(TOPIC, process.now_ms, has_asked=has_asked)
        if partitions is not None:
            return len(partitions)
        if process.now_ms >= until_ms:
            raise KafkaTimeoutError("the topic is not known in time")
        has_asked = True
        yield partial(core.is_topic_decided, TOPIC), until_ms


def _send_run(
    process: Process,
    attempt: Attempt,
    sent: SentRows,
    drafts: list[Draft],
    run: RowRun,
    start_ms: int,
) -> Generator[tuple[Condition, int], bool, None]:
    """Send the part of a run that one batch takes, and record it."""
    outcome: RowsTaken | AppendBlocked | FutureRecordMetadata | None = None
    row = run.next if run.order is None else run.order[run.next]
    record = drafts[row].record(process, start_ms, is_watched=False)
    while not isinstance(outcome, RowsTaken):
        blocked = outcome if isinstance(outcome, AppendBlocked) else None
        if blocked is not None:
            outcome = yield from wait_to_append(process, drafts[row], record, blocked, start_ms)
        if not isinstance(outcome, FutureRecordMetadata):
            outcome = process.core.rows.append(TOPIC, run, process.now_ms, blocked)
            process.core.claim_append(outcome)
        if isinstance(outcome, FutureRecordMetadata):
            record.future = outcome
            attempt.records.append(record)
            raise outcome.error or KafkaError("a row failed without an error")
    sent.future.add(outcome, run.order, 0)
    for index in range(outcome.count):
        place = outcome.start + index
        row = place if run.order is None else run.order[place]
        draft = drafts[row]
        record = draft.record(process, start_ms, is_watched=False)
        record.place = outcome.result.topic_partition
        record.future = FutureRecordMetadata(
            outcome.result,
            outcome.first_index + index,
            start_ms,
            -1 if draft.key is None else len(draft.key),
            len(draft.value),
        )
        attempt.records.append(record)
        sent.records[row] = record
        _check_order(process, sent, record.place, row)


def _check_order(process: Process, sent: SentRows, place: TopicPartition, row: int) -> None:
    """Check that the rows of a partition have the order that a loop of `send` would give."""
    before = sent.last_rows.get(place, -1)
    if row < before:
        process.world.history.violate("order", f"row {row} behind row {before} in {place}")
    sent.last_rows[place] = row


def look_at_call(process: Process, sent: SentRows) -> None:
    """Ask the future of a call for its result in one of several ways, and check the answers."""
    future = sent.future
    is_done, told = future.done(), repr(future)
    error: KafkaError | None = None
    try:
        if future.taken_count % 2:
            error = future.exception(0)
        else:
            future.result(0)
    except KafkaError as raised:
        error = raised
    is_pending = not is_done and isinstance(error, KafkaTimeoutError) and "pending" in told
    own = [record.future.error for record in sent.records.values() if record.future is not None]
    if not (is_pending or (is_done and (error is None) == (not any(own)))):
        process.world.history.violate("told", f"{told}: {error!r}, its rows: {own}")
