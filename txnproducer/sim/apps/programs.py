"""The programs of a run: which processes there are, and what each of them has yet to do.

Owns: `Programs`: the processes, how they are started, whether all is well for one. Must not know:
what an application does, what a judge looks at.
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

# So many attempts each application makes after the healing, the last one a success.
_PROOFS = 3


class Programs:
    """See the module.

    Args:
        world: that they live in.
        judge: is told what happens to them.

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
        """Begin to note what an application does."""
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
        attempt.late_before = self.world.history.late[attempt.owner or ""]
        attempt.commits_in_doubt_before = process.network.commits_in_doubt
        attempt.delivery_timeout_ms = process.config.delivery_timeout_ms
        return attempt

    def count_transaction(self, attempt: Attempt) -> None:
        """Count a transaction that comes to its end, if there is anything in it."""
        self._transactions += bool(attempt.records or attempt.group_id)

    def wants_more(self, process: Process) -> bool:
        """Tell whether an application shall go on."""
        if not self.world.is_ending:
            return not process.is_second or process.rng.random() < 0.9
        # After the healing each one has to show that it still can.
        own = [
            attempt
            for attempt in self.world.history.attempts[self.world.healed_at :]
            if attempt.owner_process == process.name and attempt.is_calm
        ]
        is_proven = len(own) >= _PROOFS and (own[-1].owner is None or own[-1].is_fruitful)
        return not process.is_second and not (is_proven and self.has_enough)

    def is_calm(self, process: Process) -> bool:
        """Tell whether all is well, and nobody else uses the process's transactional id."""
        if process.holder is not None:
            return process.holder.is_calm
        name = process.transactional_id
        others = [
            p
            for p in self.processes
            if p is not process and p.transactional_id == name and not (p.holder and p.is_calm)
        ]
        is_alone = name is None or (not process.is_second and all(p.is_done for p in others))
        return self.world.is_ending and is_alone

    def must_begin_anew(self, process: Process) -> bool:
        """Tell whether an application has to go on with a producer that has seen no trouble."""
        return not process.is_calm and self.is_calm(process)

    @property
    def has_enough(self) -> bool:
        """Whether as much was done as the run is for."""
        wanted = MIN_REQUESTS if self.world.is_ending else self.world.options.requests
        return self._transactions >= MIN_TRANSACTIONS and self.world.request_count >= wanted

    def are_all_done(self) -> bool:
        """Tell whether every application has ended."""
        return all(process.is_done for process in self.processes)

    # --- processes ------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start the processes that the run begins with."""
        for name in self.world.transactional_ids:
            self._start_process(name, name)
            group_id = f"group-{name}"
            group = self.world.cluster.group_offsets(group_id).group(group_id)
            group.generation_id, group.members = 1, {f"member-{name}": None}
            if self.world.options.initial_epoch >= 0:
                self._preset_epochs(name)
        for number in range(self.world.options.idempotent_producers):
            self._start_process(f"idem-{number}", None)
        for number in range(self.world.options.plain_producers):
            acks = self._rng.choice(("all", "1", "0"))
            self._start_process(f"plain-{number}", None, enable_idempotence=False, acks=acks)

    def _preset_epochs(self, transactional_id: str) -> None:
        """Have the epochs of an id near their end, and those of its claims, where it has any."""
        self.world.cluster.preset_epoch(transactional_id, self.world.options.initial_epoch)
        options = self.world.options
        for claim in range(options.partition_count if options.is_shared else 0):
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
        """Start another process under an id; the older one becomes a zombie."""
        name = f"{transactional_id}b{len(self.processes)}"
        self._start_process(name, transactional_id).is_second = True

    def crash(self, process: Process) -> None:
        """End a process, whatever it is in the midst of."""
        for attempt in self.world.history.attempts:
            if (attempt.owner_process, attempt.incarnation) == (process.name, process.incarnation):
                attempt.is_crashed = True
        process.crash()
