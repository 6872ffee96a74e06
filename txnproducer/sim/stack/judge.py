"""The judge of a run of the whole stack: its calls, its logs, its leftovers.

Owns: every check but those of the logs (`judges.log_judge`), of connections (`client_watch`,
`broker_watch`, `verdict_watch`) and of ends by force (`end_watch`). Must not know: the work of
services, the faults.

    crash     no thread of a producer ends with an exception, or logs one that is not a user's;
              a call raises a KafkaError or nothing
    hangs     no call takes longer than its limit; where no fault delays it, none takes long
    early     a call that says its time is up has taken that time
    spins     the threads let time pass
    state     a call that the state forbids is refused; an allowed one is not
    needless  with no fault under way, no call fails; but records may expire that have less than
              three seconds
    told      a commit succeeds only if every record did; a topic's partitions are those it has
    open      no transaction is open at the end
    fatal     no refused login ends a producer while another broker will do
    left      a closed producer leaves no thread, socket or memory behind
    progress  after the faults end, each service commits again, also with the producer that it had
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from txnproducer._protocol.messages import PartitionMetadata
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.judges.log_judge import LogJudge
from txnproducer.sim.stack.baton import KilledError
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt, CallbackError, SentRecord

__all__ = ["PROOFS", "CallBegin", "StackJudge"]

# The transactions that each service commits after the faults end.
PROOFS: Final = 2
# Beyond the limit of a call: the coordinator's account of a loss (a second), the looks at the
# clock, the wait for a lock.
_MOMENT_MS: Final = 1_500
# The longest of a call that began when no fault was under way.
_CALM_MS: Final = 3_000
# After that time no back-off or time-out of the faults is left.
_SETTLED_MS: Final = 10_000
# A client that renews its login on a half-open connection waits for half a minute, which begins
# within the lifetime of the session.
_RENEWED_MS: Final = 50_000
# It waits for several calls.
_COMPOSED: Final = "block"
# They may be refused, which the caller judges.
_REFUSED: Final = frozenset({"wrong call", "send beside", "flush beside"})
# These say that `max_block_ms` is over.
_BOUNDED: Final = frozenset(
    {
        "init_transactions",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
        "partitions_for",
        "enter block",
        "leave block",
    }
)


class SendsBeside(Protocol):
    """A thread that sends beside those that begin and end transactions."""

    def surely_in(self, attempt: Attempt) -> list[SentRecord]:
        """Return the records that must be in a transaction if it is committed."""
        ...

    def enter_records(self) -> None:
        """Give each record to the transaction that it is in, as far as that is known."""
        ...


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The begin of a call.

    Attributes:
        at_ms: the virtual time.
        jumped_ms: by how much the clocks had jumped before.
        is_calm: whether no fault was under way.
        is_undisturbed: whether none was that delays a call.
    """

    at_ms: int
    jumped_ms: int
    is_calm: bool
    is_undisturbed: bool


class StackJudge:
    """Judge the calls, the logs and the leftovers of a run.

    Args:
        world: of the run to judge.

    Attributes:
        companions: the threads beside the producers, whose records are judged too.
    """

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self.companions: list[SendsBeside] = []

    # --- while it runs --------------------------------------------------------------------------

    def begun(self) -> CallBegin:
        """Note the begin of a call."""
        # Asked at the begin: a call that began among faults may suffer from them after their end.
        world, is_calm = self._world, self._is_calm
        is_undisturbed = is_calm or world.options.is_undisturbed
        return CallBegin(world.baton.now_ms, world.jumped_ms, is_calm, is_undisturbed)

    @property
    def _is_calm(self) -> bool:
        world = self._world
        settled_ms = world.healed_ms + _SETTLED_MS
        users, half_open_ms = world.network.users, world.network.half_open_ms
        if half_open_ms and users is not None and users.have_sessions:
            settled_ms = max(settled_ms, half_open_ms + _RENEWED_MS)
        return world.options.is_calm or (world.is_healed and world.baton.now_ms >= settled_ms)

    def returned(
        self,
        service: str,
        call: str,
        begin: CallBegin,
        limit_ms: float,
        error: BaseException | None,
    ) -> None:
        """Judge a call that has returned.

        Args:
            service: its name.
            call: the name of the call.
            begin: noted before.
            limit_ms: how long it may take.
            error: that it raised, if it did.
        """
        world = self._world
        # Without the jumps of the clocks: no call can be quick while the machine stands still.
        took_ms = world.baton.now_ms - begin.at_ms - (world.jumped_ms - begin.jumped_ms)
        world.trace(f"{service}: {call}: {took_ms} ms, {error!r}")
        # No service passes a wrong argument, and an interrupt is no `Exception`.
        if isinstance(error, Exception) and not isinstance(error, KafkaError):
            self.violate("crash", f"{service}: {call}: {error!r}")
        if took_ms > limit_ms + _MOMENT_MS:
            self.violate("hangs", f"{service}: {call} took {took_ms} ms, and may take {limit_ms}")
        # With the jumps: they end a wait as well.
        is_early = world.baton.now_ms - begin.at_ms < world.max_block_ms - 1
        # A call that cannot end, as one that comes after the end of its producer, is refused.
        if call in _BOUNDED and isinstance(error, KafkaTimeoutError) and is_early:
            self.violate("early", f"{service}: {call} took {took_ms} ms: {error!r}")
        if begin.is_undisturbed and took_ms > _CALM_MS and call != _COMPOSED:
            self.violate("hangs", f"{service}: {call} took {took_ms} ms without any fault")
        if begin.is_calm and error is not None and call not in _REFUSED:
            self.needless(service, call, error)

    def needless(self, service: str, call: str, error: BaseException) -> None:
        """Judge the error of a call that began when no fault was under way."""
        if isinstance(error, KafkaError) and not self._was_short(error):
            self.violate("needless", f"{service}: {call}: {error!r}")

    def _was_short(self, error: KafkaError) -> bool:
        """Return whether records expired that had less time than a call takes without a fault.

        With one record in a batch and one request in flight, twenty records and the markers of the
        transaction before may need half a second.
        """
        cause = error.__cause__
        while cause is not None and not isinstance(cause, KafkaTimeoutError):
            cause = cause.__cause__
        settings = self._world.options.settings
        return cause is not None and settings["delivery_timeout_ms"] < _CALM_MS

    def violate(self, check: str, text: str) -> None:
        """Record a violation."""
        self._world.history.violate(check, text)

    def ended(self, attempt: Attempt) -> None:
        """Judge the records of a committed transaction when its commit returns."""
        beside = [r for companion in self.companions for r in companion.surely_in(attempt)]
        for record in (*attempt.records, *beside):
            future = record.future
            # Already done: a commit returns only after all records of its transaction.
            if future is None or not future.done() or future.error is not None:
                self.violate(
                    "told", f"{attempt.name} is committed with {record.value!r}: {future}"
                )

    def block_left(self, attempt: Attempt, outcome: str, error: BaseException | None) -> None:
        """Judge the end of a block: one that ends well is committed."""
        if error is None and outcome != "committed":
            self.violate("told", f"the block of {attempt.name} ends well and is {outcome}")

    def flushed(self, service: str, records: Iterable[SentRecord]) -> None:
        """Judge the records that were sent before a flush that has returned."""
        for record in records:
            if record.future is not None and not record.future.done():
                self.violate("told", f"{service}: flushed, and {record.value!r} is under way")

    def answered(self, topic: str, partitions: Sequence[PartitionMetadata] | None) -> None:
        """Judge the partitions that a producer has returned for a topic."""
        there = list(range(self._world.cluster.topology.partition_counts[topic]))
        told = None if partitions is None else [each.partition for each in partitions]
        if told != there:
            self.violate("told", f"{topic} has the partitions {there}, not {told}")

    def closed(self, service: str, producer: TransactionalProducer, logins: LoginWatch) -> None:
        """Judge a producer after `close`."""
        manager = producer._core.transaction_manager  # noqa: SLF001 - the judge looks inside
        error = None if manager is None else manager.machine.last_error
        has_failed = manager is not None and manager.machine.has_fatal_error
        if has_failed and not logins.excuses(error):
            self.violate("fatal", f"{service}: {error!r}, and another broker would do")
        if not producer._io.has_ended:  # noqa: SLF001 - the judge looks inside
            # A callback that blocks for longer than a forced close is not waited for.
            if "callback blocks" not in self._world.options.call_rates:
                self.violate("left", f"{service}: close has returned, and the loop goes on")
            return
        with producer._lock:  # noqa: SLF001
            metrics = producer._core.metrics()  # noqa: SLF001
        free, total = metrics["buffer-available-bytes"], metrics["buffer-total-bytes"]
        if free != total:
            self.violate("left", f"{service}: {total - free:.0f} bytes of memory")

    def logged(self, record: logging.LogRecord) -> None:
        """Judge an error that the package has logged."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, CallbackError | KafkaError | KilledError):
            self.violate("crash", f"logged: {record.getMessage()}: {error!r}")

    # --- in the end -----------------------------------------------------------------------------

    def finish(self, proofs: Mapping[str, int]) -> None:
        """Judge the whole run.

        Args:
            proofs: how many transactions each service has committed after the faults ended.
        """
        world = self._world
        for name, error in world.baton.failures:
            self.violate("crash", f"{name} ended: {error!r}")
        self._judge_logs()
        if world.baton.others:
            self.violate("left", f"threads: {[thread.name for thread in world.baton.others]}")
        if world.network.open_sockets:
            self.violate("left", f"{len(world.network.open_sockets)} sockets")
        for name, count in proofs.items():
            if count < PROOFS:
                self.violate("progress", f"{name} committed {count}")

    def _judge_logs(self) -> None:
        world = self._world
        for companion in self.companions:
            companion.enter_records()
        LogJudge(world.history, world.cluster).judge()
        if world.cluster.open_transactions:
            self.violate("open", f"transactions: {world.cluster.open_transactions}")
        # An open transaction holds back each `read_committed` reader of its partitions.
        for place, log in world.cluster.logs.items():
            if log.last_stable_offset != log.log_end_offset:
                self.violate("open", f"{place} is not stable")
