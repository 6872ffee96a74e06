"""A thread that sends and flushes beside all other calls of its process.

Why it exists: `send` may be called from many threads while one begins and ends transactions. A
record that is taken belongs to the transaction that is open at that moment, which its sender does
not know.
Owns: the companion of a producer, its records, and the transactions that each may be in. Must not
know: how transactions end.

Rules:
* A record that was taken before a commit began is in it, and no later one.
* A call between two transactions is refused. One while a transaction stays open is not.
* Where a call overlaps an end and the next begin, the record may be in either transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from txnproducer.errors import IllegalStateError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TopicPartition
from txnproducer.sim.stack.calls import InterruptError, ServiceCalls
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.options import TOPIC
from txnproducer.sim.stack.sending import OF_HELPERS, send_stamped
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt, History, SentRecord

__all__ = ["Companion", "Origin", "RecordsBeside", "TransactionSpans"]

_SEND: Final = "send beside"
_FLUSH: Final = "flush beside"
_FLUSHES: Final = 0.25


@dataclass(frozen=True, slots=True)
class Origin:
    """The producer that transactions come from.

    Attributes:
        service: the name of its process.
        transactional_id: its id.
        incarnation: its number in the process.
    """

    service: str
    transactional_id: str
    incarnation: int

    @property
    def name(self) -> str:
        """A name of the producer, unique in the run."""
        return f"{self.service}.{self.incarnation}"

    def new_attempt(self, history: History) -> Attempt:
        """Return a transaction, and enter it in the history."""
        number = len(history.attempts)
        attempt = Attempt(
            f"{self.name}.{number}", self.service, self.transactional_id, self.incarnation, number
        )
        history.attempts.append(attempt)
        return attempt


@dataclass(slots=True)
class TransactionSpans:
    """The transactions of a producer in their order, for threads that do not begin them.

    Attributes:
        number: that of the present or the last one, from 1.
        attempts: the transactions, by their numbers. One that was not entered has none.
        is_open: whether one is open, and no thread has begun to end it.
        is_over: whether none is: the end of the last one has returned, or none has begun.
        changes: how often that has changed.
    """

    number: int = 0
    attempts: dict[int, Attempt] = field(default_factory=dict)
    is_open: bool = False
    is_over: bool = True
    changes: int = 0

    @property
    def first(self) -> int:
        """The number of the first one that can take a record of a call that begins now."""
        return self.number + self.is_over

    def begins(self) -> None:
        """Note that one is about to begin."""
        self.number += 1
        self._change(is_open=False)

    def begun(self, attempt: Attempt) -> None:
        """Note that it has begun."""
        self.attempts[self.number] = attempt
        self._change(is_open=True)

    def ends(self, *, has_returned: bool = False) -> None:
        """Note that it is about to end, or that a call to end it has returned without an error."""
        self._change(is_open=False, is_over=has_returned)

    def _change(self, *, is_open: bool, is_over: bool = False) -> None:
        self.is_open = is_open
        self.is_over = is_over
        self.changes += 1


@dataclass(slots=True)
class SentBeside:
    """A record, and the transactions that it may be in.

    Attributes:
        record: the record.
        first: the number of the transaction in which its call began. If it began between two, that
            of the second.
        last: that in which its call returned; None while it is under way.
    """

    record: SentRecord
    first: int
    last: int | None = None


class RecordsBeside:
    """The records of a companion, in the order of their calls.

    Args:
        judge: of those that are in no transaction.
        history: takes the records in the end.
        origin: of the producer.
        spans: its transactions.
    """

    def __init__(
        self, judge: StackJudge, history: History, origin: Origin, spans: TransactionSpans
    ) -> None:
        self._judge = judge
        self._history = history
        self._origin = origin
        self._spans = spans
        self._sent: list[SentBeside] = []

    @property
    def sent(self) -> list[SentRecord]:
        """The records."""
        return [each.record for each in self._sent]

    def add(self, record: SentRecord) -> SentBeside:
        """Note that the call for a record begins."""
        self._sent.append(SentBeside(record, self._spans.first))
        return self._sent[-1]

    def returned(self, sent: SentBeside) -> None:
        """Note that the call for a record has returned, and judge it if none could take it."""
        # Last in each call: from now on the record counts for the end of its transaction.
        sent.last = self._spans.number
        if sent.record.is_sent and sent.last < sent.first:
            self._judge.violate("state", f"{sent.record.value!r} is in no transaction")

    def surely_in(self, attempt: Attempt) -> list[SentRecord]:
        """Return the records that must be in a transaction if it is committed."""
        attempts = self._spans.attempts
        return [
            sent.record
            for sent in self._sent
            if sent.record.is_sent
            and sent.first == sent.last
            and attempts.get(sent.first) is attempt
        ]

    def enter_records(self) -> None:
        """Give each record to the transaction that it is in, as far as that is known."""
        for sent in self._sent:
            last = self._spans.number if sent.last is None else sent.last
            attempts = [self._attempt(number) for number in range(sent.first, last + 1)]
            if not attempts:
                continue  # no transaction could take it, so nobody has sent it
            if len(attempts) == 1 and sent.record.is_sent:
                attempts[0].records.append(sent.record)
            else:
                _enter_in_one(sent.record, attempts)

    def _attempt(self, number: int) -> Attempt:
        attempts = self._spans.attempts
        if number not in attempts:
            # Its begin was refused, interrupted or killed: nothing of it may be visible.
            attempts[number] = self._origin.new_attempt(self._history)
            attempts[number].is_crashed = True
        return attempts[number]


class Companion:
    """A thread beside that of a producer's transactions. It begins at once.

    Args:
        world: of the service.
        judge: of its calls.
        producer: takes the records.
        origin: of the producer.
        spans: its transactions.
    """

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        producer: TransactionalProducer,
        origin: Origin,
        spans: TransactionSpans,
    ) -> None:
        name = f"{origin.name}-companion"
        self._world = world
        self._judge = judge
        self._producer = producer
        self._origin = origin
        self._spans = spans
        self._name = name
        self._rng = world.new_rng(name)
        self._calls = ServiceCalls(world, judge, name, self._rng)
        self._records = RecordsBeside(judge, world.history, origin, spans)
        self._must_end = False
        judge.companions.append(self._records)
        self._thread = world.platform.thread(self._run, name)
        self._thread.start()

    def end(self) -> None:
        """Make no further call, and wait for the one under way."""
        self._must_end = True
        self._thread.join()

    def _run(self) -> None:
        while not self._must_end:
            # Several calls in a row, or a pause in which a transaction may begin and end.
            self._calls.sleep(10 ** self._rng.uniform(-4, -0.3))
            call = self._flush if self._rng.random() < _FLUSHES else self._send
            call()

    def _flush(self) -> None:
        sent = self._records.sent
        began = self._judge.begun()
        _, error = self._calls.call(_FLUSH, self._world.delivery_ms, self._producer.flush)
        if error is None:
            self._judge.flushed(self._name, sent)
        elif began.is_calm and not self._is_closed:
            self._judge.needless(self._name, _FLUSH, error)

    def _send(self) -> None:
        record, spans = self._new_record(), self._spans
        sent = self._records.add(record)
        was_open, changes, began = spans.is_open, spans.changes, self._judge.begun()
        is_given = self._rng.random() < 0.5
        future, error = self._calls.call(
            _SEND,
            self._world.max_block_ms,
            lambda: send_stamped(self._producer, record, record.on_delivery, is_given=is_given),
        )
        stayed_open = was_open and spans.changes == changes
        if error is None:
            record.future = future
            # One that failed in its wait for memory was not taken. An open transaction has to fail
            # with it, and one that ended meanwhile lacks nothing.
            has_failed = future.done() and future.error is not None
            record.is_sent = None if has_failed and not stayed_open else True
        elif not isinstance(error, InterruptError):
            record.is_sent = False
            if stayed_open:
                self._judge_refusal(error, is_calm=began.is_calm)
        self._records.returned(sent)

    def _judge_refusal(self, error: BaseException, *, is_calm: bool) -> None:
        if is_calm:
            self._judge.needless(self._name, _SEND, error)
        is_well = not self._is_closed and self._producer.transaction_state == "IN_TRANSACTION"
        if isinstance(error, IllegalStateError) and is_well:
            self._judge.violate("state", f"{self._name}: refused in a transaction: {error!r}")

    @property
    def _is_closed(self) -> bool:
        return self._producer._refusal is not None  # noqa: SLF001 - the judge looks inside

    def _new_record(self) -> SentRecord:
        filling = "." * self._rng.choice((0, 0, 40, 400))
        return SentRecord(
            self._world.history,
            TopicPartition(TOPIC, OF_HELPERS),
            f"{self._name}.{len(self._records.sent)}.{filling}".encode(),
            partition=OF_HELPERS,
            timestamp_ms=self._world.platform.wall_clock_ms(),
            # Until the call returns: it may be taken, as after an interrupt.
            is_sent=None,
        )


def _enter_in_one(record: SentRecord, attempts: Sequence[Attempt]) -> None:
    """Give a record that may be in several transactions, or in none, to the likeliest one."""
    by_claim = {attempt.final_claim: attempt for attempt in attempts}
    # It must be visible only if each transaction that may have it is.
    if record.is_sent and set(by_claim) != {"committed"}:
        record.is_sent = None
    # If one may be visible, then the record may be, and otherwise not.
    likeliest = by_claim.get("committed") or by_claim.get("unknown") or attempts[-1]
    likeliest.interrupted.append(record)
