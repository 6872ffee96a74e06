"""The transactions of one producer: their calls, and the claims that follow from the results.

Owns: what is done in a transaction, and the steps after an error. Must not know: how producers are
made and closed, the network, the logs.

Rule: it decides by `error.recovery` alone, as the documentation tells users to.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
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
from txnproducer.sim.stack.companion import Origin, TransactionSpans
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.options import CLOSES_IN_BLOCK, GROUP_TOPIC, OTHER_TOPICS, group_of
from txnproducer.sim.stack.other_thread import (
    ANOTHER_ENDS,
    ENDS,
    INTRUSIONS,
    OtherThread,
    TimedBlock,
)
from txnproducer.sim.stack.sending import RecordSending
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt

__all__ = ["TransactionWork"]

_MOST_RECORDS: Final = 12
# In the error of an abort that has found out that the commit before it has succeeded.
_FOUND_OUT: Final = "has succeeded after all"
_CLAIMS: Final = {"commit_transaction": "committed", "abort_transaction": "aborted"}


class TransactionWork:
    """The transactions of one producer.

    Args:
        world: of the service.
        judge: of the calls.
        calls: the service's.
        producer: makes the transactions.
        origin: of the producer.
        spans: told when a transaction begins and ends.
        on_commit: called for each that is committed.
    """

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        calls: ServiceCalls,
        producer: TransactionalProducer,
        origin: Origin,
        spans: TransactionSpans,
        on_commit: Callable[[], None],
    ) -> None:
        self._world = world
        self._judge = judge
        self._calls = calls
        self._rng = calls.rng
        self._producer = producer
        self._origin = origin
        self._spans = spans
        self._on_commit = on_commit
        self._others = 0
        self._records = RecordSending(world, judge, calls, calls.rng, producer, origin.name)

    def transaction(self) -> bool:
        """Make a transaction. Return whether the producer can make another one."""
        if self._rng.random() < 0.3:
            return self._block()
        self._spans.begins()
        _, error = self._calls.call("begin_transaction", 0, self._producer.begin_transaction)
        if isinstance(error, InterruptError):
            return self._abort(self._new_attempt(), may_be_none=True)
        if error is not None:
            return False
        attempt = self._new_attempt()
        self._spans.begun(attempt)
        other = self._another_thread(attempt, ENDS) if self._calls.strikes(ANOTHER_ENDS) else None
        error = self._work(attempt, may_end_beside=other is not None)
        self._spans.ends()
        if other is not None:
            return self._end_beside(attempt, error, other)
        if isinstance(error, KafkaError):
            return self._after(attempt, error)
        if error is not None or self._rng.random() < 0.2:
            return self._abort(attempt)
        return self._commit(attempt)

    def _block(self) -> bool:
        """Make a transaction as a `with` block."""
        transaction = self._producer.transaction()
        block = TimedBlock(self._world, self._judge, self._origin.service, transaction)
        attempts: list[Attempt] = []
        others: list[OtherThread] = []

        def run_block() -> None:
            with block:
                attempts.append(self._new_attempt())
                self._spans.begun(attempts[0])
                if self._calls.strikes(ANOTHER_ENDS):
                    others.append(self._another_thread(attempts[0], INTRUSIONS, block))
                try:
                    error = self._work(attempts[0])
                finally:
                    self._spans.ends()
                if error is not None:
                    raise error
                if self._rng.random() < 0.2:
                    raise InterruptError
                self._close_in_block()
                # As the last step: leaving the block asks for the commit, and may be interrupted.
                attempts[0].is_commit_asked = True

        self._spans.begins()
        # The begin, the commit and the abort each wait, and the work between them.
        _, error = self._calls.call("block", math.inf, run_block)
        for other in others:
            other.join()
        if not attempts:
            self._judge_block_that_is_not_entered(error)
            return error is None or isinstance(error, InterruptError)
        attempt = attempts[0]
        self._judge.block_left(attempt, transaction.outcome, error)
        # The end of the block was interrupted or timed out: it has to be repeated.
        if transaction.outcome == "open":
            if isinstance(error, KafkaError) and error.recovery == "restart":
                return False
            return self._commit(attempt) if attempt.is_commit_asked else self._abort(attempt)
        if transaction.outcome == "committed" and error is not None:
            self._see_commit()
        # Another thread's begin may have come after the block's end, and its abort have failed.
        has_begun_another = any(other.has_begun_another for other in others)
        self._spans.ends(has_returned=error is None and not has_begun_another)
        self._claim(attempt, transaction.outcome)
        is_usable = error is None or isinstance(error, InterruptError)
        return is_usable or (
            isinstance(error, KafkaError) and error.recovery in ("abort", "resume")
        )

    def _close_in_block(self) -> None:
        """Close the producer, perhaps, and again, as a service that shuts down may do."""
        if not self._calls.strikes(CLOSES_IN_BLOCK):
            return
        for _ in range(2):
            timeout = self._rng.choice((None, 0.0))
            limit_ms = 0 if timeout is not None else self._world.delivery_ms
            self._calls.call("close", limit_ms + FORCED_MS, partial(self._producer.close, timeout))

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
        # A close on another thread ends what is open: perhaps an earlier transaction, whose abort
        # it has refused.
        is_open = producer.transaction_state == "IN_TRANSACTION" and not is_closed
        if isinstance(error, InterruptError) and is_open:
            self._judge.violate("state", "a block is open that was never entered")

    # --- the work of a transaction --------------------------------------------------------------

    def _work(self, attempt: Attempt, *, may_end_beside: bool = False) -> BaseException | None:
        """Send records and offsets. Return the error that ends the work.

        Args:
            attempt: the transaction.
            may_end_beside: whether another thread may end it meanwhile.
        """
        rng, calls, producer = self._rng, self._calls, self._producer
        helper = None
        # A companion has the helpers' partition: the order of two threads' calls is not known.
        if rng.random() < 0.3 and not self._world.options.has_companions:
            count = rng.randint(1, 4)
            helper = self._world.platform.thread(
                lambda: self._records.send_some(attempt, count, is_helper=True),
                f"{self._origin.service}-helper",
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
            error = self._ask_for_partitions(topic)
        if error is None and rng.random() < 0.2:
            error = self._send_offsets(attempt)
        if error is None and rng.random() < 0.2:
            sent = list(attempt.records)
            _, error = calls.call("flush", self._world.delivery_ms, producer.flush)
            if error is None:
                self._judge.flushed(self._origin.service, sent)
            # The records are still under way, and the commit waits for them.
            if isinstance(error, KafkaTimeoutError):
                error = None
        # After an end by the other thread a begin is right.
        if error is None and calls.strikes("wrong call") and not may_end_beside:
            self._make_a_wrong_call()
        return error

    def _ask_for_partitions(self, topic: str) -> BaseException | None:
        answers: list[Any] = []
        error = self._calls.repeat(
            "partitions_for", lambda: answers.append(self._producer.partitions_for(topic))
        )
        if error is None:
            self._judge.answered(topic, answers[-1])
        return error

    def _send_offsets(self, attempt: Attempt) -> BaseException | None:
        place = TopicPartition(GROUP_TOPIC, 0)
        attempt.offset = self._world.next_offset()
        attempt.group_id = group_of(self._origin.transactional_id)
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
        self._judge_repeated(attempt, error)
        if error is None:
            self._spans.ends(has_returned=True)
            self._claim(attempt, "committed")
            return True
        return self._after(attempt, error)

    def _abort(self, attempt: Attempt, *, may_be_none: bool = False) -> bool:
        """Abort a transaction. An interrupt of its begin may have left none."""
        error = self._calls.repeat("abort_transaction", self._producer.abort_transaction)
        # An abort that is asked for after a commit is refused if that has succeeded.
        if not (may_be_none or attempt.is_commit_asked):
            self._judge_repeated(attempt, error)
        return self._after_abort(attempt, error)

    def _judge_repeated(self, attempt: Attempt, error: BaseException | None) -> None:
        """Judge the end of a transaction that nobody else can have ended."""
        is_closed = self._producer._refusal is not None  # noqa: SLF001 - the judge looks inside
        is_refused = isinstance(error, IllegalStateError) and not is_closed
        if is_refused and self._calls.was_interrupted:
            self._judge.violate(
                "state", f"the end of {attempt.name} is refused after an interrupt: {error!r}"
            )

    def _after_abort(self, attempt: Attempt, error: BaseException | None) -> bool:
        if error is None:
            self._spans.ends(has_returned=True)
            self._claim(attempt, "aborted")
            return True
        if isinstance(error, CommitOutcomeUnknownError):
            self._resolve(attempt)
        elif isinstance(error, IllegalStateError) and attempt.is_commit_asked:
            return self._ask_for_commit(attempt, error)
        # None was open: its begin was interrupted.
        return isinstance(error, IllegalStateError) and not attempt.records

    # --- an end beside that of another thread ---------------------------------------------------

    def _another_thread(
        self, attempt: Attempt, calls: tuple[str, ...], block: TimedBlock | None = None
    ) -> OtherThread:
        self._others += 1
        name = f"{self._origin.name}-other-{self._others}"
        other = OtherThread(self._world, self._judge, self._producer, name, calls, attempt, block)
        # From now on nobody knows when the transaction ends.
        if block is None:
            self._spans.ends()
        other.start()
        return other

    def _end_beside(
        self, attempt: Attempt, error: BaseException | None, other: OtherThread
    ) -> bool:
        """End a transaction that another thread ends as well, before, after or meanwhile."""
        is_abort = error is not None or self._rng.random() < 0.2
        call = self._producer.abort_transaction if is_abort else self._producer.commit_transaction
        attempt.is_commit_asked |= not is_abort
        was_over = other.has_ended and other.error is None
        own = self._calls.repeat(call.__name__, call)
        was_first = own is None and not other.has_begun
        other.join()
        if was_first and other.error is None:
            self._judge.violate("state", f"{other.call} of an ended {attempt.name} is not refused")
        if was_over and own is None:
            self._judge.violate(
                "state", f"{call.__name__} of an ended {attempt.name} is not refused"
            )
        good = {name for name, e in ((call.__name__, own), (other.call, other.error)) if e is None}
        if len(good) > 1:
            self._judge.violate("told", f"{attempt.name} is both committed and aborted")
        if good:
            self._spans.ends(has_returned=True)
            self._claim(attempt, _CLAIMS[good.pop()])
            # Any other error may be of a call that has to be made again.
            return all(e is None or isinstance(e, IllegalStateError) for e in (own, other.error))
        if isinstance(other.error, CommitOutcomeUnknownError):
            self._resolve(attempt)
        elif is_abort:
            self._after_abort(attempt, own)
        elif own is not None:
            self._after(attempt, own)
        return False

    def _resolve(self, attempt: Attempt) -> None:
        """Ask for the outcome of a commit in doubt."""
        outcome, error = self._calls.call(
            "resolve_outcome", self._world.max_block_ms, self._producer.resolve_outcome
        )
        self._claim(attempt, "unknown" if error is not None else outcome)

    def _ask_for_commit(self, attempt: Attempt, refusal: IllegalStateError) -> bool:
        """Repeat a commit that has succeeded, unless its abort was the last call about it."""
        commit, error = self._producer.commit_transaction, None
        if _FOUND_OUT not in str(refusal):
            _, error = self._calls.call("commit_transaction", self._world.max_block_ms, commit)
        if error is None:
            self._spans.ends(has_returned=True)
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
        self._on_commit()
        self._judge.ended(attempt)

    def _new_attempt(self) -> Attempt:
        attempt = self._origin.new_attempt(self._world.history)
        manager = self._producer._core.transaction_manager  # noqa: SLF001 - the judge wants it
        if manager is not None:
            attempt.identity = manager.identity.producer_id_and_epoch
        return attempt
