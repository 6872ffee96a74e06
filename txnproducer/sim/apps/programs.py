"""The programs of a run: its processes, and the work left for each.

Owns: `Programs`: the processes, their start, whether a process is calm. Must not know: the work of
applications, the checks of judges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnproducer.records import claim_id
from txnproducer.sim.apps.interrupts import Interrupts
from txnproducer.sim.apps.process import Judge, Process, Script
from txnproducer.sim.apps.sharing import sharing_script
from txnproducer.sim.apps.workload import idempotent_script, transactional_script
from txnproducer.sim.world.history import Attempt
from txnproducer.sim.world.options import MIN_REQUESTS, MIN_TRANSACTIONS
from txnproducer.sim.world.world import World

# The attempts of each application after the faults end. The last one must succeed.
_PROOFS = 3


class Programs:
    """The processes of one run.

    Args:
        world: the world in which they live.
        judge: judges their events.

    Attributes:
        interrupts: raises exceptions in calls of the core.
    """

    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self.judge = judge
        self.interrupts = Interrupts(
            world.faults,
            world.new_rng("interrupts"),
            is_inside=world.options.is_interrupted_inside,
        )
        self.processes: list[Process] = []
        self._rng = world.new_rng("simulator")
        self._transactions = 0

    def group_of(self, process: Process) -> str:
        """Return the consumer group that a transactional id reads with."""
        return f"group-{process.transactional_id}"

    def new_attempt(self, process: Process) -> Attempt:
        """Return a new record of an application's attempt."""
        number = len(self.world.history.attempts)
        attempt = Attempt(
            f"{process.name}.{process.incarnation}.{number}",
            process.name,
            process.transactional_id,
            process.incarnation,
            number,
        )
        self.world.history.attempts.append(attempt)
        attempt.is_idempotent = process.core.transaction_manager is not None
        attempt.is_acknowledged = process.config.acks != "0"
        attempt.is_calm = process.is_calm
        # Only requests that arrive late after this moment can disturb this attempt.
        attempt.late_before = self.world.history.late[attempt.owner or ""]
        attempt.commits_in_doubt_before = process.network.commits_in_doubt
        attempt.delivery_timeout_ms = process.config.delivery_timeout_ms
        return attempt

    def count_transaction(self, attempt: Attempt) -> None:
        """Count a transaction that reaches its end, unless it is empty."""
        self._transactions += bool(attempt.records or attempt.group_id)

    def wants_more(self, process: Process) -> bool:
        """Return whether an application shall continue."""
        if not self.world.is_ending:
            # A second process is a disturbance, and goes away after some transactions.
            return not process.is_second or process.rng.random() < 0.9
        # After the faults end, each application has to show that it still works.
        own = [
            attempt
            for attempt in self.world.history.attempts[self.world.healed_at :]
            if attempt.owner_process == process.name and attempt.is_calm
        ]
        # The last one: a producer that worked once and then no more has proven nothing.
        is_proven = len(own) >= _PROOFS and (own[-1].owner is None or own[-1].is_fruitful)
        return not process.is_second and not (is_proven and self.has_enough)

    def is_calm(self, process: Process) -> bool:
        """Return whether the faults are over and no other process uses the transactional id."""
        if process.holder is not None:
            # It shares the identity of its holder, so it is disturbed whenever the holder is.
            return process.holder.is_calm
        name = process.transactional_id
        others = [
            p
            for p in self.processes
            if p is not process and p.transactional_id == name and not (p.holder and p.is_calm)
        ]
        # Without an id there is nobody who could fence it.
        is_alone = name is None or (not process.is_second and all(p.is_done for p in others))
        return self.world.is_ending and is_alone

    def must_restart(self, process: Process) -> bool:
        """Return whether an application has to continue with a producer that saw no faults."""
        return not process.is_calm and self.is_calm(process)

    @property
    def has_enough(self) -> bool:
        """Whether the run has done enough requests and transactions."""
        # Faults can leave a run short of requests: in the calm, the smallest number is enough.
        wanted = MIN_REQUESTS if self.world.is_ending else self.world.options.requests
        return self._transactions >= MIN_TRANSACTIONS and self.world.request_count >= wanted

    def are_all_done(self) -> bool:
        """Return whether every application has ended."""
        return all(process.is_done for process in self.processes)

    # --- processes ------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start the processes that the run begins with."""
        for name in self.world.transactional_ids:
            self._start_process(name, name)
            group_id = f"group-{name}"
            group = self.world.cluster.group_offsets(group_id).group(group_id)
            # A group with a member, so that its coordinator compares generations (KIP-447).
            group.generation_id, group.members = 1, {f"member-{name}": None}
            if self.world.options.initial_epoch >= 0:
                self._preset_epochs(name)
        for number in range(self.world.options.idempotent_producers):
            self._start_process(f"idem-{number}", None)
        for number in range(self.world.options.plain_producers):
            acks = self._rng.choice(("all", "1", "0"))
            self._start_process(f"plain-{number}", None, enable_idempotence=False, acks=acks)

    def _preset_epochs(self, transactional_id: str) -> None:
        """Preset the epochs of an id, and those of its claims if it has any."""
        self.world.cluster.preset_epoch(transactional_id, self.world.options.initial_epoch)
        options = self.world.options
        for claim in range(options.partition_count if options.is_shared else 0):
            # Claims have epochs of their own, which would otherwise be far from their end.
            self.world.cluster.preset_epoch(
                claim_id(transactional_id, claim), options.initial_epoch
            )

    def _start_process(self, name: str, transactional_id: str | None, **own: Any) -> Process:
        script = idempotent_script if transactional_id is None else self._transactional_script
        settings = {**self.world.options.settings, **own}
        process = Process(self, name, transactional_id, settings, self.world.new_rng(name), script)
        self.processes.append(process)
        process.start()
        return process

    @property
    def _transactional_script(self) -> Callable[[Process], Script]:
        return sharing_script if self.world.options.is_shared else transactional_script

    def start_participant(
        self, holder: Process, make_script: Callable[[Process], Script]
    ) -> Process:
        """Start a process that takes part in another one's transaction."""
        name = f"{holder.name}.p{len(self.processes)}"
        rng = self.world.new_rng(name)
        settings = dict(self.world.options.settings)
        process = Process(self, name, holder.transactional_id, settings, rng, make_script, holder)
        self.processes.append(process)
        process.start()
        return process

    def start_second(self, transactional_id: str) -> None:
        """Start another process under an id. The older one becomes a zombie."""
        name = f"{transactional_id}b{len(self.processes)}"
        self._start_process(name, transactional_id).is_second = True

    def crash(self, process: Process) -> None:
        """Stop a process at any point of its work."""
        for attempt in self.world.history.attempts:
            if (attempt.owner_process, attempt.incarnation) == (process.name, process.incarnation):
                attempt.is_crashed = True
        process.crash()
