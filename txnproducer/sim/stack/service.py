"""A service in virtual time: a process that writes transactions as its users would.

Owns: the calls of the public interface, the faults at them, the claims that follow from their
results. Must not know: the network, the logs.

Rule: it decides by `error.recovery` alone, as the documentation tells users to.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from txnproducer.sim.stack.baton import Baton
from txnproducer.sim.stack.options import PARTITIONS, TOPIC
from txnproducer.sim.world.history import Attempt, CallbackError, SentRecord

if TYPE_CHECKING:
    from txnproducer.producer import TransactionalProducer
    from txnproducer.sim.stack.run import StackRun

__all__ = ["InterruptError", "Service"]

_PATIENCE: Final = 6
_FORCED_MS: Final = 5_000
_MOST_RECORDS: Final = 12
_LONGEST_SLEEP_S: Final = 3.0
_PACKAGE: Final = "/txnproducer/"
_OURS: Final = "/txnproducer/sim/"
_MOST_INNER_CALLS: Final = 300


class InterruptError(BaseException):
    """The exception that a signal handler raises."""


class Service:
    """One process.

    Args:
        run: the run that it is part of.
        name: its name.
        transactional_id: the id of its producers.
        is_rival: whether it only disturbs another process of the id.
    """

    def __init__(
        self, run: StackRun, name: str, transactional_id: str, *, is_rival: bool = False
    ) -> None:
        self.run = run
        self.name = name
        self.transactional_id = transactional_id
        self.is_rival = is_rival
        self.is_done = False
        self.rng = random.Random(f"{name} {run.options.seed}")  # noqa: S311 - seeded on purpose
        self.incarnation = 0
        self.proofs = 0
        self.made = 0
        self._producer: TransactionalProducer | None = None
        self._attempt: Attempt | None = None
        self._sent = 0
        self._must_fail = ""

    def main(self) -> None:
        """Make producers and transactions until the run has enough."""
        while self.run.wants_more(self):
            self._one_life()
            if not self.run.is_ending:
                self._sleep(self.rng.random())
        self.is_done = True

    def _one_life(self) -> None:
        self.incarnation += 1
        producer = self.run.open_producer(self.transactional_id)
        self._producer = producer
        try:
            if self._initialize():
                began_calm = self.run.is_ending
                while self.run.wants_more(self) and self._transaction():
                    # A producer from before the healing has to go on, too: one transaction.
                    if self.run.is_ending and not began_calm:
                        break
        finally:
            self._close()

    # --- calls ----------------------------------------------------------------------------------

    def _call(
        self, name: str, limit_ms: float, call: Callable[[], Any]
    ) -> tuple[Any, BaseException | None]:
        """Make one call, perhaps interrupted. Return its result and its error."""
        run = self.run
        run.trace(f"{self.name}: {name}")
        watch = run.watch()
        try:
            result, error = self._interrupted(call), None
        except (KafkaError, InterruptError, ValueError, TypeError) as raised:
            result, error = None, raised
        run.returned(self, name, watch, limit_ms, error)
        return result, error

    def _interrupted(self, call: Callable[[], Any]) -> Any:
        if self._strikes("interrupt at a wait"):
            thread = self.run.baton.current
            delay_ms = 10 ** self.rng.uniform(-1, 3.5)
            token = [True]

            def interrupt() -> None:
                if token:
                    self.run.baton.interrupt(thread, InterruptError())

            self.run.baton.call_after(delay_ms, interrupt)
            try:
                return call()
            finally:
                token.clear()
        if self._strikes("interrupt at a call"):
            return _interrupted_inside(call, self.rng.randrange(_MOST_INNER_CALLS), self.run.baton)
        return call()

    def _repeat(self, name: str, call: Callable[[], Any]) -> BaseException | None:
        """Make a call, and again while the next step is to resume. Return its error."""
        calls = 0
        while True:
            calls += 1
            _, error = self._call(name, self.run.max_block_ms, call)
            if isinstance(error, InterruptError):
                continue
            if not (isinstance(error, KafkaError) and error.recovery == "resume"):
                return error
            if not self.run.is_ending and calls >= _PATIENCE:
                return error

    def _strikes(self, fault: str) -> bool:
        return not self.run.is_ending and self.rng.random() < self.run.options.call_rates.get(
            fault, 0.0
        )

    def _sleep(self, seconds: float) -> None:
        self.run.baton.wait(lambda: False, seconds)

    @property
    def _open(self) -> TransactionalProducer:
        if self._producer is None:
            raise AssertionError("no producer is open")
        return self._producer

    # --- a transaction --------------------------------------------------------------------------

    def _initialize(self) -> bool:
        error = self._repeat("init_transactions", self._open.init_transactions)
        return error is None

    def _transaction(self) -> bool:
        """Make a transaction. Return whether the producer can make another one."""
        if self.rng.random() < 0.3:
            return self._block()
        _, error = self._call("begin_transaction", 0, self._open.begin_transaction)
        if isinstance(error, InterruptError):
            # It may have begun.
            return self._abort(self._new_attempt())
        if error is not None:
            return False
        attempt = self._new_attempt()
        error = self._work(attempt)
        if error is not None and not isinstance(error, InterruptError):
            return self._after(attempt, error)
        if error is not None or self.rng.random() < 0.2:
            return self._abort(attempt)
        return self._commit(attempt)

    def _block(self) -> bool:
        """Make a transaction as a `with` block."""
        transaction = self._open.transaction()
        attempt: list[Attempt] = []
        failed: list[BaseException] = []

        def run_block() -> None:
            with transaction:
                attempt.append(self._new_attempt())
                error = self._work(attempt[0])
                if error is not None:
                    failed.append(error)
                    raise error
                if self.rng.random() < 0.2:
                    raise InterruptError
                attempt[0].is_commit_asked = True

        # The begin, the commit and the abort each wait, and the work between them.
        _, error = self._call("block", math.inf, run_block)
        if not attempt:
            return error is None or isinstance(error, InterruptError)
        claim = transaction.outcome
        self.run.trace(f"{self.name}: block: {claim} {error!r}")
        if claim == "open":
            return self._commit(attempt[0]) if error is None else self._resume(attempt[0], error)
        self._claim(attempt[0], claim)
        if isinstance(error, InterruptError) or error is None:
            return True
        return isinstance(error, KafkaError) and error.recovery in ("abort", "resume")

    def _resume(self, attempt: Attempt, error: BaseException) -> bool:
        """Go on with a transaction whose end has not been seen."""
        if isinstance(error, KafkaError) and error.recovery == "restart":
            return False
        return self._commit(attempt) if attempt.is_commit_asked else self._abort(attempt)

    def _work(self, attempt: Attempt) -> BaseException | None:
        """Send records and offsets. Return the error that ends the work."""
        rng = self.rng
        helper = None
        if rng.random() < 0.3:
            records = rng.randint(1, 4)
            helper = self.run.platform.thread(
                lambda: self._send_some(attempt, records, PARTITIONS - 1), f"{self.name}-helper"
            )
            helper.start()
        error = self._send_some(attempt, rng.randint(0, _MOST_RECORDS), None)
        if helper is not None:
            self.run.join(helper)
        if error is None and rng.random() < 0.2:
            error = self._send_offsets(attempt)
        if error is None and rng.random() < 0.2:
            _, error = self._call("flush", self.run.delivery_ms, self._open.flush)
            if isinstance(error, KafkaTimeoutError):
                error = None
        if error is None and self._strikes("wrong call"):
            self._make_a_wrong_call()
        return error

    def _send_some(
        self, attempt: Attempt, count: int, partition: int | None
    ) -> BaseException | None:
        for _ in range(count):
            own = self.rng.randrange(PARTITIONS - 1) if partition is None else partition
            error = self._send(attempt, own)
            if error is not None:
                return error
            if self.rng.random() < 0.1:
                self._sleep(self.rng.random() * 0.2)
        return None

    def _send(self, attempt: Attempt, partition: int) -> BaseException | None:
        record = self._new_record(attempt, partition)
        producer = self._open
        size = self.rng.choice((0, 0, 40, 400))

        def send() -> Any:
            return producer.send(
                TOPIC,
                record.value,
                record.key,
                record.headers or None,
                partition,
                record.timestamp_ms,
                lambda metadata, error: self._delivered(attempt, record, metadata, error),
            )

        record.value += b"." * size
        future, error = self._call("send", self.run.max_block_ms, send)
        if error is None:
            record.future = future
            attempt.records.append(record)
            return None
        record.is_sent = None if isinstance(error, InterruptError) else False
        attempt.interrupted.append(record)
        return error

    def _new_record(self, attempt: Attempt, partition: int) -> SentRecord:
        self._sent += 1
        value = f"{attempt.name}.{self._sent}.".encode()
        key = self.rng.choice((None, b"key"))
        headers = self.rng.choice(((), (("name", b"value"),)))
        return SentRecord(
            self.run.history,
            TopicPartition(TOPIC, partition),
            value,
            key,
            headers,
            partition,
            self.run.platform.wall_clock_ms(),
        )

    def _delivered(
        self,
        attempt: Attempt,
        record: SentRecord,
        metadata: RecordMetadata,
        error: KafkaError | None,
    ) -> None:
        """Be a delivery callback, perhaps a bad one."""
        record.on_delivery(metadata, error)
        if self._strikes("callback blocks"):
            self._sleep(self.rng.random() * _LONGEST_SLEEP_S)
        if self._strikes("callback commits"):
            self._refused_in_callback("commit_transaction", self._open.commit_transaction)
        if self._strikes("callback closes"):
            self.run.trace(f"{self.name}: close in a callback")
            self._open.close()
        if self._strikes("callback sends"):
            self._send_in_callback(attempt)
        if self._strikes("callback raises"):
            raise CallbackError

    def _refused_in_callback(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaError:
            return
        self.run.history.violate("state", f"{self.name}: {name} in a callback is not refused")

    def _send_in_callback(self, attempt: Attempt) -> None:
        record = self._new_record(attempt, PARTITIONS - 2)
        record.is_watched = False
        # Known to the judge before the call, which another thread's commit may follow at once.
        record.is_sent = None
        attempt.interrupted.append(record)
        try:
            record.future = self._open.send(
                TOPIC,
                record.value,
                record.key,
                record.headers or None,
                PARTITIONS - 2,
                record.timestamp_ms,
            )
        except BaseException:
            if self._attempt is attempt and attempt.claim == "open":
                self._must_fail = f"{attempt.name}: {record.value!r} was lost in a callback"
            raise
        record.is_sent = True

    def _send_offsets(self, attempt: Attempt) -> BaseException | None:
        group = f"group-{self.transactional_id}"
        place = TopicPartition("input", 0)
        attempt.offset = self.run.next_offset()
        attempt.group_id, attempt.offset_places = group, (place,)
        offsets = {place: OffsetAndMetadata(attempt.offset, attempt.name)}
        producer, metadata = self._open, ConsumerGroupMetadata(group)
        error = self._repeat(
            "send_offsets_to_transaction",
            lambda: producer.send_offsets_to_transaction(offsets, metadata),
        )
        attempt.are_offsets_sent = error is None
        return error

    def _make_a_wrong_call(self) -> None:
        producer = self._open
        wrong = self.rng.choice((producer.init_transactions, producer.begin_transaction))
        _, error = self._call("wrong call", 0, wrong)
        if error is None:
            self.run.history.violate("state", f"{self.name}: {wrong.__name__} is not refused")

    # --- the end of a transaction ---------------------------------------------------------------

    def _commit(self, attempt: Attempt) -> bool:
        attempt.is_commit_asked = True
        error = self._repeat("commit_transaction", self._open.commit_transaction)
        if error is None:
            self._claim(attempt, "committed")
            return True
        return self._after(attempt, error)

    def _abort(self, attempt: Attempt) -> bool:
        error = self._repeat("abort_transaction", self._open.abort_transaction)
        if error is None:
            self._claim(attempt, "aborted")
            return True
        if isinstance(error, CommitOutcomeUnknownError):
            self._claim(attempt, "unknown")
        elif isinstance(error, IllegalStateError) and attempt.is_commit_asked:
            # The commit has succeeded meanwhile, or the producer was closed.
            _, again = self._call(
                "commit_transaction", self.run.max_block_ms, self._open.commit_transaction
            )
            if again is None:
                self._claim(attempt, "committed")
                return True
        return isinstance(error, IllegalStateError) and not attempt.records

    def _after(self, attempt: Attempt, error: BaseException) -> bool:
        """Take the next step that an error names."""
        if isinstance(error, CommitOutcomeUnknownError):
            self._claim(attempt, "unknown")
            return False
        if not isinstance(error, KafkaError):
            return False
        if error.recovery in ("abort", "resume"):
            return self._abort(attempt)
        return False

    def _claim(self, attempt: Attempt, claim: Any) -> None:
        attempt.claim = claim
        self.run.trace(f"{self.name}: {attempt.name} is {claim}")
        if claim == "committed":
            if self._must_fail:
                self.run.history.violate("told", f"{self._must_fail}, and it is committed")
            self.made += 1
            self.proofs += self.run.is_ending
        self.run.judge_end(attempt)
        self._must_fail = ""

    def _new_attempt(self) -> Attempt:
        attempt = self.run.new_attempt(self)
        manager = self._open._core.transaction_manager  # noqa: SLF001 - the judge wants the order
        if manager is not None:
            attempt.identity = manager.identity.producer_id_and_epoch
        self._attempt, self._must_fail = attempt, ""
        return attempt

    # --- the end of a producer ------------------------------------------------------------------

    def _close(self) -> None:
        producer = self._open
        if self._strikes("dropped"):
            self.run.trace(f"{self.name}: dropped")
            producer._io.orphan()  # noqa: SLF001 - as the finalizer does
            self.run.expect_end(producer)
            return
        timeout = 0.0 if self._strikes("close at once") else None
        limit_ms = 0.0 if timeout is not None else self.run.delivery_ms
        while True:
            _, error = self._call("close", limit_ms + _FORCED_MS, lambda: producer.close(timeout))
            if not isinstance(error, InterruptError):
                break
        self.run.closed(self, producer)


def _interrupted_inside(call: Callable[[], Any], number: int, baton: Baton) -> Any:
    """Make a call, and raise where it enters the n-th function of the shell or the core.

    CPython looks for signals where a function begins. The functions of the virtual platform stand
    for calls of the system, which no signal interrupts there.
    """
    left = [number]

    def trace(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or baton.is_passing or frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        if _PACKAGE in name and _OURS not in name:
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(before)
                raise InterruptError

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
