"""The scripts of simulated applications: all calls that the API allows, in random order.

Why it exists: the scripts use the core exactly as `TransactionalProducer` does (`calls.py`). After
an error they follow its `recovery`.
Owns: the scripts, and the record of their outcomes (`history.py`). Must not know: the contents of
the logs, the kinds of faults.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from txnproducer._core.transactions.commit_evidence import resolve
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from txnproducer.sim.apps.calls import (
    Ended,
    Patience,
    call,
    check_waiting_send_is_refused,
    close,
    let_a_send_wait,
)
from txnproducer.sim.apps.interrupts import Interrupted
from txnproducer.sim.apps.process import Condition, Process, Script
from txnproducer.sim.apps.row_sending import send_rows
from txnproducer.sim.apps.sending import (
    both,
    flush,
    look_around,
    look_at_futures,
    misuse,
    send,
    sleep,
)
from txnproducer.sim.world.history import LAST_EPOCH, Attempt
from txnproducer.sim.world.options import TOPIC

_MISUSE_RATE = 0.02
_TWO_THREADS_RATE = 0.05
_IDLE_RATE = 0.005
_MORE_OFFSETS_RATE = 0.15
# Long enough for a partition to forget the producer.
_LONGEST_IDLE_MS = 90_000
_AGED_RATE = 0.2
# Parts of the messages by which an abort says that the transaction was committed before.
_LATE = ("could not be aborted", "is committed")


# --- transactions -------------------------------------------------------------------------------


def transactional_script(
    process: Process, draw: Callable[[Process], PlainTransaction] | None = None
) -> Script:
    """Make transactions until the run has enough.

    Args:
        process: the process of the application.
        draw: draws each transaction; None for transactions of this process alone.
    """
    make = draw or PlainTransaction
    while process.programs.wants_more(process):
        if process.rng.random() < _MISUSE_RATE:
            misuse(process, is_between=True)
        is_ready = yield from _initialize(process)
        while is_ready and process.programs.wants_more(process):
            if process.rng.random() < _IDLE_RATE:
                yield sleep(process, _LONGEST_IDLE_MS)
            if process.rng.random() < _MISUSE_RATE:
                misuse(process, is_between=True)
            is_ready = yield from make(process).run()
            is_deployed = is_ready and process.rng.random() < 0.02
            if is_deployed or (is_ready and process.programs.must_restart(process)):
                break  # a deployment closes the producer and starts another one
        yield from close(process)
        if process.programs.wants_more(process):
            yield sleep(process, 300)
            process.renew()


def _initialize(process: Process) -> Generator[tuple[Condition, int], bool, bool]:
    patience = Patience(process)
    while patience.lasts():
        ended = yield from call(process, process.core.init_transactions)
        error = ended.error
        if error is None:
            return True
        if not ended.is_timed_out:
            process.judge.init_failed(process, error)
            if error.recovery != "resume":  # it needs a new producer
                return False
            yield sleep(process, 500)
    patience.gave_up("init_transactions")
    return False


class PlainTransaction:
    """One transaction, from its begin to its end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._attempt = process.programs.new_attempt(process)
        self._identify()
        self._commit: TransactionalRequestResult | None = None
        # Like a consumer: it read its input before, as the member of the group that it was then.
        self._member = self._group_metadata()

    def _identify(self) -> None:
        process, world = self._process, self._world
        self._attempt.identity = process.manager.identity.producer_id_and_epoch
        openings_kept = world.faults.openings_kept[process.transactional_id or ""]
        self._attempt.kept_before = world.history.openings_kept_before.setdefault(
            self._attempt.identity, openings_kept
        )

    def run(self) -> Generator[tuple[Condition, int], bool, bool]:
        """Make the transaction. Return whether the producer can continue."""
        try:
            self._begin()
        except KafkaError as refusal:
            self._attempt.claim = "aborted"
            self._failed(refusal)
            self._process.judge.refused(self._process, "begin_transaction", refusal)
            return False
        check_waiting_send_is_refused(self._process)
        error = yield from self._fill()
        self._process.programs.count_transaction(self._attempt)
        if error is not None:
            self._failed(error)
        rng = self._process.rng
        if error is None and rng.random() < 0.01:
            return False  # close() has to abort the transaction
        if error is None and rng.random() >= self._world.options.abort_rate:
            return (yield from self._commit_it())
        # Such a producer must not be asked for more: its transaction ends with it.
        if error is not None and error.recovery not in ("abort", "resume"):
            self._attempt.claim = "aborted"
            return False
        # An abort must refuse what waits: after it, the record would be another transaction's.
        let_a_send_wait(self._process)
        return (yield from self._abort_it())

    def _begin(self) -> None:
        process = self._process
        try:
            process.interrupts.run(process.core.begin_transaction)
        except Interrupted:
            # Like a program that checks the state before it continues.
            if not process.manager.machine.has_ongoing_transaction:
                self._begin()

    def _failed(self, error: KafkaError) -> None:
        attempt = self._attempt
        attempt.errors.append(error)
        for place in {record.place for record in attempt.records}:
            if self._world.cluster.has_forgotten(place, attempt.identity.producer_id):
                attempt.forgotten_at.add(place)

    def _fill(self) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
        rng, options = self._process.rng, self._world.options
        offsets_at = rng.randrange(4) if rng.random() < options.offsets_rate else -1
        count = rng.randrange(20 if options.has_many_batches else 7)
        for number in range(count):
            error = yield from _send(self._process, self._attempt, number)
            if error is not None:
                return error
            drawn = rng.random()
            if number == offsets_at:
                offsets_at = -1
                error = yield from self._send_offsets()
                if error is not None:
                    return error
            elif drawn < 0.08:
                yield sleep(self._process, 400)
            elif drawn < 0.13:
                yield from flush(self._process)
            elif drawn < 0.15:
                yield from look_around(self._process)
                look_at_futures(self._process, self._attempt)
            elif drawn < 0.16:
                misuse(self._process)
        if offsets_at >= 0:
            return (yield from self._send_offsets())
        return None

    def _send_offsets(self) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
        process, attempt, metadata = self._process, self._attempt, self._member
        process.network.expect_member(metadata)
        is_old = self._world.options.cluster.is_before_2_5
        # TxnOffsetCommit before v3 cannot carry the generation, so the call has to fail.
        attempt.is_mistaken |= is_old and metadata.generation_id >= 0
        attempt.group_id, attempt.offset = metadata.group_id, self._world.next_offset()
        count = 1 + process.rng.randrange(self._world.options.partition_count)
        attempt.offset_places = tuple(TopicPartition(TOPIC, number) for number in range(count))
        error = yield from self._send_this_offset()
        if error is None and process.rng.random() < _MORE_OFFSETS_RATE:
            # Like an application that sends offsets twice within a transaction.
            attempt.earlier_offsets.append(attempt.offset)
            attempt.offset = self._world.next_offset()
            error = yield from self._send_this_offset()
        return error

    def _send_this_offset(self) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
        process, attempt, metadata = self._process, self._attempt, self._member
        told = OffsetAndMetadata(attempt.offset, attempt.name)  # the name is for the judge
        offsets = dict.fromkeys(attempt.offset_places, told)
        patience = Patience(process)
        while patience.lasts():
            ended = yield from call(
                process, lambda: process.core.send_offsets_to_transaction(offsets, metadata)
            )
            if not ended.is_timed_out:
                attempt.are_offsets_sent = ended.error is None
                return ended.error
        attempt.has_given_up = True
        patience.gave_up("send_offsets_to_transaction")
        return KafkaError("the application has no more patience", recovery="abort")

    def _group_metadata(self) -> ConsumerGroupMetadata:
        group_id = self._process.programs.group_of(self._process)
        is_old = self._world.options.cluster.is_before_2_5
        if is_old and self._process.rng.random() > 0.03:
            return ConsumerGroupMetadata(group_id)  # an old cluster refuses more than that
        group = self._world.cluster.group_offsets(group_id).group(group_id)
        return ConsumerGroupMetadata(group_id, group.generation_id, next(iter(group.members), ""))

    def _commit_it(self) -> Generator[tuple[Condition, int], bool, bool]:
        process, attempt = self._process, self._attempt
        attempt.is_commit_asked = True  # from here on it may be committed
        patience = Patience(process)
        while patience.lasts():
            ended = yield from call(process, process.core.begin_commit)
            # A repeated call that was interrupted has no result, and the earlier one may still
            # end.
            self._commit = ended.result or self._commit
            error = ended.error
            if error is None:
                attempt.claim = "committed"
                self._process.judge.committed(process, attempt)
                self._process.judge.ended(process, attempt)
                return True
            if not ended.is_timed_out:
                return (yield from self._after_failed_commit(error))
            attempt.has_timed_out = True
            drawn = process.rng.random()
            if drawn < 0.15:
                yield sleep(process, 3_000)  # meanwhile the commit may end unnoticed
            if drawn < 0.3:
                break
            if drawn < 0.5:
                misuse(process)
        else:
            patience.gave_up("commit_transaction")
        attempt.has_given_up = True
        return (yield from self._abort_it())

    def _after_failed_commit(
        self, error: KafkaError
    ) -> Generator[tuple[Condition, int], bool, bool]:
        self._failed(error)
        if isinstance(error, CommitOutcomeUnknownError):
            self._resolve()
        if error.recovery == "abort":
            return (yield from self._abort_it())
        if self._attempt.claim == "open":  # not unknown, so not committed
            self._attempt.claim = "aborted"
        self._process.judge.refused(self._process, "commit_transaction", error)
        return False

    def _abort_it(self) -> Generator[tuple[Condition, int], bool, bool]:
        process, attempt = self._process, self._attempt
        patience = Patience(process)
        while patience.lasts():
            ended = yield from call(process, process.core.begin_abort)
            error = ended.error
            if error is None:
                if attempt.claim == "open":
                    attempt.claim = "aborted"
                self._process.judge.ended(process, attempt)
                return True
            if isinstance(error, IllegalStateError) and any(word in str(error) for word in _LATE):
                return (yield from self._learn_of_commit(ended))
            if not ended.is_timed_out:
                attempt.abort_error = error
                self._note_end(error)
                self._process.judge.refused(process, "abort_transaction", error)
                return False
        patience.gave_up("abort_transaction")
        attempt.has_given_up = True
        yield from close(process)
        self._note_end(KafkaError("closed"))
        return False

    def _learn_of_commit(self, ended: Ended) -> Generator[tuple[Condition, int], bool, bool]:
        """Continue after an abort that was refused because the commit had succeeded."""
        process, attempt, commit = self._process, self._attempt, self._commit
        if ended.is_refused:
            again = yield from call(process, process.core.begin_commit)
            if again.is_timed_out:
                attempt.claim = "committed"  # the refusal says that it is committed
                yield from close(process)
                return False
            if again.error is not None:
                self._note_end(again.error)
                return False
        elif commit is not None and not (
            # A commit whose answer was lost has said so, and the abort then finds out.
            commit.is_successful or isinstance(commit.error, CommitOutcomeUnknownError)
        ):
            self._world.history.violate(
                "told", f"{attempt.name}: abort says committed, the commit {commit}"
            )
        attempt.claim = "committed"
        return True

    def _resolve(self) -> None:
        """Ask the coordinator as `resolve_outcome` does, and claim the outcome that it proves."""
        manager, name = self._process.manager, self._process.transactional_id or ""
        commit, again = manager.last_commit, manager.may_have_begun_again
        known = self._world.cluster.transaction_coordinator(name).find(name)
        self._attempt.claim = "unknown"
        self._process.judge.unknown(self._process, self._attempt)
        # DescribeTransactions came later (KIP-664), so `resolve_outcome` cannot ask there.
        is_offered = not self._world.options.cluster.is_before_2_5
        if known is not None and commit is not None and is_offered:
            described = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
            self._attempt.claim = resolve(
                commit, known.state.value, described, may_begin_again=again
            )
            self._process.judge.resolved(self._attempt, commit, described, known.state.value)

    def _note_end(self, error: KafkaError) -> None:
        """Claim the outcome that a failed or closed producer reports for the transaction."""
        attempt, commit = self._attempt, self._commit
        # The error of the commit tells more than that of the abort or the close after it.
        told = error if commit is None or commit.error is None else commit.error
        if isinstance(error, CommitOutcomeUnknownError):
            told = error
        if commit is not None and commit.is_successful:
            attempt.claim = "committed"
        elif isinstance(told, CommitOutcomeUnknownError):
            self._resolve()
        elif attempt.claim == "open":
            attempt.claim = "aborted"


# --- without transactions -----------------------------------------------------------------------


def _send(
    process: Process, attempt: Attempt, number: int
) -> Generator[tuple[Condition, int], bool, KafkaError | None]:
    """Send a record. Sometimes two threads send others first, or one call sends many."""
    row_rate = process.world.options.row_rate
    if row_rate and process.rng.random() < row_rate:
        return (yield from send_rows(process, attempt, number))
    if process.rng.random() < _TWO_THREADS_RATE:
        pair = (send(process, attempt, 100 * n + number) for n in (1, 2))
        yield from both(process, *pair)
    return (yield from send(process, attempt, number))


def _misuse_without_transactions(process: Process) -> None:
    try:
        process.core.begin_transaction()
    except IllegalStateError:
        return
    process.world.history.violate("state", f"{process.name} began a transaction without an id")


def _age(process: Process) -> Script:
    """In some runs, let the producer continue near the end of its epochs."""
    manager = process.core.transaction_manager
    if manager is None or process.rng.random() >= _AGED_RATE:
        return
    has_id = yield (lambda: manager.identity.has_producer_id), process.now_ms + 2_000
    if has_id:
        identity = manager.identity.producer_id_and_epoch
        # Set directly: by requests it would take 32,766 new epochs.
        manager.sequences.adopt(ProducerIdAndEpoch(identity.producer_id, LAST_EPOCH))


def idempotent_script(process: Process) -> Script:
    """Send records without transactions until the run has enough."""
    world = process.world
    yield from _age(process)
    while process.programs.wants_more(process):
        attempt = process.programs.new_attempt(process)
        if process.rng.random() < _MISUSE_RATE:
            _misuse_without_transactions(process)
        for number in range(process.rng.randrange(30 if world.options.has_many_batches else 12)):
            error = yield from _send(process, attempt, number)
            if error is not None:
                break
            if process.rng.random() < 0.1:
                yield sleep(process, 400)
            if process.rng.random() < 0.05:
                look_at_futures(process, attempt)
        yield from flush(process)
        look_at_futures(process, attempt)
        process.judge.plain_ended(process, attempt)
        is_deployed = process.rng.random() < 0.05 or process.programs.must_restart(process)
        if process.has_failed or is_deployed:
            yield from close(process)
            yield sleep(process, 300)
            process.renew()
        else:
            yield sleep(process, 50)
    yield from close(process)
