"""A service in virtual time: a process that writes transactions as its users would.

Owns: the calls of the public interface, and the claims that follow from their results. Must not
know: the network, the logs.

Rule: it decides by `error.recovery` alone, as the documentation tells users to.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, Final

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.sim.stack.calls import FORCED_MS, InterruptError, ServiceCalls
from txnproducer.sim.stack.judge import PROOFS, StackJudge
from txnproducer.sim.stack.options import GROUP_TOPIC, OTHER_TOPICS
from txnproducer.sim.stack.producers import StackProducers
from txnproducer.sim.stack.sending import RecordSending
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt

__all__ = ["Service"]

_MOST_RECORDS: Final = 12
# A close that has taken so long has passed all its locks and waits for the end.
_BEGUN_MS: Final = 50


class Service:
    """One process.

    Args:
        world: where it runs.
        producers: make its producers.
        judge: of its calls.
        name: its name.
        transactional_id: the id of its producers.
        is_rival: whether it only disturbs another process of the id.

    Attributes:
        is_done: whether it has ended.
        made: the transactions that it has committed.
        proofs: those after the faults ended.
        incarnation: the number of its producer.
    """

    def __init__(
        self,
        world: StackWorld,
        producers: StackProducers,
        judge: StackJudge,
        name: str,
        transactional_id: str,
        *,
        is_rival: bool = False,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.is_rival = is_rival
        self.is_done = False
        self.made = self.proofs = self.incarnation = 0
        self._world = world
        self._producers = producers
        self._judge = judge
        self._rng = world.new_rng(name)
        self._calls = ServiceCalls(world, judge, name, self._rng)

    def main(self) -> None:
        """Make producers and transactions until the run has enough."""
        while self.wants_more:
            self.incarnation += 1
            producer = self._producers.open(self.transactional_id)
            try:
                self._use(producer)
            finally:
                self._close(producer)
            if not self._world.is_healed:
                self._calls.sleep(self._rng.random())
        self.is_done = True

    @property
    def wants_more(self) -> bool:
        """Whether the run needs more transactions of this service."""
        if self._world.history.violations:
            return False
        if not self._world.is_healed:
            return True
        return not self.is_rival and self.proofs < PROOFS

    def _use(self, producer: TransactionalProducer) -> None:
        if not self._open(producer):
            return
        was_calm = self._world.is_healed
        work = _Work(self._world, self._judge, self, self._calls, self._rng, producer)
        while self.wants_more and work.transaction():
            # A producer from before the end of the faults proves with one transaction that it can
            # go on. The others are proofs of a new one.
            if self._world.is_healed and not was_calm:
                return

    def _open(self, producer: TransactionalProducer) -> bool:
        """Wait for the first contact. Return whether the producer can be used."""
        self._calls.producer = producer
        watch = self._producers.watch_of(producer)
        watch.is_first_contact = True
        error = self._calls.repeat("init_transactions", producer.init_transactions)
        if isinstance(error, KafkaTimeoutError):
            # The last pause ends with the call: no later attempt to connect is judged.
            watch.judge_pause(self._world.baton.now_ms)
        watch.is_first_contact = False
        return error is None

    def _close(self, producer: TransactionalProducer) -> None:
        self._calls.producer = None
        if self._calls.strikes("dropped"):
            producer._io.orphan()  # noqa: SLF001 - as the finalizer does
            return
        timeout = 0.0 if self._calls.strikes("close at once") else None
        limit_ms = self._world.delivery_ms if timeout is None else 0.0
        error: BaseException | None = InterruptError()
        # An interrupt ends only the wait for the end, so the service waits again.
        while isinstance(error, InterruptError):
            began_ms = self._world.baton.now_ms
            _, error = self._calls.call(
                "close", limit_ms + FORCED_MS, lambda: producer.close(timeout)
            )
            has_waited = self._world.baton.now_ms - began_ms > _BEGUN_MS
            if isinstance(error, InterruptError) and has_waited and self._rng.random() < 0.5:
                self._await_end_without_a_call(producer, limit_ms + FORCED_MS)
        self._judge.closed(self.name, producer)

    def _await_end_without_a_call(self, producer: TransactionalProducer, limit_ms: float) -> None:
        """Wait for the end of a producer after an interrupt of its `close`."""
        io = producer._io  # noqa: SLF001 - the judge looks inside
        if not self._world.baton.wait(lambda: io.has_ended, limit_ms / 1000):
            self._judge.violate(
                "hangs", f"{self.name}: an interrupted close does not end by itself"
            )


class _Work:
    """The transactions of one producer."""

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        service: Service,
        calls: ServiceCalls,
        rng: random.Random,
        producer: TransactionalProducer,
    ) -> None:
        self._world = world
        self._judge = judge
        self._service = service
        self._calls = calls
        self._rng = rng
        self._producer = producer
        self._records = RecordSending(world, judge, calls, rng, producer)

    def transaction(self) -> bool:
        """Make a transaction. Return whether the producer can make another one."""
        if self._rng.random() < 0.3:
            return self._block()
        _, error = self._calls.call("begin_transaction", 0, self._producer.begin_transaction)
        if isinstance(error, InterruptError):
            return self._abort(self._new_attempt())  # it may have begun
        if error is not None:
            return False
        attempt = self._new_attempt()
        error = self._work(attempt)
        if isinstance(error, KafkaError):
            return self._after(attempt, error)
        if error is not None or self._rng.random() < 0.2:
            return self._abort(attempt)
        return self._commit(attempt)

    def _block(self) -> bool:
        """Make a transaction as a `with` block."""
        transaction = self._producer.transaction()
        attempts: list[Attempt] = []

        def run_block() -> None:
            with transaction:
                attempts.append(self._new_attempt())
                error = self._work(attempts[0])
                if error is not None:
                    raise error
                if self._rng.random() < 0.2:
                    raise InterruptError
                # As the last step: leaving the block asks for the commit, and may be interrupted.
                attempts[0].is_commit_asked = True

        # The begin, the commit and the abort each wait, and the work between them.
        _, error = self._calls.call("block", math.inf, run_block)
        if not attempts:
            self._judge_block_that_is_not_entered(error)
            return error is None or isinstance(error, InterruptError)
        attempt = attempts[0]
        # The end of the block was interrupted or timed out: it has to be repeated.
        if transaction.outcome == "open":
            if isinstance(error, KafkaError) and error.recovery == "restart":
                return False
            return self._commit(attempt) if attempt.is_commit_asked else self._abort(attempt)
        if transaction.outcome == "committed" and error is not None:
            self._see_commit()
        self._claim(attempt, transaction.outcome)
        is_usable = error is None or isinstance(error, InterruptError)
        return is_usable or (
            isinstance(error, KafkaError) and error.recovery in ("abort", "resume")
        )

    def _see_commit(self) -> None:
        """Repeat a commit that was interrupted or timed out, but has ended meanwhile.

        Until a call has returned its end, the producer begins no other transaction. The commit may
        be known while the epoch after it is still asked for, so one more call can time out, too.
        """
        # It may have been seen already: then the call is refused, and changes nothing.
        self._calls.repeat("commit_transaction", self._producer.commit_transaction)

    def _judge_block_that_is_not_entered(self, error: BaseException | None) -> None:
        producer = self._producer
        is_closed = producer._refusal is not None  # noqa: SLF001 - the judge looks inside
        if isinstance(error, IllegalStateError) and not is_closed:
            self._judge.violate("state", f"a block is refused: {error!r}")
        if isinstance(error, InterruptError) and producer.transaction_state == "IN_TRANSACTION":
            self._judge.violate("state", "a block is open that was never entered")

    # --- the work of a transaction --------------------------------------------------------------

    def _work(self, attempt: Attempt) -> BaseException | None:
        """Send records and offsets. Return the error that ends the work."""
        rng, calls, producer = self._rng, self._calls, self._producer
        helper = None
        if rng.random() < 0.3:
            count = rng.randint(1, 4)
            helper = self._world.platform.thread(
                lambda: self._records.send_some(attempt, count, is_helper=True),
                f"{self._service.name}-helper",
            )
            helper.start()
        try:
            error = self._records.send_some(attempt, rng.randint(0, _MOST_RECORDS))
        finally:
            # Also after an interrupt: its records belong to this transaction.
            while helper is not None and helper.is_alive():
                with contextlib.suppress(InterruptError):
                    helper.join()
        if error is None and rng.random() < 0.5:
            topic = rng.choice(OTHER_TOPICS)
            error = calls.repeat("partitions_for", lambda: producer.partitions_for(topic))
        if error is None and rng.random() < 0.2:
            error = self._send_offsets(attempt)
        if error is None and rng.random() < 0.2:
            _, error = calls.call("flush", self._world.delivery_ms, producer.flush)
            # The records are still under way, and the commit waits for them.
            if isinstance(error, KafkaTimeoutError):
                error = None
        if error is None and calls.strikes("wrong call"):
            self._make_a_wrong_call()
        return error

    def _send_offsets(self, attempt: Attempt) -> BaseException | None:
        place = TopicPartition(GROUP_TOPIC, 0)
        attempt.offset = self._world.next_offset()
        attempt.group_id = f"group-{self._service.transactional_id}"
        attempt.offset_places = (place,)
        offsets = {place: OffsetAndMetadata(attempt.offset, attempt.name)}
        group = ConsumerGroupMetadata(attempt.group_id)
        error = self._calls.repeat(
            "send_offsets_to_transaction",
            lambda: self._producer.send_offsets_to_transaction(offsets, group),
        )
        attempt.are_offsets_sent = error is None
        return error

    def _make_a_wrong_call(self) -> None:
        producer = self._producer
        # Both are forbidden while a transaction is open, and change nothing.
        wrong = self._rng.choice((producer.init_transactions, producer.begin_transaction))
        _, error = self._calls.call("wrong call", 0, wrong)
        if error is None:
            self._judge.violate("state", f"{wrong.__name__} is not refused")

    # --- its end --------------------------------------------------------------------------------

    def _commit(self, attempt: Attempt) -> bool:
        # Before the call: an interrupt of it may come after the request was sent.
        attempt.is_commit_asked = True
        error = self._calls.repeat("commit_transaction", self._producer.commit_transaction)
        if error is None:
            self._claim(attempt, "committed")
            return True
        return self._after(attempt, error)

    def _abort(self, attempt: Attempt) -> bool:
        error = self._calls.repeat("abort_transaction", self._producer.abort_transaction)
        if error is None:
            self._claim(attempt, "aborted")
            return True
        if isinstance(error, CommitOutcomeUnknownError):
            self._resolve(attempt)
        elif isinstance(error, IllegalStateError) and attempt.is_commit_asked:
            return self._ask_for_commit(attempt)
        # None was open: its begin was interrupted.
        return isinstance(error, IllegalStateError) and not attempt.records

    def _resolve(self, attempt: Attempt) -> None:
        """Ask for the outcome of a commit in doubt."""
        outcome, error = self._calls.call(
            "resolve_outcome", self._world.max_block_ms, self._producer.resolve_outcome
        )
        self._claim(attempt, "unknown" if error is not None else outcome)

    def _ask_for_commit(self, attempt: Attempt) -> bool:
        """Repeat a commit that has succeeded while its abort was asked for."""
        producer = self._producer
        _, error = self._calls.call(
            "commit_transaction", self._world.max_block_ms, producer.commit_transaction
        )
        if error is None:
            self._claim(attempt, "committed")
        return error is None

    def _after(self, attempt: Attempt, error: BaseException) -> bool:
        """Take the next step that an error names."""
        if isinstance(error, CommitOutcomeUnknownError):
            self._resolve(attempt)
            return False
        if not isinstance(error, KafkaError):
            return False
        if error.recovery in ("abort", "resume"):
            return self._abort(attempt)
        if not isinstance(error, IllegalStateError):
            # Any other error of a commit says that it is not committed.
            self._claim(attempt, "aborted")
        return False

    def _claim(self, attempt: Attempt, claim: Any) -> None:
        attempt.claim = claim
        self._world.trace(f"{attempt.name} is {claim}")
        if claim != "committed":
            return
        lost = self._records.lost
        if lost is not None and lost[0] is attempt:
            self._judge.violate(
                "told", f"{attempt.name} is committed, and a callback lost {lost[1]!r}"
            )
        self._service.made += 1
        self._service.proofs += self._world.is_healed
        self._judge.ended(attempt)

    def _new_attempt(self) -> Attempt:
        service, attempts = self._service, self._world.history.attempts
        number = len(attempts)
        attempt = Attempt(
            f"{service.name}.{service.incarnation}.{number}",
            service.name,
            service.transactional_id,
            service.incarnation,
            number,
        )
        attempts.append(attempt)
        manager = self._producer._core.transaction_manager  # noqa: SLF001 - the judge wants it
        if manager is not None:
            attempt.identity = manager.identity.producer_id_and_epoch
        return attempt
