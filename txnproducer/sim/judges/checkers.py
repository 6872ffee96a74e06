"""The checks of a run, and the list of their names.

Why it exists: exactly once is a promise about the records that consumers read, under all faults.
Owns: every check, under a name that reports and the table of mutants use. The checks of the logs
are in `log_judge`. Must not know: the scripts of applications, the core's state machine. It looks
only at futures, callbacks, memory, logs and offsets.

    committed    the records of a committed transaction are there once, all of them, in order, in
                 every partition, and so are its offsets
    aborted      nothing of a transaction that was not committed is visible
    unknown      a transaction with an unknown outcome is visible completely or not at all; an
                 outcome is called unknown only if a commit had no answer
    order        a producer's transactions lie in the log in the order in which they were made
    offsets      a group's offsets are those of the committed transactions, in their order
    fenced       nothing of an older producer is appended once a newer one has its identity
    acknowledged every acknowledged record lies once in the log, at the reported offset
    duplicated   no record of an idempotent producer is twice in a log
    told         commit succeeds only if every record did; each record has one callback, in order;
                 no failure is counted that was not one
    content      a record in a log has the key, headers, time and partition that it was given
    expired      no record expires before its time, and after the faults end none expires for lack
                 of progress
    needless     after the faults end, nothing else fails without an excuse (see `excuses`)
    memory       a closed producer has given back all of its buffer memory
    open         when the end of a transaction returns, the coordinator has ended it, too; at the
                 end of the run no transaction is open and no offset pending
    reader       the records that a consumer has read stay in the log
    interrupted  if an exception interrupts the sending of a record, the record is sent or its
                 transaction is not committed
    fatal        even during faults a producer fails for good only for a lasting reason
    state        no call is refused with an illegal state; the sender never poisons the producer
    numbers, again, identity  see `wire_rules`
    hangs, spins    see `world` and `process`
    crash        the core raises nothing that it does not promise
    logged       the core logs no exception
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from txnproducer._broker.topics import Life
from txnproducer._core.transactions.commit_evidence import SentCommit
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import (
    AuthenticationError,
    AuthorizationError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.sim.apps.process import Process
from txnproducer.sim.judges.excuses import CAN_BUMP, unexcused
from txnproducer.sim.judges.fatal_ends import needless_end
from txnproducer.sim.judges.log_judge import LogJudge
from txnproducer.sim.world.history import Attempt
from txnproducer.sim.world.world import World

# The outcome of the last transaction, by the state in a description.
_ENDS = {
    "PrepareCommit": "committed",
    "CompleteCommit": "committed",
    "PrepareAbort": "aborted",
    "CompleteAbort": "aborted",
}
# The age of the batch, in the message of an expired record.
_EXPIRED = re.compile(r" expired (\d+) ms after")
# The states of a producer after its request for a new epoch was refused.
_NOT_BUMPED = (
    TransactionState.UNINITIALIZED,
    TransactionState.INITIALIZING,
    TransactionState.ABORTABLE_ERROR,
)
# Long enough to deliver a record that is refused a few times.
_LONG_ENOUGH_MS = 10_000


class Checkers:
    """Checks during a run and after it.

    Args:
        world: the world whose logs are judged.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._history = world.history
        # By isolation level: the batches that were read, and the offset up to which they were
        # read.
        self._read: dict[bool, dict[Life, list[tuple[int, int, int]]]] = {
            level: defaultdict(list) for level in (True, False)
        }
        self._read_up_to: dict[bool, Counter[Life]] = {level: Counter() for level in (True, False)}

        self._errors_counted: dict[tuple[str, int], int] = {}

    # --- while it runs --------------------------------------------------------------------------

    def refused(self, process: Process, call: str, error: KafkaError) -> None:
        """Check the reason for which a call failed."""
        cause = error.__cause__
        # Applications make only calls that the state allows; misuse is a call of its own
        # (`sending.misuse`).
        if isinstance(error, IllegalStateError) or isinstance(cause, IllegalStateError):
            self._history.violate("state", f"{process.name}: {call}: {error} ({cause})")

    def committed(self, process: Process, attempt: Attempt) -> None:
        """Check that every record has succeeded when the commit returns."""
        for record in attempt.records:
            future = record.future
            if future is None or not future.done() or future.error is not None:
                self._history.violate(
                    "told",
                    f"{process.name}: {attempt.name} committed with {record.value!r}: {future}",
                )

    def ended(self, process: Process, attempt: Attempt) -> None:
        """Check that the coordinator has ended a transaction, too, when its end returns."""
        name = process.transactional_id or ""
        # Kept for the judge of the offsets: a commit of the client itself repeats only what had
        # begun late by this moment. Afterwards a commit that is late, too, must follow.
        attempt.late_by_end = self._history.late[name]
        attempt.late_commits_by_end = self._history.late_commits[name]
        known = self._world.cluster.transaction_coordinator(name).find(name)
        is_v1 = self._world.options.cluster.transaction_version == 1
        if known is None or attempt.late_by_end > attempt.late_before:
            return  # a late request may have begun another transaction
        if attempt.has_stragglers and is_v1:
            return  # a straggler may have begun another transaction
        can_bump = self._world.options.cluster.init_producer_id_version >= CAN_BUMP
        # The new epoch was refused because access is refused or the transaction is abortable. The
        # producer has to be initialized again, and this ends every transaction.
        is_refused = process.manager.machine.state in _NOT_BUMPED
        is_bumped = can_bump and not (is_refused or process.manager.machine.has_fatal_error)
        is_kept = self._world.faults.openings_kept[name] > attempt.kept_before
        if not is_bumped and (is_kept or (is_v1 and attempt.is_leased)):
            # The coordinator denied that there was a transaction, and later found it in its log.
            # Or a participant began one after the end, which v1 does not prevent. Such a
            # transaction is empty, and only a new epoch or producer would prevent it.
            return
        described = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
        # Under another identity it is the transaction of a newer producer, which is none of this
        # one's.
        if known.state.value == "Ongoing" and described == attempt.identity:
            self._history.violate("open", f"{attempt.name} is {attempt.claim}, and goes on")

    def plain_ended(self, process: Process, attempt: Attempt) -> None:
        """Check an idempotent producer and its records after a flush."""
        manager = process.core.transaction_manager
        error = manager.machine.last_error if manager is not None and process.has_failed else None
        is_refused = isinstance(error, AuthenticationError | AuthorizationError)
        # An idempotent producer can always go on under a new id, which it needs access and a login
        # for.
        if error is not None and (process.is_calm or not is_refused):
            self._history.violate("needless", f"{process.name} has failed for good: {error!r}")
        for record in attempt.records:
            if record.future is not None and not record.future.done():
                self._history.violate("hangs", f"{process.name}: {record.value!r} after flush")

    def closed(self, process: Process) -> None:
        """Check the memory and the futures of a closed producer."""
        metrics = process.core.metrics()
        # A leak shows only here: while records wait, any amount may rightly be in use.
        if metrics["buffer-available-bytes"] != metrics["buffer-total-bytes"]:
            self._history.violate("memory", f"{process.name}: {metrics}")
        life = (process.name, process.incarnation)
        # Sends beside an attempt fail, too, and the history has no future of them.
        self._errors_counted[life] = int(metrics["record-error-total"]) - process.failed_appends
        for attempt in self._history.attempts:
            if (attempt.owner_process, attempt.incarnation) != life:
                continue
            for record in attempt.records:
                if record.future is not None and not record.future.done():
                    self._history.violate("hangs", f"{record.value!r} has no end after close")

    def poisoned(self, process: Process) -> None:
        """Check that the sender met no illegal state."""
        error = process.last_error
        if isinstance(error, IllegalStateError):
            self._history.violate("state", f"{process.name} is poisoned: {error}")

    def failed_for_good(self, process: Process) -> None:
        """Check the reason for which a producer failed for good, during faults and after them."""
        reason = needless_end(process)
        if reason is not None:
            self._history.violate("fatal", reason)

    def init_failed(self, process: Process, error: KafkaError) -> None:
        """Check an initialization that failed."""
        # Time acts even when all faults have ended: an id that expires meanwhile is refused
        # rightly.
        if process.is_calm and not self._world.has_time_acted(process.transactional_id):
            self._history.violate("needless", f"{process.name}: init_transactions: {error!r}")

    def timed_out(self, process: Process, waited_ms: int) -> None:
        """Check the time that an unfinished call has taken."""
        # A shorter wait may fall into one of the mild events. The application then calls again.
        if process.is_calm and waited_ms >= _LONG_ENOUGH_MS:
            self._history.violate("hangs", f"{process.name}: a call took {waited_ms} ms")

    def gave_up(self, process: Process, call: str) -> None:
        """Report a call that did not end although the faults ended long enough ago."""
        self._history.violate("hangs", f"{process.name}: {call} does not end")

    def closed_in_time(self, process: Process) -> None:
        """Check that a producer closed in good order left no transaction open."""
        name = process.transactional_id
        # A failed producer cannot send EndTxn, and during faults its request may have been lost.
        if name is None or not process.is_calm or _has_failed_before_close(process):
            return
        if process.manager.share.is_left_open_on_close:
            return  # the transaction belongs to another process
        known = self._world.cluster.transaction_coordinator(name).find(name)
        if known is not None and known.state.value == "Ongoing":
            self._history.violate("open", f"{process.name} is closed, its transaction open")

    def resolved(
        self,
        attempt: Attempt,
        commit: SentCommit,
        described: ProducerIdAndEpoch,
        state: str,
    ) -> None:
        """Check the claimed outcome of a commit against an unambiguous state of the coordinator.

        With v2, the epoch after the commit's can only come from the end of its transaction. With
        v1, the end has the epoch of the transaction itself, which proves the outcome unless a late
        request may have begun another transaction. Even then it proves a commit, unless an abort
        was begun.
        """
        producer_id, epoch = commit.producer.producer_id, commit.producer.producer_epoch
        end = ProducerIdAndEpoch(producer_id, epoch + int(commit.is_transaction_v2))
        is_plain = described == end and state in _ENDS
        if self._may_begin_again(attempt, commit):
            is_plain &= "Commit" in state and not commit.is_given_up
        if is_plain and attempt.claim != _ENDS[state]:
            self._history.violate(
                "unknown", f"{attempt.name} is {attempt.claim}, but the coordinator says {state}"
            )
        # The commit may still be on its way to this open transaction, so nothing is decided yet.
        if state == "Ongoing" and attempt.claim != "unknown":
            self._history.violate(
                "unknown", f"{attempt.name} is {attempt.claim}, and a commit can still arrive"
            )

    def _may_begin_again(self, attempt: Attempt, commit: SentCommit) -> bool:
        # v2 raises the epoch at each end, so a late request cannot begin a transaction under the
        # old one.
        is_v1 = not commit.is_transaction_v2
        return is_v1 and (attempt.is_leased or commit.producer in self._history.openings_in_doubt)

    def unknown(self, process: Process, attempt: Attempt) -> None:
        """Check that an outcome is called unknown only if a commit had no answer.

        The answer to a later abort decides as well, unless another transaction may have begun.
        """
        # Counted on the wire and not asked of the core, which would vouch for itself.
        if process.network.commits_in_doubt <= attempt.commits_in_doubt_before:
            self._history.violate(
                "unknown", f"{attempt.name}: each commit was answered, and it is called unknown"
            )
        commit, outcome = process.manager.last_commit, process.manager.progress.outcome
        if outcome == "unknown" and commit and not self._may_begin_again(attempt, commit):
            self._history.violate(
                "unknown", f"{attempt.name}: its abort was answered, and it is called unknown"
            )

    def consume(self) -> None:
        """Read on in every partition, as consumers at both isolation levels do."""
        for level, read in self._read.items():
            up_to = self._read_up_to[level]
            for place, log in self._world.cluster.topology.all_logs().items():
                start = up_to[place]
                # From the last position, as a consumer: a record that appears before it is never
                # read.
                for entry in log.visible_entries(read_committed=level, from_offset=start):
                    end = entry.base_offset + entry.record_count
                    read[place].append((entry.base_offset, end, entry.producer_id))
                    start = end
                last = log.last_stable_offset if level else log.log_end_offset
                # Past markers and aborted records as well. A consumer never comes back to them.
                up_to[place] = max(start, last)

    # --- in the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge the whole run."""
        outcomes = LogJudge(self._history, self._world.cluster).judge()
        self._check_counted()
        self._check_progress()
        self._check_patience()
        self._check_needless(outcomes)
        self._check_fences()
        self._check_nothing_open()
        self._check_readers()

    def _check_counted(self) -> None:
        errors: Counter[tuple[str, int]] = Counter()
        for attempt in self._history.attempts:
            futures = [r.future for r in attempt.records if r.future is not None]
            life = (attempt.owner_process, attempt.incarnation)
            errors[life] += sum(future.error is not None for future in futures)
            errors[life] += len(attempt.interrupted)  # the application has no future
        for life, counted in self._errors_counted.items():
            if counted > errors[life]:
                self._history.violate("told", f"{life}: counts {counted} of {errors[life]} errors")

    def _check_progress(self) -> None:
        given_ms = int(self._world.options.settings["delivery_timeout_ms"])
        # Earlier attempts may have spent most of their time-out on faults.
        for attempt in self._history.attempts[self._world.healed_at :]:
            # Producers from before the healing keep their short time-outs, in which one mild event
            # may be too much.
            if given_ms < _LONG_ENOUGH_MS and not attempt.is_calm:
                continue
            for record in attempt.records:
                future = record.future
                # A record that waited for memory or metadata has never been in a batch.
                if record.has_timed_out or future is None or not future.done():
                    continue
                if _EXPIRED.search(str(future.error)):
                    self._history.violate("expired", f"{record.value!r}: {future.error}")

    def _check_patience(self) -> None:
        for attempt in self._history.attempts:
            for record in attempt.records:
                error = None if record.future is None else record.future.error
                # The exact class: a BufferExhaustedError tells of no batch.
                told = _EXPIRED.search(str(error)) if type(error) is KafkaTimeoutError else None
                if told is not None and int(told[1]) < attempt.delivery_timeout_ms:
                    self._history.violate(
                        "expired", f"{record.value!r}: {error}, not {attempt.delivery_timeout_ms}"
                    )

    def _check_needless(self, outcomes: dict[str, bool | None]) -> None:
        world = self._world
        # A coordinator that ends a transaction or forgets an id by time fences a sound producer.
        attempts = [a for a in self._history.attempts if not world.is_upset(a.owner, a.identity)]
        for text in unexcused(
            attempts, self._history, world.options, outcomes, world.is_asker_forgotten
        ):
            self._history.violate("needless", text)

    def _check_fences(self) -> None:
        logs = self._world.cluster.topology.all_logs()
        ids: dict[str, set[int]] = defaultdict(set)
        for fence in self._history.fences:
            earlier = ids[fence.owner]
            # The id is the present one again: its batches must not count as those of an older
            # producer.
            earlier.discard(fence.producer_id)
            for life, log in logs.items():
                for entry in log.entries_from(fence.log_end_offsets.get(life, 0)):
                    is_own = entry.producer_id == fence.producer_id
                    is_older = is_own and entry.producer_epoch < fence.producer_epoch
                    # Markers of an older epoch still arrive: they end what the fenced producer had
                    # begun.
                    if entry.batch is not None and (is_older or entry.producer_id in earlier):
                        self._history.violate(
                            "fenced", f"{fence.owner}: {entry} after {fence.producer_epoch}"
                        )
            earlier.add(fence.producer_id)

    def _check_nothing_open(self) -> None:
        cluster = self._world.cluster
        if cluster.open_transactions:
            self._history.violate("open", f"transactions: {cluster.open_transactions}")
        for place, log in cluster.logs.items():
            # The logs are asked besides: a batch may have opened a transaction that no coordinator
            # knows.
            if log.last_stable_offset != log.log_end_offset:
                self._history.violate(
                    "open", f"{place}: {log.last_stable_offset} of {log.log_end_offset} stable"
                )
        if cluster.has_pending_offsets:
            self._history.violate("open", "offsets are pending")

    def _check_readers(self) -> None:
        logs = self._world.cluster.topology.all_logs()
        for level, by_place in self._read.items():
            for place, read in by_place.items():
                log = logs[place]
                final = [
                    (e.base_offset, e.base_offset + e.record_count, e.producer_id)
                    for e in log.visible_entries(read_committed=level)
                ]
                # A prefix is enough: records may have come after the last read.
                if final[: len(read)] != read:
                    self._history.violate(
                        "reader", f"{place}: a consumer has read what is not there"
                    )


def _has_failed_before_close(process: Process) -> bool:
    """Return whether a closed producer had failed before. The close itself ends it for good."""
    return process.has_failed and "the producer was closed" not in str(
        process.manager.machine.last_error
    )
