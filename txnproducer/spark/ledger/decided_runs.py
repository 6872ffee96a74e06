"""The state of a named run of prepared parts, as a take-over finds it in the ledger.

Why it exists: names have no order. So no entry of a part is "later" than another one, and a run
that is committed in part cannot be found by comparing numbers. Only the last decision can be
incomplete, since nothing else is written before its run is whole.

Owns: the state of a run, the refusal of others while a run is not whole. Must not know: how ids
are taken, how parts are ended.

Rules:
* A run is decided if its entry is committed. The entry is written with the decision, or by a
  transaction that needs none; so both are there, or neither.
* A decided run is whole unless the last decision is its own, and the entry of a part is missing.
* A run that is decided and not whole has to be written again before anything else: another
  decision would write over the one that shows what is missing.
* If all parts of a decision were lost, nothing of the run is visible, and it is written as if new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from txnproducer.spark.errors import TornBatchError
from txnproducer.spark.ledger.decisions import Decision
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.named_runs import read_run, read_run_parts, topic_ledger
from txnproducer.spark.ledger.rules import check_owner, check_whole_replay, cut_otherwise
from txnproducer.spark.ledger.slots import Content
from txnproducer.spark.ledger.store import Ledger


@dataclass(frozen=True)
class RunState:
    """The state of a named run.

    Attributes:
        entry: of all its rows; None if it is not decided.
        is_torn: whether parts of it were lost after the decision.
        done: the entries of the other parts then, by slot.
    """

    entry: LedgerEntry | None = None
    is_torn: bool = False
    done: Mapping[int, LedgerEntry] = field(default_factory=dict)

    @property
    def whole(self) -> LedgerEntry | None:
        """The entry of the run, if it is wholly committed."""
        return None if self.is_torn else self.entry

    def check_rows(self, found: Iterable[Content], on_replay_mismatch: str) -> None:
        """Check that a frame has the rows that were decided, before it completes a run.

        Args:
            found: the content of all partitions of the frame.
            on_replay_mismatch: "keep" to take them as they are.

        Raises:
            ReplayMismatchError: they are others.
        """
        if self.entry is None or on_replay_mismatch == "keep":
            return
        contents = list(found)
        rows, digest = sum(rows for rows, _ in contents), total(each for _, each in contents)
        check_whole_replay(self.entry, rows, digest)


def open_parts(
    ledger: Ledger,
    decision: Decision,
    *,
    waits_for_undecided: bool = True,
) -> list[int]:
    """Return the slots of a sink's last decision that no entry shows to be committed.

    Raises:
        UnstableOffsetCommitError, KafkaError: see `Ledger.read`.
    """
    run_id = decision.batch.run_id
    if run_id is None:
        _, entries = ledger.read(decision.parts, waits_for_undecided=waits_for_undecided)
    else:
        log = topic_ledger(ledger)
        entry = read_run(log, run_id, waits_for_undecided=waits_for_undecided)
        # Written again since, when nothing of it was visible; or it is forgotten, as old runs are.
        if entry is None or entry.decision != decision.number:
            return []
        entries = read_run_parts(log, decision.parts, waits_for_undecided=waits_for_undecided)
    found = {slot: entries.get(slot) for slot in decision.parts}
    left = [slot for slot, entry in found.items() if not decision.has_committed(entry)]
    others = [entry for entry in found.values() if decision.has_committed(entry)]
    return [] if all(_has_gone_on(decision, found[slot], others) for slot in left) else left


def _has_gone_on(
    decision: Decision, entry: LedgerEntry | None, others: Sequence[LedgerEntry | None]
) -> bool:
    """Return whether a slot has been written by its own commit since a decision about it.

    After a checkpoint was rewound, a slot can have an entry that is ahead of the batch that was
    decided since, and older. Then its part of the decision is still open.

    Args:
        decision: the last one.
        entry: of the slot.
        others: those of the decision's own parts.
    """
    if entry is None or entry.decision or entry.query_id != decision.batch.query_id:
        return False
    if decision.batch.run_id is not None or entry.batch_id < decision.batch.batch_id:
        return False
    times = [each.at_ms for each in others if each is not None and each.at_ms is not None]
    # The next batch begins when all parts are ended, so at least one other entry is there.
    return bool(others) and (entry.at_ms is None or all(at <= entry.at_ms for at in times))


def check_nothing_torn(ledger: Ledger, decision: Decision | None, batch: LedgerBatch) -> None:
    """Check that the run that was decided last is whole, if it is another one than this batch.

    All ids of the sink must be held.

    Raises:
        TornBatchError: it is not.
        KafkaError: the cluster refused, or did not answer.
    """
    if decision is None or decision.batch.run_id is None or _is_same(decision.batch, batch):
        return
    # Of another query: its rows are not this one's concern once the sink is.
    lost = open_parts(ledger, decision) if decision.batch.query_id == batch.query_id else []
    if lost:
        torn = decision.batch
        raise TornBatchError(
            f"run {torn.name} is decided, and {len(lost)} of its {torn.writers} parts "
            f"({', '.join(map(str, lost))}) were lost before they were ended. Nothing of batch "
            f"{batch.name} was written, since nothing could complete run {torn.name} after that. "
            f"Way out: write run {torn.name} again first, with the same rows in {torn.writers} "
            "partitions. Committed rows are recognised, the rest is written, and no row twice. "
            'If these rows are gone: on_replay_mismatch="keep" for that one write leaves the '
            "committed ones, and writes the rows that the other partitions hold now"
        )


def state_of(
    ledger: Ledger, decision: Decision | None, batch: LedgerBatch, *, takes_over: bool
) -> RunState:
    """Return the state of a named run. All ids of the sink must be held.

    Args:
        ledger: of the sink.
        decision: the last one.
        batch: the run.
        takes_over: whether another query's run of this name does not count.

    Raises:
        LedgerError: the run is another query's.
        PartialReplayError: it was broken off, and had another number of partitions.
        KafkaError: the cluster refused, or did not answer.
    """
    entry = find_run(ledger, batch, takes_over=takes_over)
    if entry is None or decision is None or not _is_same(decision.batch, batch):
        return RunState(entry)
    lost = open_parts(ledger, decision)
    if not lost:
        return RunState(entry)
    others = [slot for slot in range(decision.batch.writers) if slot not in lost]
    done = read_run_parts(topic_ledger(ledger), others)
    # Cut otherwise, the rest would be other rows. If there is no part, all rows are the rest.
    if done and decision.batch.writers != batch.writers:
        raise cut_otherwise(batch.name, done, batch.writers)
    return RunState(entry, is_torn=True, done=done)


def find_run(
    ledger: Ledger,
    batch: LedgerBatch,
    *,
    takes_over: bool,
    waits_for_undecided: bool = True,
) -> LedgerEntry | None:
    """Return the entry of a named run if it is decided.

    Raises:
        LedgerError: it is another query's.
        KafkaError: the cluster refused, or did not answer.
    """
    log = topic_ledger(ledger)
    entry = read_run(log, batch.run_id or "", waits_for_undecided=waits_for_undecided)
    if entry is None or entry.query_id == batch.query_id:
        return entry
    if not takes_over:
        check_owner(entry, batch.name, batch.query_id)
    return None  # it is written once more


def _is_same(one: LedgerBatch, other: LedgerBatch) -> bool:
    return (one.query_id, one.run_id) == (other.query_id, other.run_id)
