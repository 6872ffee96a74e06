"""Sending single records, and the calls that only ask or are mistakes.

Owns: drawing a record, sending it with every wait of `send`, flushing, calls without effect,
misuse. Must not know: transactions' scripts (`workload.py`), the contents of the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from txnproducer._core.batches.append_blocked import AppendBlocked, BlockReason
from txnproducer._core.batches.results import FlushTicket, FutureRecordMetadata
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.sim.apps.interrupts import Interrupted
from txnproducer.sim.apps.process import Condition, Process, Script
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.history import Attempt, SentRecord
from txnproducer.sim.world.options import COMPACTED_TOPIC, TOPIC

# An interrupted call looks like one with an early time-out.
LONGEST_INTERRUPT_MS = 100
_OFFSETS = {TopicPartition(TOPIC, 0): OffsetAndMetadata(0)}
# Lengths around the four bytes that murmur2 takes at a time.
_KEY_SIZES = (0, 1, 2, 3, 5, 200)
_ROOM_FOR_KEYS = 100
_UNWATCHED_RATE = 0.1
_FAULTY_RATE = 0.01
_MISTAKE_RATE = 0.008


def _never() -> bool:
    return False


def sleep(process: Process, longest_ms: int) -> tuple[Condition, int]:
    """Return a wait for a drawn time."""
    return _never, process.now_ms + 1 + process.rng.randrange(longest_ms)


@dataclass(slots=True)
class Draft:
    """A record that an application is about to send: the arguments of `send`.

    Attributes:
        is_mistake: whether it cannot be written.
    """

    topic: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    is_mistake: bool

    def record(
        self, process: Process, start_ms: int, *, is_watched: bool, is_faulty: bool = False
    ) -> SentRecord:
        """Return the record that a process sends of it."""
        return SentRecord(
            process.world.history,
            TopicPartition(self.topic, -1),
            self.value,
            self.key,
            self.headers,
            self.partition,
            start_ms,
            is_watched,
            is_faulty,
        )


def _draft(
    process: Process, attempt: Attempt, number: int, partitions: Sequence[int] | None
) -> Draft:
    rng = process.rng
    filling = b"." * rng.choice((0, 0, 0, 10, 100, 400))
    drawn = rng.random()
    topic = TOPIC
    if drawn < 0.002:
        topic = "not a topic!"
    elif drawn < 0.004:
        topic = "nowhere"
    elif drawn < _MISTAKE_RATE:
        filling = b"." * (process.config.max_request_size + 1)
    elif drawn < process.world.compacted_rate:
        topic = COMPACTED_TOPIC
    is_keyed = topic == COMPACTED_TOPIC or drawn > 0.8
    # The smallest buffers have no room for the largest values with a long key.
    sizes = _KEY_SIZES if len(filling) <= _ROOM_FOR_KEYS else _KEY_SIZES[:-1]
    key = b"k" * rng.choice(sizes) + b"%d" % rng.randrange(9) if is_keyed else None
    if topic == COMPACTED_TOPIC and rng.random() < 0.02:
        key = None  # the broker refuses it
    partition = None
    if key is None and rng.random() < 0.7:
        count = process.world.partition_count(topic)
        # Sometimes choose a partition that does not exist: the topic might grow.
        partition = count if rng.random() < 0.004 else rng.randrange(count)
    if partitions is not None:
        partition = rng.choice(partitions)
    headers = (("trace", b"1"), ("empty", None)) if rng.random() < 0.05 else ()
    is_mistake = (
        drawn < _MISTAKE_RATE
        or partition == process.world.partition_count(topic)
        or (topic == COMPACTED_TOPIC and key is None)
    )
    return Draft(
        topic,
        f"{attempt.label or attempt.name}:{number}:".encode() + filling,
        key,
        headers,
        partition,
        is_mistake,
    )


def send(
    process: Process, attempt: Attempt, number: int, partitions: Sequence[int] | None = None
) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
    """Send a record as `send` does: wait for metadata and memory up to `max_block_ms`.

    Args:
        process: the process that sends.
        attempt: the attempt to which it belongs.
        number: the number of the record in its attempt.
        partitions: the partitions to choose from, or None for any.
    """
    core, draft = process.core, _draft(process, attempt, number, partitions)
    attempt.is_mistaken |= draft.is_mistake
    start_ms = process.now_ms
    is_watched = process.rng.random() >= _UNWATCHED_RATE
    is_faulty = process.rng.random() < _FAULTY_RATE
    record = draft.record(process, start_ms, is_watched=is_watched, is_faulty=is_faulty)
    outcome: FutureRecordMetadata | AppendBlocked | None = None
    while not isinstance(outcome, FutureRecordMetadata):
        if isinstance(outcome, AppendBlocked):
            outcome = yield from wait_to_append(process, draft, record, outcome, start_ms)
            if isinstance(outcome, FutureRecordMetadata):
                break
        append = partial(
            core.append,
            draft.topic,
            draft.value,
            draft.key,
            draft.headers,
            draft.partition,
            start_ms,
            record.on_delivery if record.is_watched else None,
            process.now_ms,
            outcome,
        )
        try:
            outcome = process.interrupts.run(append)
            core.claim_append(outcome)
        except KafkaError as error:
            return error
        except Interrupted as interrupted:
            for waiting in (outcome, interrupted.lost):
                if isinstance(waiting, AppendBlocked):
                    # As the shell does: a place in the queue for memory that nobody leaves blocks
                    # all others.
                    core.give_up_append(waiting)
            if interrupted.is_inside:
                _leave_append(process)
            return _after_interrupt(process, attempt, record, interrupted)
    told = outcome.metadata()
    record.place, record.future = TopicPartition(told.topic, told.partition), outcome
    attempt.records.append(record)
    return None


def _leave_append(process: Process) -> None:
    """Clean up after an exception in `send` like the shell, or leave a part to the next call."""
    process.core.give_up_unclaimed()
    if process.rng.random() < 1 / 2:
        process.core.finish_interrupted_call()


def _after_interrupt(
    process: Process, attempt: Attempt, record: SentRecord, interrupted: Interrupted
) -> KafkaError | None:
    """Continue without the record's future, or give up the transaction."""
    is_in = isinstance(interrupted.lost, FutureRecordMetadata)
    record.is_sent = None if interrupted.is_inside else is_in
    attempt.interrupted.append(record)
    if process.rng.random() < 1 / 2:
        return None
    return KafkaError("the application was interrupted", recovery="abort")


def wait_to_append(
    process: Process,
    draft: Draft,
    record: SentRecord,
    blocked: AppendBlocked,
    start_ms: int,
) -> Generator[tuple[Condition, int], bool, FutureRecordMetadata | AppendBlocked]:
    """Wait until another try is useful. After `max_block_ms` the record has failed."""
    core = process.core
    if process.is_looking_too_early():
        return blocked
    if blocked.reason is BlockReason.MEMORY:
        process.world.faults.counts[FaultKind.MEMORY_EXHAUSTED] += 1
    limit_ms = start_ms + process.config.max_block_ms
    if process.rng.random() < process.world.options.impatience:
        interrupted_ms = process.now_ms + 1 + process.rng.randrange(LONGEST_INTERRUPT_MS)
        limit_ms = min(limit_ms, interrupted_ms)
    is_possible = yield partial(core.append_can_proceed, blocked), limit_ms
    if is_possible:
        return blocked
    if _is_all_memory_free(process) and blocked.reason is BlockReason.MEMORY:
        # Another thread may be about to take some, and then not all memory is free any more.
        is_possible = yield partial(core.append_can_proceed, blocked), process.now_ms + 10
        if is_possible:
            return blocked
        if _is_all_memory_free(process):
            process.world.history.violate(
                "memory", f"{process.name}: all memory is free, and a record still waits"
            )
    record.has_timed_out = True
    waited_ms = process.now_ms - start_ms
    on_delivery = record.on_delivery if record.is_watched else None
    return core.time_out_append(
        blocked, draft.topic, draft.partition, on_delivery, waited_ms, process.now_ms
    )


def _is_all_memory_free(process: Process) -> bool:
    metrics = process.core.metrics()
    return metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


def both(process: Process, *scripts: Generator[tuple[Condition, int], bool, object]) -> Script:
    """Run scripts side by side, as threads do. Their return values are dropped."""
    running = {script: next(script, None) for script in scripts}
    while running := {script: wait for script, wait in running.items() if wait is not None}:
        waits = [wait for wait in running.values() if wait is not None]
        ready = [
            script
            for script, wait in running.items()
            if wait is not None and (wait[0]() or process.now_ms >= wait[1])
        ]
        if not ready:
            yield partial(_is_any, waits), min(until_ms for _, until_ms in waits)
            continue
        # Any of those that are ready: threads run in no certain order.
        script = process.rng.choice(ready)
        wait = running[script]
        try:
            running[script] = script.send(wait is not None and wait[0]())
        except StopIteration:
            del running[script]


def _is_any(waits: list[tuple[Condition, int]]) -> bool:
    return any(condition() for condition, _ in waits)


def look_around(process: Process) -> Script:
    """Make calls that only ask."""
    core = process.core
    if core.metrics()["buffer-available-bytes"] < 0:
        process.world.history.violate("memory", f"{process.name} has lent more than it has")
    until_ms = process.now_ms + process.config.max_block_ms
    has_asked = False
    try:
        while core.partitions_for(TOPIC, process.now_ms, has_asked=has_asked) is None:
            if process.now_ms >= until_ms:
                break
            has_asked = True
            yield partial(core.is_topic_decided, TOPIC), until_ms
    except KafkaError as error:
        process.judge.refused(process, "partitions_for", error)
    if process.transactional_id is not None and not process.has_failed:
        # Without offsets there is nothing to send, so it succeeds at once, as in Java.
        nothing = core.send_offsets_to_transaction({}, ConsumerGroupMetadata("group"))
        if not nothing.is_successful:
            process.world.history.violate("told", f"{process.name}: no offsets, no success")


def misuse(process: Process, *, is_between: bool = False) -> None:
    """Make a call that is not allowed now, and check that it is refused and changes nothing.

    Args:
        process: the process that calls.
        is_between: whether no transaction is open; otherwise one is.
    """
    core, manager = process.core, process.manager
    calls: dict[str, Callable[[], object]] = {
        "begin": core.begin_transaction,
        "init": core.init_transactions,
    }
    if is_between:
        group = ConsumerGroupMetadata("group")
        calls = {
            "commit": core.begin_commit,
            "abort": core.begin_abort,
            "offsets": lambda: core.send_offsets_to_transaction(_OFFSETS, group),
            "send": lambda: append(process, b"outside a transaction"),
        }
        # Before `init_transactions` has succeeded there is nothing to begin.
        if not manager.identity.has_producer_id:
            calls["begin"] = core.begin_transaction
    core.finish_interrupted_call()  # it may change the state, and the call would do it first
    state = manager.machine.state
    if state is TransactionState.ABORTABLE_ERROR:
        # The new epoch that an abort asks for was refused, so a second abort is allowed.
        calls.pop("abort", None)
    name, call = process.rng.choice(list(calls.items()))
    try:
        call()
    except KafkaError:
        if manager.machine.state is state:
            return
    process.world.history.violate(
        "state", f"{process.name}: {name}; {state.name} became {manager.machine.state.name}"
    )


def append(process: Process, value: bytes) -> FutureRecordMetadata:
    """Send a record without waiting.

    Raises:
        KafkaTimeoutError: the record would have to wait.
        KafkaError: the record failed at once.
    """
    outcome = begin_append(process, TOPIC, value)
    if isinstance(outcome, FutureRecordMetadata):
        return outcome
    process.core.give_up_append(outcome)
    raise KafkaTimeoutError("no time to wait")


def begin_append(
    process: Process, topic: str, value: bytes, blocked: AppendBlocked | None = None
) -> FutureRecordMetadata | AppendBlocked:
    """Send a record, or return the reason to wait. Raise its error if it failed at once."""
    now_ms = process.now_ms
    outcome = process.core.append(topic, value, None, (), 0, now_ms, None, now_ms, blocked)
    process.core.claim_append(outcome)
    if isinstance(outcome, FutureRecordMetadata) and outcome.done():
        error = outcome.exception(0)
        if error is not None:
            # The core counts it as a failed record, and no attempt has it.
            process.failed_appends += 1
            raise error
    return outcome


def look_at_futures(process: Process, attempt: Attempt) -> None:
    """Ask a record's future in each way, and check that the answers agree."""
    futures = [record.future for record in attempt.records if record.future is not None]
    if not futures:
        return
    future = process.rng.choice(futures)
    is_done, told = future.done(), repr(future)
    error: KafkaError | None = None
    try:
        result = future.exception(0) if process.rng.random() < 0.5 else future.result(0)
    except KafkaError as raised:
        error, result = raised, None
    is_late = isinstance(error, KafkaTimeoutError)
    # A record that expired has the same class, so the rest is needed to tell the two apart.
    is_pending = error is not None and not is_done and is_late and "pending" in told
    own = future.error
    is_same = is_done and (repr(error or result) == repr(own) if own else error is None)
    if not (is_pending or is_same):
        process.world.history.violate("told", f"{told}: {error!r}, {result!r}")


def flush(process: Process) -> Script:
    """Flush, and check that every record is done within the delivery time-out."""
    core = process.core
    ticket: FlushTicket | None = None
    while ticket is None:
        try:
            ticket = process.interrupts.run(partial(core.begin_flush, process.now_ms))
        except Interrupted:
            continue
    limit_ms = process.config.delivery_timeout_ms + process.world.slack_ms
    is_done = yield ticket.is_done, process.now_ms + limit_ms
    # Also after a time-out: while a flush is under way, no batch lingers.
    core.end_flush(ticket)
    if not is_done:
        process.world.history.violate("hangs", f"{process.name}: flush, {limit_ms} ms")
