"""A witness that notes each call, record and offset with its transaction, and gives the verdict.

Calls of two threads overlap, so that their order says little about which transaction they were
for. The witness stands where the producer holds its lock, and there the order is certain. What
follows from it is judged by the modelled cluster's logs, when everything has ended.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from txnproducer import TransactionalProducer
from txnproducer._broker.cluster import BrokerCluster
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import RecordMetadata, TopicPartition
from txnproducer.transaction import Transaction

BEFORE_THE_FIRST = 0


@dataclass(eq=False)
class Sent:
    """A record that `send` was called for.

    Attributes:
        serial: what the value is made of.
        generation: of the transaction that it was for; they count from 1.
        is_late: whether the end of that transaction had begun: then it is not in it.
        future: None if `send` raised.
        deliveries: what its callback was called with; None if it has no callback.
    """

    serial: int
    value: bytes = field(repr=False)
    generation: int = BEFORE_THE_FIRST
    is_late: bool = False
    future: FutureRecordMetadata | None = None
    deliveries: list[tuple[RecordMetadata, KafkaError | None]] | None = None


@dataclass(eq=False)
class OffsetSent:
    """An offset given to `send_offsets_to_transaction`, with its `error` if it raised."""

    place: TopicPartition
    offset: int
    generation: int = BEFORE_THE_FIRST
    error: BaseException | None = None


@dataclass(eq=False)
class Seen:
    """The transaction that a thread's present call belongs to."""

    generation: int = BEFORE_THE_FIRST
    is_late: bool = False


@dataclass(eq=False)
class ReportedTransaction:
    """A transaction, as its callers have seen it end."""

    is_commit_begun: bool = False
    is_abort_begun: bool = False
    is_committed: bool = False
    is_aborted: bool = False
    blocks: list[Transaction] = field(default_factory=list)

    @property
    def is_ending(self) -> bool:
        return self.is_commit_begun or self.is_abort_begun


class Witness:
    """A witness of the calls, records and transactions of one run.

    Attributes:
        violations: what must not have happened.
        sent: every record.
        offsets: every offset.
        transactions: every transaction, by its generation.
    """

    def __init__(self) -> None:
        self.generation = BEFORE_THE_FIRST
        self.transactions: dict[int, ReportedTransaction] = {
            BEFORE_THE_FIRST: ReportedTransaction()
        }
        self.sent: list[Sent] = []
        self.offsets: list[OffsetSent] = []
        self.violations: list[str] = []
        self._seen = threading.local()

    # --- what happens under the producer's lock -------------------------------------------------

    def watch(self, producer: TransactionalProducer) -> None:
        """Wrap the calls that run under a producer's lock."""
        core: Any = producer._core
        core.begin_transaction = self._watched(producer, core.begin_transaction, self._on_begin)
        core.begin_commit = self._watched(producer, core.begin_commit, self._on_commit)
        core.begin_abort = self._watched(producer, core.begin_abort, self._on_abort)
        core.send_offsets_to_transaction = self._watched(
            producer, core.send_offsets_to_transaction, self._note
        )
        core.time_out_append = self._watched(producer, core.time_out_append, self._note)
        append: Any = self._watched(producer, producer._append, self._on_append)
        producer._append = append

    def _watched(
        self,
        producer: TransactionalProducer,
        call: Callable[..., Any],
        notice: Callable[[Any], None],
    ) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            manager = producer._core.transaction_manager
            assert manager is not None
            before = manager.machine.state, manager.machine.last_error
            try:
                outcome = call(*arguments)
            except IllegalStateError as error:
                if before != (manager.machine.state, manager.machine.last_error):
                    self.violations.append(
                        f"{before} became {manager.machine.state} with: {error}"
                    )
                raise
            notice(outcome)
            return outcome

        return watched

    def _note(self, _: Any) -> None:
        self.seen.generation = self.generation
        self.seen.is_late = self.transactions[self.generation].is_ending

    def _on_begin(self, _: Any) -> None:
        self.generation += 1
        self.transactions[self.generation] = ReportedTransaction()
        self._note(_)

    def _on_commit(self, _: Any) -> None:
        self._note(_)
        self.transactions[self.generation].is_commit_begun = True

    def _on_abort(self, _: Any) -> None:
        self._note(_)
        self.transactions[self.generation].is_abort_begun = True

    def _on_append(self, outcome: Any) -> None:
        if not isinstance(outcome, AppendBlocked):
            self._note(outcome)

    @property
    def seen(self) -> Seen:
        """The transaction that the present call of this thread belongs to."""
        if not hasattr(self._seen, "now"):
            self._seen.now = Seen()
        seen: Seen = self._seen.now
        return seen

    # --- the results that callers get -----------------------------------------------------------

    def on_committed(self) -> None:
        """Note that a commit has returned. The thread that committed calls this."""
        generation = self.seen.generation
        self.transactions[generation].is_committed = True
        for record in self._records_of(generation):
            future = record.future
            if future is not None and (not future.done() or future.error is not None):
                self._blame(generation, f"is committed, but record {record.serial}: {future}")
            if record.deliveries == []:
                self._blame(
                    generation, f"is committed before record {record.serial} is called back"
                )

    def on_aborted(self) -> None:
        """Note that an abort has returned. The thread that aborted calls this."""
        self.transactions[self.seen.generation].is_aborted = True

    def _records_of(self, generation: int) -> list[Sent]:
        return [
            record
            for record in list(self.sent)
            if record.generation == generation and record.future is not None and not record.is_late
        ]

    def _blame(self, generation: int, what: str) -> None:
        self.violations.append(f"transaction {generation} {what}")

    # --- while it goes on -----------------------------------------------------------------------

    def check_state(self, producer: TransactionalProducer) -> None:
        """Look whether the producer is in a state that it may be in."""
        manager = producer._core.transaction_manager
        assert manager is not None
        with producer._lock:
            state, error = manager.machine.state, manager.machine.last_error
        if not isinstance(state, TransactionState) or isinstance(error, IllegalStateError):
            self.violations.append(f"the producer is in {state} because of {error!r}")
        if (error is not None) != manager.machine.has_error and manager.machine.state is state:
            self.violations.append(f"the producer is in {state} with last_error {error!r}")

    # --- the verdict ----------------------------------------------------------------------------

    def judge(self, cluster: BrokerCluster) -> None:
        """Compare the results of all calls with the logs, when everything has ended."""
        written, visible = _values(cluster, False), _values(cluster, True)
        counted = Counter((place, offset.offset) for _, place, offset in cluster.offsets_history())
        for record in self.sent:
            self._judge_record(record, written)
        for value, count in visible.items():
            if count > 1:
                self.violations.append(f"{value[:20]!r} is visible {count} times")
        for generation, reported in self.transactions.items():
            there = [
                *((r.serial, visible[r.value]) for r in self._records_of(generation)),
                *((o, counted[o.place, o.offset]) for o in self._offsets_of(generation)),
            ]
            self._judge_transaction(generation, reported, there)

    def _offsets_of(self, generation: int) -> list[OffsetSent]:
        # An offset that was refused at once never was in a transaction.
        return [o for o in self.offsets if o.generation == generation]

    def _judge_record(self, record: Sent, written: Counter[bytes]) -> None:
        what = f"record {record.serial} of transaction {record.generation}"
        future = record.future
        if future is None:
            if written[record.value]:
                self.violations.append(f"{what} was refused, and written")
            return
        if not future.done():
            self.violations.append(f"{what} has no end after close: {future}")
        elif future.error is None and written[record.value] != 1:
            self.violations.append(f"{what} is delivered, {written[record.value]} times")
        if record.deliveries is None:
            return
        if [error for _, error in record.deliveries] != [future.error]:
            self.violations.append(f"{what}: {future}, called back {record.deliveries}")

    def _judge_transaction(
        self, generation: int, reported: ReportedTransaction, there: list[tuple[object, int]]
    ) -> None:
        outcomes = {block.outcome for block in reported.blocks}
        is_committed = reported.is_committed or "committed" in outcomes
        is_aborted = reported.is_aborted or "aborted" in outcomes
        found = [what for what, count in there if count]
        missing = [what for what, count in there if not count]
        if is_committed and is_aborted:
            self._blame(generation, f"is both committed and aborted: {reported}")
        if "open" in outcomes:
            self._blame(generation, f"is still open after close: {reported}")
        if is_committed and missing:
            self._blame(generation, f"is committed without {missing}")
        if (is_aborted or not reported.is_commit_begun) and found:
            self._blame(generation, f"is not committed, and shows {found}: {reported}")
        if found and missing:
            self._blame(generation, f"shows {found}, and not {missing}")
        failed = [r.serial for r in self._records_of(generation) if r.future and r.future.error]
        if found and failed:
            self._blame(generation, f"shows {found}, though {failed} failed")


def _values(cluster: BrokerCluster, read_committed: bool) -> Counter[bytes]:
    return Counter(_all_values(cluster, read_committed))


def _all_values(cluster: BrokerCluster, read_committed: bool) -> Iterable[bytes]:
    for place in cluster.logs:
        for record in cluster.read(place, read_committed=read_committed):
            if record.value is not None:
                yield record.value
