"""What the simulated applications do: all that the API allows, in random order.

Why it exists: the scripts use the core exactly as `TransactionalProducer` does: a call begins,
waits up to `max_block_ms`, acknowledges, raises; after an error they do what its `recovery` says.
Owns: the scripts, and the notes of what they were told (`history.py`). Must not know: what the
logs say, which faults there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from txnproducer._core.append_blocked import AppendBlocked, BlockReason
from txnproducer._core.commit_evidence import resolve
from txnproducer._core.results import FutureRecordMetadata
from txnproducer._core.txn_result import TransactionalRequestResult
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from txnproducer.sim.faults import FaultKind
from txnproducer.sim.history import Attempt, SentRecord
from txnproducer.sim.process import Condition, Process, Script

TOPIC = "topic"
COMPACTED_TOPIC = "compacted"
# An interrupted call looks like one that timed out early.
_INTERRUPT_RATE = 0.03
_INTERRUPT_MS = 40
_PATIENCE = 6
# How an abort says that the commit was faster.
_LATE = ("could not be aborted", "is committed")


@dataclass(slots=True)
class Ended:
    """How a call ended.

    Attributes:
        error: None for success.
        is_refused: whether it never began.
        is_timed_out: whether it goes on, and its caller waits no longer.
        result: the operation.
    """

    error: KafkaError | None
    is_refused: bool = False
    is_timed_out: bool = False
    result: TransactionalRequestResult | None = None


def _never() -> bool:
    return False


def _sleep(process: Process, longest_ms: int) -> tuple[Condition, int]:
    return _never, process.now_ms + 1 + process.dice.randrange(longest_ms)


def _call(
    process: Process, begin: Callable[[], TransactionalRequestResult]
) -> Generator[tuple[Condition, int], bool, Ended]:
    """Do what a blocking call does."""
    try:
        result = begin()
    except KafkaError as error:
        return Ended(error, is_refused=True)
    limit_ms = process.config.max_block_ms
    if process.dice.random() < _INTERRUPT_RATE:
        limit_ms = min(limit_ms, _INTERRUPT_MS)
    is_done = yield (lambda: result.is_completed), process.now_ms + limit_ms
    if not is_done:
        return Ended(KafkaTimeoutError(), is_timed_out=True, result=result)
    result.acknowledge()
    return Ended(result.error, result=result)


# --- transactions -------------------------------------------------------------------------------


def transactional_script(process: Process) -> Script:
    """Make transactions until the run has enough of them."""
    simulator = process.simulator
    while simulator.wants_more(process):
        is_ready = yield from _initialize(process)
        while is_ready and simulator.wants_more(process):
            is_ready = yield from _Transaction(process).run()
            if is_ready and (process.dice.random() < 0.02 or simulator.must_begin_anew(process)):
                break  # a deployment: close, and begin anew
        yield from _close(process)
        if simulator.wants_more(process):
            yield _sleep(process, 300)
            process.renew()


def _initialize(process: Process) -> Generator[tuple[Condition, int], bool, bool]:
    for _ in range(_PATIENCE):
        ended = yield from _call(process, process.core.init_transactions)
        error = ended.error
        if error is None:
            return True
        if not ended.is_timed_out:
            process.simulator.checkers.init_failed(process, error)
            if error.recovery != "resume":
                return False
            yield _sleep(process, 500)
    process.simulator.checkers.gave_up(process, "init_transactions")
    return False


def _close(process: Process) -> Script:
    """Close the producer, in good order or by force, and look at what it leaves behind."""
    core, checkers = process.core, process.simulator.checkers
    limit_ms = process.config.delivery_timeout_ms
    is_hasty = process.dice.random() < 0.2
    if is_hasty:
        limit_ms = process.dice.randrange(100)
    core.initiate_close(process.now_ms)
    is_closed = yield (lambda: core.is_closed), process.now_ms + limit_ms
    if is_closed:
        checkers.closed_in_time(process)
    else:
        if not is_hasty:
            checkers.gave_up(process, "close")
        core.force_close(process.now_ms)
    for event in process.network.close():
        core.handle(event, process.now_ms)
    for batch in core.take_callbacks():
        batch.run()
        core.finish_callbacks(batch)
    checkers.closed(process)


class _Transaction:
    """One transaction, from begin to whatever end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._simulator = process.simulator
        self._attempt = process.simulator.new_attempt(process)
        self._attempt.identity = process.manager.producer_id_and_epoch
        self._commit: TransactionalRequestResult | None = None

    def run(self) -> Generator[tuple[Condition, int], bool, bool]:
        """Make it; return whether the producer can go on."""
        try:
            self._process.core.begin_transaction()
        except KafkaError as refusal:
            self._attempt.claim = "aborted"
            self._attempt.errors.append(refusal)
            self._simulator.checkers.refused(self._process, "begin_transaction", refusal)
            return False
        error = yield from self._fill()
        if error is not None:
            self._attempt.errors.append(error)
        dice = self._process.dice
        if error is None and dice.random() < 0.01:
            return False  # close() has to abort it
        if error is None and dice.random() >= self._simulator.options.abort_rate:
            return (yield from self._commit_it())
        if error is not None and error.recovery not in ("abort", "resume"):
            self._attempt.claim = "aborted"
            return False
        return (yield from self._abort_it())

    def _fill(self) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
        dice, options = self._process.dice, self._simulator.options
        offsets_at = dice.randrange(4) if dice.random() < options.offsets_rate else -1
        count = dice.randrange(7)
        for number in range(count):
            error = yield from _send(self._process, self._attempt, number)
            if error is not None:
                return error
            drawn = dice.random()
            if number == offsets_at:
                offsets_at = -1
                error = yield from self._send_offsets()
                if error is not None:
                    return error
            elif drawn < 0.08:
                yield _sleep(self._process, 400)
            elif drawn < 0.13:
                yield from _flush(self._process)
            elif drawn < 0.15:
                yield from _look_around(self._process)
            elif drawn < 0.16:
                _misuse(self._process)
        if offsets_at >= 0:
            return (yield from self._send_offsets())
        return None

    def _send_offsets(self) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
        process, attempt = self._process, self._attempt
        group_id = self._simulator.group_of(process)
        group = self._simulator.cluster.group_offsets(group_id).group(group_id)
        member = next(iter(group.members), "")
        metadata = ConsumerGroupMetadata(group_id, group.generation_id, member)
        attempt.group_id, attempt.offset = group_id, self._simulator.next_offset()
        count = 1 + process.dice.randrange(self._simulator.options.partition_count)
        attempt.offset_places = tuple(TopicPartition(TOPIC, number) for number in range(count))
        told = OffsetAndMetadata(attempt.offset, attempt.name)
        offsets = dict.fromkeys(attempt.offset_places, told)
        for _ in range(_PATIENCE):
            ended = yield from _call(
                process, lambda: process.core.send_offsets_to_transaction(offsets, metadata)
            )
            if not ended.is_timed_out:
                attempt.are_offsets_sent = ended.error is None
                return ended.error
        attempt.has_given_up = True
        self._simulator.checkers.gave_up(process, "send_offsets_to_transaction")
        return KafkaError("the application has no more patience", recovery="abort")

    def _commit_it(self) -> Generator[tuple[Condition, int], bool, bool]:
        process, attempt = self._process, self._attempt
        attempt.is_commit_asked = True
        for _ in range(_PATIENCE):
            ended = yield from _call(process, process.core.begin_commit)
            self._commit = ended.result or self._commit
            error = ended.error
            if error is None:
                attempt.claim = "committed"
                self._simulator.checkers.committed(process, attempt)
                return True
            if not ended.is_timed_out:
                return (yield from self._after_failed_commit(error))
            if process.dice.random() < 0.3:
                break
        else:
            self._simulator.checkers.gave_up(process, "commit_transaction")
        attempt.has_given_up = True
        return (yield from self._abort_it())

    def _after_failed_commit(
        self, error: KafkaError
    ) -> Generator[tuple[Condition, int], bool, bool]:
        self._attempt.errors.append(error)
        if isinstance(error, CommitOutcomeUnknownError):
            self._resolve()
        if error.recovery == "abort":
            return (yield from self._abort_it())
        if self._attempt.claim == "open":
            self._attempt.claim = "aborted"
        self._simulator.checkers.refused(self._process, "commit_transaction", error)
        return False

    def _abort_it(self) -> Generator[tuple[Condition, int], bool, bool]:
        process, attempt = self._process, self._attempt
        for _ in range(_PATIENCE):
            ended = yield from _call(process, process.core.begin_abort)
            error = ended.error
            if error is None:
                if attempt.claim == "open":
                    attempt.claim = "aborted"
                return True
            if isinstance(error, IllegalStateError) and any(word in str(error) for word in _LATE):
                return (yield from self._learn_of_commit(ended))
            if not ended.is_timed_out:
                attempt.errors.append(error)
                self._note_end(error)
                self._simulator.checkers.refused(process, "abort_transaction", error)
                return False
        self._simulator.checkers.gave_up(process, "abort_transaction")
        attempt.has_given_up = True
        yield from _close(process)
        self._note_end(KafkaError("closed"))
        return False

    def _learn_of_commit(self, ended: Ended) -> Generator[tuple[Condition, int], bool, bool]:
        """Go on after an abort that came too late: the commit was carried out."""
        process, attempt = self._process, self._attempt
        if ended.is_refused:
            again = yield from _call(process, process.core.begin_commit)
            if again.is_timed_out:
                yield from _close(process)
                self._note_end(KafkaError("closed"))
                return False
            if again.error is not None:
                self._note_end(again.error)
                return False
        elif self._commit is not None and not self._commit.is_successful:
            self._simulator.history.violate(
                "told", f"{attempt.name}: abort says committed, the commit {self._commit}"
            )
        attempt.claim = "committed"
        return True

    def _resolve(self) -> None:
        """Ask the coordinator, as `resolve_outcome` does; what it proves is claimed then."""
        manager, name = self._process.manager, self._process.transactional_id or ""
        commit, again = manager.last_commit, manager.may_begin_again
        known = self._simulator.cluster.transaction_coordinator(name).find(name)
        self._attempt.claim = "unknown"
        if known is not None and commit is not None:
            described = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
            self._attempt.claim = resolve(
                commit, known.state.value, described, may_begin_again=again
            )

    def _note_end(self, error: KafkaError) -> None:
        """Note what a producer that has ended says about the transaction."""
        attempt, commit = self._attempt, self._commit
        told = error if commit is None or commit.error is None else commit.error
        if isinstance(error, CommitOutcomeUnknownError):
            told = error
        if commit is not None and commit.is_successful:
            attempt.claim = "committed"
        elif isinstance(told, CommitOutcomeUnknownError):
            self._resolve()
        elif attempt.claim == "open":
            attempt.claim = "aborted"


# --- records ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A record that an application is about to send: the arguments of `send`."""

    topic: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None


def _draft(process: Process, attempt: Attempt, number: int) -> _Draft:
    dice = process.dice
    filling = b"." * dice.choice((0, 0, 0, 10, 100, 400))
    drawn = dice.random()
    topic = TOPIC
    if drawn < 0.004:
        topic = "nowhere"
    elif drawn < 0.008:
        filling = b"." * (process.config.max_request_size + 1)
    elif drawn < 0.1:
        topic = COMPACTED_TOPIC
    key = b"%d" % dice.randrange(9) if topic == COMPACTED_TOPIC or drawn > 0.8 else None
    if topic == COMPACTED_TOPIC and dice.random() < 0.02:
        key = None  # which the broker refuses
    partition = None
    if key is None and dice.random() < 0.7:
        partition = dice.randrange(process.simulator.options.partition_count)
    headers = (("trace", b"1"), ("empty", None)) if dice.random() < 0.05 else ()
    return _Draft(topic, f"{attempt.name}:{number}:".encode() + filling, key, headers, partition)


def _send(
    process: Process, attempt: Attempt, number: int
) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
    """Send a record as `send` does: wait for metadata and memory up to `max_block_ms`."""
    core, draft = process.core, _draft(process, attempt, number)
    start_ms = process.now_ms
    record = SentRecord(
        process.simulator.history,
        TopicPartition(draft.topic, -1),
        draft.value,
        draft.key,
        draft.headers,
        draft.partition,
        start_ms,
    )
    outcome: FutureRecordMetadata | AppendBlocked | None = None
    while not isinstance(outcome, FutureRecordMetadata):
        if isinstance(outcome, AppendBlocked):
            outcome = yield from _wait_to_append(process, draft, record, outcome, start_ms)
            if isinstance(outcome, FutureRecordMetadata):
                break
        try:
            outcome = core.append(
                draft.topic,
                draft.value,
                draft.key,
                draft.headers,
                draft.partition,
                start_ms,
                record.on_delivery,
                process.now_ms,
                outcome,
            )
        except KafkaError as error:
            return error
    told = outcome.metadata()
    record.place, record.future = TopicPartition(told.topic, told.partition), outcome
    attempt.records.append(record)
    return None


def _wait_to_append(
    process: Process,
    draft: _Draft,
    record: SentRecord,
    blocked: AppendBlocked,
    start_ms: int,
) -> Generator[tuple[Condition, int], bool, FutureRecordMetadata | AppendBlocked]:
    """Wait until it is worth trying again; after `max_block_ms` the record has failed."""
    core = process.core
    if blocked.reason is BlockReason.MEMORY:
        process.simulator.faults.counts[FaultKind.MEMORY_EXHAUSTED] += 1
    limit_ms = start_ms + process.config.max_block_ms
    if process.dice.random() < _INTERRUPT_RATE:
        limit_ms = min(limit_ms, process.now_ms + _INTERRUPT_MS)
    is_possible = yield partial(core.append_can_proceed, blocked), limit_ms
    if is_possible:
        return blocked
    record.waited_in_vain = True
    waited_ms = process.now_ms - start_ms
    return core.time_out_append(
        blocked, draft.topic, draft.partition, record.on_delivery, waited_ms, process.now_ms
    )


def _look_around(process: Process) -> Script:
    """Make the calls that only ask."""
    core = process.core
    if core.metrics()["buffer-available-bytes"] < 0:
        process.simulator.history.violate("memory", f"{process.name} has lent more than it has")
    until_ms = process.now_ms + process.config.max_block_ms
    try:
        while core.partitions_for(TOPIC, process.now_ms) is None and process.now_ms < until_ms:
            yield partial(core.is_topic_decided, TOPIC), until_ms
    except KafkaError as error:
        process.simulator.checkers.refused(process, "partitions_for", error)


def _misuse(process: Process) -> None:
    """Make a call that does not fit, and see it refused, with nothing changed."""
    core, manager = process.core, process.manager
    calls: tuple[Callable[[], object], ...] = (core.begin_transaction, core.init_transactions)
    state = manager.state
    call = process.dice.choice(calls)
    try:
        call()
    except KafkaError:
        if manager.state is state:
            return
    process.simulator.history.violate(
        "state", f"{process.name}: {call} in a transaction; {state} became {manager.state}"
    )


def _flush(process: Process) -> Script:
    """Flush; every record's fate is known within the delivery time-out."""
    core = process.core
    ticket = core.begin_flush(process.now_ms)
    limit_ms = process.config.delivery_timeout_ms + process.simulator.slack_ms
    is_done = yield ticket.is_done, process.now_ms + limit_ms
    core.end_flush(ticket)
    if not is_done:
        process.simulator.history.violate("hangs", f"{process.name}: flush, {limit_ms} ms")


def idempotent_script(process: Process) -> Script:
    """Send records without transactions until the run has enough."""
    simulator = process.simulator
    while simulator.wants_more(process):
        attempt = simulator.new_attempt(process)
        for number in range(process.dice.randrange(12)):
            error = yield from _send(process, attempt, number)
            if error is not None:
                break
            if process.dice.random() < 0.1:
                yield _sleep(process, 400)
        yield from _flush(process)
        simulator.checkers.plain_ended(process, attempt)
        is_deployed = process.dice.random() < 0.05 or simulator.must_begin_anew(process)
        if process.has_failed or is_deployed:
            yield from _close(process)
            yield _sleep(process, 300)
            process.renew()
        else:
            yield _sleep(process, 50)
    yield from _close(process)
