"""Transactions that several processes share.

Why it exists: the process that holds a transaction starts others that write into it, as Spark's
driver starts tasks. A task that runs twice can wake up during a later transaction, as in Spark.
Owns: `sharing_script`, the runs of a claim's work. Must not know: logs, kinds of faults.

Of several runs of one claim, the receipt of the last one counts, as in Spark. The records of the
other runs belong to no committed transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.share import SharePart
from txnproducer.errors import (
    ClaimRefusedError,
    IllegalStateError,
    KafkaError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    UnsupportedVersionError,
)
from txnproducer.records import TopicPartition, TransactionLease, TransactionReceipt, claim_id
from txnproducer.sim.apps.calls import Ended, Patience, call, close
from txnproducer.sim.apps.process import Condition, Process, Script
from txnproducer.sim.apps.sending import flush, send, sleep
from txnproducer.sim.apps.workload import PlainTransaction, transactional_script
from txnproducer.sim.world.history import Attempt

_SHARED_RATE = 0.7
_HANDED_OVER_RATE = 0.1
_RESUMED_RATE = 0.15
_SECOND_RUN_RATE = 0.15
_EARLY_COMMIT_RATE = 0.15
_NOTHING_TO_DO_RATE = 0.2
_HASTY_RATE = 0.2
_SECOND_RUN_WITHIN_MS = 400
_LONGEST_WORK_MS = 8_000
_SLEEPS_MS = (50, 1_000, 20_000)
_LONGEST_SLEEP_MS = 60_000

_Wait = tuple[Condition, int]


def sharing_script(process: Process) -> Script:
    """Make transactions, most of them shared, until the run has enough."""
    return transactional_script(process, _draw)


def _draw(process: Process) -> PlainTransaction:
    drawn = process.rng.random()
    if drawn < _SHARED_RATE:
        return _SharedTransaction(process)
    if drawn < _SHARED_RATE + _HANDED_OVER_RATE:
        return _HandedOverTransaction(process)
    return PlainTransaction(process)


class _ClaimRun:
    """One run of a claim's work, in a process of its own.

    Attributes:
        process: the process.
        attempt: its records. They move to the holder's attempt if the receipt counts.
        receipt: its receipt, if it succeeded.
        error: its error, if it failed.
        has_left_opening: whether a request that can begin a transaction was still in flight when
            it ended.
    """

    process: Process
    attempt: Attempt

    def __init__(
        self, holder: Process, label: str, lease: TransactionLease, claim: int, places: list[int]
    ) -> None:
        self._holder = holder
        self._label = label
        self._lease = lease
        self._claim = claim
        self._places = places
        self._has_begun = False
        self._is_claim_disturbed = False
        self.has_left_opening = False
        self.receipt: TransactionReceipt | None = None
        self.error: KafkaError | None = None
        self.process = holder.programs.start_participant(holder, self._script)

    def _script(self, process: Process) -> Script:
        if self._has_begun:  # Spark starts lost work again in a new process
            self._end(KafkaError("the process has crashed"))
            return
        self._has_begun = True
        self.attempt = process.programs.new_attempt(process)
        self.attempt.label = f"{self._label}/{process.name}"
        self.attempt.identity = self._lease.producer
        self._end((yield from self._work(process)))
        yield from close(process)

    def _end(self, error: KafkaError | None) -> None:
        self.error = error
        self.has_left_opening = self.process.network.has_opening_on_its_way
        if self._holder.manager.share.part is SharePart.HOLDER:
            self._holder.poke()  # the holder waits for this end

    def _work(self, process: Process) -> Generator[_Wait, bool, KafkaError | None]:
        error = yield from self._join(process)
        if error is not None:
            return error
        rng = process.rng
        count = 0 if rng.random() < _NOTHING_TO_DO_RATE else 1 + rng.randrange(6)
        for number in range(count):
            error = yield from send(process, self.attempt, number, self._places)
            if error is not None:
                return error
            drawn = rng.random()
            if drawn < 0.1:
                yield sleep(process, 400)
            elif drawn < 0.2:
                yield from flush(process)
        # Without a flush a receipt must be refused unless all is acknowledged by chance.
        if rng.random() < _HASTY_RATE and self._give_receipt() is None:
            return None  # every record was acknowledged
        yield from flush(process)
        return self._give_receipt()

    def _give_receipt(self) -> KafkaError | None:
        try:
            self.receipt = self.process.core.give_receipt()
        except KafkaError as refusal:
            return refusal
        return None

    def _join(self, process: Process) -> Generator[_Wait, bool, KafkaError | None]:
        patience = Patience(process)
        while patience.lasts():
            ended = yield from call(
                process, lambda: process.core.begin_join(self._lease, self._claim)
            )
            # This request may use up an epoch of the claim, which a later claim then misses.
            if self._holder.is_crashed or self._holder.manager.share.lease != self._lease:
                history = process.world.history
                history.straggled_ms[process.transactional_id] = process.now_ms
            if not ended.is_timed_out:
                if isinstance(ended.error, ClaimRefusedError):
                    self._is_claim_disturbed = self._has_claim_changed_hands()
                return ended.error
        patience.gave_up("join")
        return KafkaError("the participant has no more patience")

    def _has_claim_changed_hands(self) -> bool:
        """Return whether this holder has lost a claim to another producer, or by expiration.

        Another process with the holder's id may have taken the claim before this holder began. The
        holder knows the claim from the transaction of that process, which it has ended. And a
        coordinator forgets an idle claim.
        """
        world, holder = self.process.world, self._holder.name
        name = claim_id(self.process.transactional_id or "", self._claim)
        taken = [fence for fence in world.history.fences if fence.owner == name]
        own = [n for n, fence in enumerate(taken) if fence.asked_by == self.process.name]
        if not own or not own[0]:
            return False
        before = taken[own[0] - 1]
        is_anothers = before.asked_by != holder and not before.asked_by.startswith(f"{holder}.")
        return is_anothers or taken[own[0]].acts_of_time != before.acts_of_time

    @property
    def has_own_fault(self) -> bool:
        """Whether it could fail because of its own records or a lost answer."""
        process, attempt = self.process, self.attempt
        # After a repeated request, or one from an earlier run, an epoch is used up that no
        # producer has.
        straggled_ms = process.world.history.straggled_ms.get(process.transactional_id)
        is_late = straggled_ms is not None and process.now_ms - straggled_ms < _LONGEST_SLEEP_MS
        has_lost_epoch = process.network.claims_asked > 1 or is_late or self._is_claim_disturbed
        is_unsure = isinstance(self.error, ClaimRefusedError) and has_lost_epoch
        waited = any(record.has_timed_out for record in attempt.records)
        return attempt.is_mistaken or waited or is_unsure or self._is_forgotten

    @property
    def _is_forgotten(self) -> bool:
        cluster, producer_id = self.process.world.cluster, self.attempt.identity.producer_id
        return any(
            record.future is not None
            and isinstance(record.future.error, UnknownProducerIdError | OutOfOrderSequenceError)
            and cluster.has_forgotten(record.place, producer_id)
            for record in self.attempt.records
        )


class _SharedTransaction(PlainTransaction):
    """A leased transaction: participants write its records, and this process ends it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._runs: dict[int, _ClaimRun] = {}
        self._all_runs: list[_ClaimRun] = []

    def _fill(self) -> Generator[_Wait, bool, KafkaError | None]:
        rng, options = self._process.rng, self._world.options
        error = yield from self._lease()
        if isinstance(error, UnsupportedVersionError) and options.cluster.is_before_2_5:
            return (yield from super()._fill())
        if error is None:
            self._start_work()
            error = yield from self._await_receipts()
        if error is None:
            error = self._adopt()
        if error is None and rng.random() < options.offsets_rate:
            error = yield from self._send_offsets()
        if error is not None and self._world.is_ending:
            # With transactions v1, a participant that continues after the abort begins another
            # transaction under the same epoch. Ending that one fences the holder.
            limit_ms = self._world.longest_call_ms
            yield self._is_everybody_gone, self._process.now_ms + limit_ms
        has_left = any(run.has_left_opening for run in self._all_runs)
        self._attempt.has_stragglers = has_left or not self._is_everybody_gone()
        self._attempt.is_mistaken |= any(run.has_own_fault for run in self._all_runs)
        return error

    def _is_everybody_gone(self) -> bool:
        return all(run.receipt is not None or run.error is not None for run in self._all_runs)

    def _lease(self) -> Generator[_Wait, bool, KafkaError | None]:
        process = self._process
        claims = 1 + process.rng.randrange(self._world.options.partition_count)
        patience = Patience(process)
        while patience.lasts():
            ended = yield from call(process, lambda: self._begin_lease(claims))
            if not ended.is_timed_out:
                self._identify()
                self._attempt.is_leased = ended.error is None
                return ended.error
        self._attempt.has_given_up = True
        patience.gave_up("lease")
        return KafkaError("the application has no more patience", recovery="abort")

    def _begin_lease(self, claims: int) -> TransactionalRequestResult:
        leasing = self._process.core.begin_lease(claims)
        try:
            self._process.manager.check_can_append()
        except (IllegalStateError, KafkaError):
            return leasing
        # The record's sequence would be 0, as that of the participants' first records.
        self._world.history.violate(
            "state", f"{self._process.name} may send beside a lease: {leasing!r}"
        )
        return leasing

    def _start_work(self) -> None:
        for claim in range(len(self._process.core.lease.claims)):
            self._run(claim)
            is_well = self._world.is_ending
            if not is_well and self._process.rng.random() < _SECOND_RUN_RATE:
                delay_ms = self._process.rng.randrange(_SECOND_RUN_WITHIN_MS)
                at_ms = self._process.now_ms + delay_ms
                self._world.call_at(at_ms, partial(self._run_again, claim))

    def _run(self, claim: int) -> None:
        lease = self._process.core.lease
        count, claims = self._world.options.partition_count, len(lease.claims)
        places = [number for number in range(count) if number % claims == claim]
        label = f"{self._attempt.name}:{claim}"
        self._runs[claim] = run = _ClaimRun(self._process, label, lease, claim, places)
        self._all_runs.append(run)

    def _run_again(self, claim: int, now_ms: int) -> None:  # noqa: ARG002
        """Run a claim's work again while its first run, which counts as lost, is only paused."""
        first, rng = self._runs[claim], self._process.rng
        is_due = first.receipt is None and first.error is None and not self._process.is_crashed
        # Between the draw and this moment the first run, or the transaction, may have ended.
        if not is_due or self._world.is_ending or self._attempt.claim != "open":
            return
        if self._process.manager.share.lease is None:
            return  # the transaction is aborted
        first.process.pause(rng.choice(_SLEEPS_MS))  # perhaps into a later transaction
        self._run(claim)

    def _await_receipts(self) -> Generator[_Wait, bool, KafkaError | None]:
        process, world = self._process, self._world
        if process.rng.random() < _EARLY_COMMIT_RATE:
            yield self._is_any_receipt_there, process.now_ms + _LONGEST_WORK_MS
            self._commit_too_early()
        limit_ms = world.longest_call_ms if world.is_ending else _LONGEST_WORK_MS
        is_over = yield self._is_work_over, process.now_ms + limit_ms
        failed = next((run for run in self._runs.values() if run.error is not None), None)
        if failed is not None:
            return KafkaError(f"{failed.process.name}: {failed.error!r}", recovery="abort")
        if not is_over:
            self._attempt.has_given_up = True
            return KafkaError("not all participants have ended", recovery="abort")
        return None

    def _is_any_receipt_there(self) -> bool:
        return any(run.receipt is not None for run in self._runs.values()) or self._is_work_over()

    def _is_work_over(self) -> bool:
        runs = self._runs.values()
        has_failed = any(run.error is not None for run in runs)
        return has_failed or all(run.receipt is not None for run in runs)

    def _commit_too_early(self) -> None:
        """Commit with the receipts so far, and check that an incomplete set is refused."""
        core, manager = self._process.core, self._process.manager
        receipts = self._receipts()
        # A complete set is rightly taken, and a failed transaction is refused for another reason.
        if len(receipts) == len(self._runs) or manager.machine.has_error:
            return
        try:
            core.adopt(receipts)
            core.begin_commit()
        except IllegalStateError:
            return
        except KafkaError:
            return  # the transaction has failed before
        self._world.history.violate(
            "state", f"{self._process.name} commits with {len(receipts)} of {len(self._runs)}"
        )

    def _receipts(self) -> list[TransactionReceipt]:
        return [run.receipt for run in self._runs.values() if run.receipt is not None]

    def _adopt(self) -> KafkaError | None:
        try:
            self._process.core.adopt(self._receipts())
        except KafkaError as refusal:
            return refusal
        for run in self._runs.values():
            # A receipt does not contain records that the application lost before `send`.
            self._check_receipt(run)
            self._attempt.records += run.attempt.records
            self._attempt.interrupted += run.attempt.interrupted
            # Moved and not copied: records of a run's own attempt must not be committed.
            run.attempt.records, run.attempt.interrupted = [], []
        return None

    def _check_receipt(self, run: _ClaimRun) -> None:
        counts: dict[TopicPartition, int] = {}
        for record in run.attempt.records:
            counts[record.place] = counts.get(record.place, 0) + 1
        told = dict(run.receipt.partitions) if run.receipt is not None else {}
        # The application does not know the partition of a record if an exception interrupted its
        # call.
        lost = run.attempt.interrupted
        least = sum(record.is_sent is True for record in lost)
        most = sum(record.is_sent is not False for record in lost)
        more = sum(told.values()) - sum(counts.values())
        is_short = any(told.get(place, 0) < count for place, count in counts.items())
        if is_short or not least <= more <= most:
            self._world.history.violate(
                "told", f"{run.process.name}: the receipt says {told}, and it sent {counts}"
            )

    def _commit_it(self) -> Generator[_Wait, bool, bool]:
        is_written = self._attempt.records or self._attempt.group_id is not None
        lease = self._process.manager.share.lease  # None if the cluster is too old for leases
        if lease is not None and is_written and self._process.rng.random() < _RESUMED_RATE:
            resume(self._process, self._attempt, lease, self._receipts())
        return (yield from super()._commit_it())


class _HandedOverTransaction(PlainTransaction):
    """A transaction that one process writes and another one ends."""

    def _commit_it(self) -> Generator[_Wait, bool, bool]:
        process = self._process
        yield from flush(process)
        patience = Patience(process)
        ended = Ended(None, is_timed_out=True)
        while ended.is_timed_out and patience.lasts():
            ended = yield from call(process, lambda: process.core.begin_lease(0))
        if ended.error is None:
            self._attempt.is_leased = True
            resume(process, self._attempt, process.core.lease, ())
        return (yield from super()._commit_it())


def resume(
    process: Process,
    attempt: Attempt,
    lease: TransactionLease,
    receipts: Sequence[TransactionReceipt],
) -> None:
    """Continue a transaction with another producer. The one before is gone."""
    was_calm = process.is_calm
    process.network.close()
    process.renew()
    # It keeps the identity, which during the faults another process may have fenced.
    process.is_calm = process.is_calm and was_calm
    # The wire rules learn an identity from an answer, and another process got this one.
    process.network.take_over(lease.producer)
    process.core.resume(lease)
    if lease.claims:
        process.core.adopt(receipts)
    attempt.incarnation = process.incarnation  # it ends the transaction
    attempt.commits_in_doubt_before = process.network.commits_in_doubt
