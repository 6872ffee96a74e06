"""One producer process: a core, its network, and the application that uses them.

Why it exists: it does the work of the facade and its I/O thread (run the loop, run callbacks, let
calls wait), in virtual time and one step after the other.
Owns: `Process`. Must not know: the applications (`workload.py`), the contents of the logs.

An application is a generator. It yields a condition and a time to wait for, and receives whether
the condition holds. The process can crash at any of these points.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.ports import DoneCallbacks
from txnproducer._core.producer_core import ProducerCore
from txnproducer._core.transactions.commit_evidence import SentCommit
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._record.sealed_records import SealedRecords
from txnproducer.config import ProducerConfig
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.sim.apps.interrupts import Interrupts
from txnproducer.sim.world.history import Attempt
from txnproducer.sim.world.network import SimNetwork
from txnproducer.sim.world.options import TIME_ENOUGH
from txnproducer.sim.world.world import World

Condition: TypeAlias = Callable[[], bool]
Script: TypeAlias = Generator[tuple[Condition, int], bool, Any]

FOR_EVER_MS = 1 << 40
# A core that asks for more turns than this at one moment does nothing in them.
_SPINNING = 500
_LENT_IN_VAIN = 4
# Condition variables wake without a reason, and a wait has to look again.
_LOOK_TOO_EARLY_EACH = 5


class Judge(Protocol):
    """Judges the events of a process."""

    def refused(self, process: Process, call: str, error: KafkaError) -> None:
        """Check the reason for which a call failed."""
        ...

    def committed(self, process: Process, attempt: Attempt) -> None:
        """Check the records when a commit returns."""
        ...

    def ended(self, process: Process, attempt: Attempt) -> None:
        """Check the coordinator when the end of a transaction returns."""
        ...

    def plain_ended(self, process: Process, attempt: Attempt) -> None:
        """Check an idempotent producer after a flush."""
        ...

    def closed(self, process: Process) -> None:
        """Check the state that a closed producer leaves."""
        ...

    def closed_in_time(self, process: Process) -> None:
        """Check that a producer closed in good order left no transaction open."""
        ...

    def failed_for_good(self, process: Process) -> None:
        """Check the reason for which a producer failed for good."""
        ...

    def init_failed(self, process: Process, error: KafkaError) -> None:
        """Check an initialization that failed."""
        ...

    def timed_out(self, process: Process, waited_ms: int) -> None:
        """Check the time that an unfinished call has taken."""
        ...

    def gave_up(self, process: Process, call: str) -> None:
        """Report a call that did not end although no faults are left."""
        ...

    def resolved(
        self, attempt: Attempt, commit: SentCommit, described: ProducerIdAndEpoch, state: str
    ) -> None:
        """Check the outcome that was found for a commit."""
        ...

    def unknown(self, process: Process, attempt: Attempt) -> None:
        """Check a commit with an unknown outcome."""
        ...


class Run(Protocol):
    """The services of the run for its processes."""

    world: World
    judge: Judge
    interrupts: Interrupts

    def is_calm(self, process: Process) -> bool:
        """Return whether the faults are over and no other process uses the transactional id."""
        ...

    def wants_more(self, process: Process) -> bool:
        """Return whether an application shall continue."""
        ...

    def must_restart(self, process: Process) -> bool:
        """Return whether an application has to continue with a new producer."""
        ...

    def group_of(self, process: Process) -> str:
        """Return the consumer group that a transactional id reads with."""
        ...

    def new_attempt(self, process: Process) -> Attempt:
        """Return a new record of an application's attempt."""
        ...

    def count_transaction(self, attempt: Attempt) -> None:
        """Count a transaction that reaches its end."""
        ...

    def start_participant(
        self, holder: Process, make_script: Callable[[Process], Script]
    ) -> Process:
        """Start a process that takes part in another one's transaction."""
        ...


class Process:
    """A simulated producer process.

    Args:
        programs: the programs of the run, with the world around them.
        name: the name in the trace.
        transactional_id: the transactional id, or None for an idempotent producer.
        settings: the settings of the producer.
        rng: the randomness of this process alone.
        make_script: makes the application. It is called again after a crash.
        holder: the process in whose transaction it takes part, or None for a producer of its own.

    Attributes:
        core: the present producer.
        incarnation: the number of the producer among all producers with this id.
        is_done: whether the application has ended.
        is_second: whether it was started beside another process with the same id.
        is_calm: whether its producer began after the faults ended, and no other one has its id.
        is_closing: whether its application has begun to close its producer.
        failed_appends: the number of records that failed at once and belong to no attempt.
    """

    core: ProducerCore
    network: SimNetwork
    config: ProducerConfig

    def __init__(
        self,
        programs: Run,
        name: str,
        transactional_id: str | None,
        settings: dict[str, Any],
        rng: random.Random,
        make_script: Callable[[Process], Script],
        holder: Process | None = None,
    ) -> None:
        self.programs = programs
        self.world, self.judge = programs.world, programs.judge
        self.interrupts = programs.interrupts
        self.name = name
        self.holder = holder
        self.transactional_id = transactional_id
        self.rng = rng
        self.incarnation = 0
        self.is_done = False
        self.is_crashed = False
        self.is_second = self.is_calm = self.is_closing = False
        self._has_ended = False
        self.failed_appends = 0
        self._settings = settings
        self.config = self._build_config()
        self._make_script = make_script
        self._script: Script | None = None
        self._condition: Condition = lambda: True
        self._until_ms = 0
        self._paused_until_ms = 0
        self._wake_ms = FOR_EVER_MS
        self._is_fresh = False
        self._looks = 0
        # A send of another thread, and the producer in which it waits.
        self.waiting: tuple[ProducerCore | None, AppendBlocked | None] = (None, None)
        self.renew()

    def is_looking_too_early(self) -> bool:
        """Return, now and then, that a wait for memory or metadata ends without a reason."""
        # Counted and not drawn, so that these looks change nothing else in a run.
        self._looks += 1
        return self._looks % _LOOK_TOO_EARLY_EACH == 0

    @property
    def now_ms(self) -> int:
        """The virtual time."""
        return self.world.now_ms

    @property
    def manager(self) -> TransactionManager:
        """The present producer's transaction manager."""
        manager = self.core.transaction_manager
        if manager is None:
            raise IllegalStateError(f"{self.name} is a producer without idempotence")
        return manager

    @property
    def last_error(self) -> KafkaError | None:
        """The last error of the present producer."""
        manager = self.core.transaction_manager
        return None if manager is None else manager.machine.last_error

    @property
    def has_failed(self) -> bool:
        """Whether the present producer has failed for good."""
        manager = self.core.transaction_manager
        return manager is not None and manager.machine.has_fatal_error

    def _build_config(self, **changed: Any) -> ProducerConfig:
        nodes = self.world.cluster.nodes.values()
        return ProducerConfig.build(
            bootstrap_servers=",".join(f"{node.host}:{node.port}" for node in nodes),
            transactional_id=self.transactional_id,
            **{**self._settings, **changed},
        )

    def renew(self) -> None:
        """Make a new producer, as a new process would."""
        self.incarnation = self.world.next_incarnation(self.transactional_id)
        self.is_calm = self.programs.is_calm(self)
        self.failed_appends = 0
        self.is_closing = self._has_ended = False
        # Its own settings may be too short even for the mild events that remain.
        if self.is_calm:
            self.config = self._build_config(**TIME_ENOUGH)
        self.network = SimNetwork(self.world, self.name, self.incarnation, self.rng, self.config)
        self.network.on_event = self.poke
        self.core = ProducerCore(self.config, self.network, self, self.rng, self.now_ms)
        self._lent: SealedRecords | None = None
        self._lent_batches = 0

    def start(self) -> None:
        """Run the application."""
        self.is_crashed = False
        self._script = self._make_script(self)
        self._condition, self._until_ms = lambda: True, 0
        self._is_fresh = True
        self.poke()

    # --- what happens to it ---------------------------------------------------------------------

    def crash(self) -> None:
        """Stop the process at once, without closing anything."""
        self.is_crashed = True
        # Requests in flight may still arrive: the process is gone, not what it has sent.
        self.network.close()
        if self._script is not None:
            self._script.close()
            self._script = None

    def restart(self) -> None:
        """Start again after a crash."""
        self.renew()
        self.start()

    def pause(self, duration_ms: int) -> None:
        """Stop for a while. All events of that time are handled together afterwards."""
        self._paused_until_ms = self.now_ms + duration_ms
        self._schedule(self._paused_until_ms)

    # --- the loop -------------------------------------------------------------------------------

    def poke(self) -> None:
        """Schedule a turn of the loop at this moment."""
        # One turn takes all events of a moment, as a loop does that was woken once.
        if self._wake_ms > self.now_ms:
            self._schedule(self.now_ms)

    def _schedule(self, at_ms: int) -> None:
        if at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self.world.call_at(at_ms, self._wake)

    def _wake(self, at_ms: int) -> None:
        # An earlier wake-up took its place, and has planned a later one.
        if at_ms < self._wake_ms:
            return
        self._wake_ms = FOR_EVER_MS
        if self.is_crashed or (self._script is None and self.is_done):
            return
        if at_ms < self._paused_until_ms:
            self._schedule(self._paused_until_ms)
            return
        self._turn_until_idle(at_ms)

    def _turn_until_idle(self, now_ms: int) -> None:
        for _ in range(_SPINNING):
            delay_ms = self._turn(now_ms)
            # The script may have called the core, or a fault may have closed a connection within
            # the turn.
            is_news = bool(self.network.inbox) or self.core.needs_wakeup
            if delay_ms > 0 and not is_news:
                break
        else:
            self.world.history.violate("spins", f"{self.name} asks for turn after turn")
            return
        if self.is_done and self._script is None:
            return
        # Every new event schedules a turn, so one later wake-up is enough.
        self._wake_ms = FOR_EVER_MS
        self._schedule(min(now_ms + delay_ms, max(self._until_ms, now_ms + 1)))

    def _turn(self, now_ms: int) -> int:
        core, network = self.core, self.network
        self._compress_lent()
        # Events that arrive while these are handled belong to the next turn.
        events, network.inbox = network.inbox, []
        for event in events:
            core.handle(event, now_ms)
        # Before the turn: what wakes the core during it needs another turn.
        core.needs_wakeup = False
        delay_ms = core.run_once(now_ms)
        # Before the loop takes its own, or little would be left to lend.
        self._lend(now_ms)
        full = core.take_full_batches()
        for sealed in full:
            sealed.compress()
        # At once: the state of the coordinator, which excuses some ends, goes on changing.
        if self.has_failed and not self._has_ended:
            self._has_ended = True
            self.judge.failed_for_good(self)
        batches = core.take_callbacks()
        for batch in batches:
            batch.run()
            batch.on_finished()
        self._resume(now_ms)
        # Callbacks and scripts may call the core, and a new core has not had a turn.
        is_busy = bool(batches or full or self._lent)
        return 0 if is_busy or self.core is not core else delay_ms

    def _compress_lent(self) -> None:
        """Compress the lent batch only a turn later, as if a waiting thread took until then."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.compress()

    def _lend(self, now_ms: int) -> None:
        """Lend a full batch, as to a waiting thread. Each fourth one is interrupted."""
        lent = self.core.lend_full_batch(now_ms)
        if lent is not None:
            self._lent_batches += 1
            self._lent = lent if self._lent_batches % _LENT_IN_VAIN else None

    def _resume(self, now_ms: int) -> None:
        while self._script is not None:
            holds = self._condition()
            if not holds and now_ms < self._until_ms:
                return
            try:
                # A generator takes no value at its first step.
                if self._is_fresh:
                    self._is_fresh = False
                    self._condition, self._until_ms = next(self._script)
                else:
                    self._condition, self._until_ms = self._script.send(holds)
            except StopIteration:
                self._script = None
                self.is_done = True
                self._until_ms = FOR_EVER_MS

    def describe(self) -> str:
        """Return the state of the process for a report."""
        manager = self.core.transaction_manager
        state = "plain" if manager is None else manager.machine.state.name
        return f"{self.name} ({state}, {self.last_error!r}, waits until {self._until_ms})"

    def wait_until(self, is_done: Condition, timeout_s: float | None) -> bool:
        """Fail unless no wait is asked for. A simulated application waits by yielding instead."""
        if timeout_s == 0:
            return is_done()
        raise IllegalStateError("a simulated application does not block")

    def refuse_in_fork(self) -> None:
        """Do nothing: a simulated application does not fork."""

    @property
    def done_callbacks(self) -> DoneCallbacks:
        """Refuse: a simulated application asks its futures."""
        raise IllegalStateError("a simulated application has no done-callbacks")
