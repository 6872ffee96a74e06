"""One run of the whole stack: its services and its phases.

Owns: `run_stack_seed`, `StackRun`, the start and the death of services. Must not know: the work of
services, the bytes. No part knows the run: each gets the world and the parts that it uses.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from txnproducer.sim.stack.baton import StuckError, VirtualThread
from txnproducer.sim.stack.events import ClusterEvents
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.producers import StackProducers
from txnproducer.sim.stack.service import Service
from txnproducer.sim.stack.world import StackWorld

__all__ = ["StackResult", "StackRun", "run_stack_seed"]

_LOGGER: Final = logging.getLogger("txnproducer")
_LONGEST_RUN_S: Final = 3_600.0
_SETTLED_S: Final = 10.0


@dataclass(slots=True)
class StackResult:
    """The result of a run.

    Attributes:
        seed: of the run.
        requests: that the brokers have read.
        claims: how many transactions ended how.
        faults: how often each kind took effect.
        violations: the check and the text of each.
        digest: of the trace.
        virtual_s: how long it took in virtual time.
    """

    seed: int
    requests: int
    claims: Counter[str]
    faults: Counter[str]
    violations: list[tuple[str, str]]
    digest: str
    virtual_s: float


def run_stack_seed(seed: int, emit: Callable[[str], None] | None = None) -> StackResult:
    """Run one seed.

    Args:
        seed: draws everything.
        emit: takes each line of the trace; None for no trace.
    """
    return StackRun(StackOptions.draw(seed), emit).run()


class StackRun:
    """Run the whole stack once.

    Args:
        options: of the run.
        emit: takes the lines of the trace; None for no trace.

    Attributes:
        world: where the run takes place.
        judge: of its calls, and of its end.
    """

    def __init__(self, options: StackOptions, emit: Callable[[str], None] | None = None) -> None:
        self.world = StackWorld(options, emit)
        self.judge = StackJudge(self.world)
        self._producers = StackProducers(self.world)
        self._services: list[Service] = []
        self._events = ClusterEvents(self.world, self, self.world.new_rng("events"))

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> StackResult:
        """Run all phases and return the result."""
        world = self.world
        with _listening(self.judge.logged):
            try:
                self._run_phases()
            except StuckError as stuck:
                # The baton has one error for both, since both end the run.
                kind = "spins" if "pause" in str(stuck) else "hangs"
                world.history.violate(kind, str(stuck))
            except Exception as error:  # noqa: BLE001 - each exception is a violation
                world.history.violate("crash", repr(error))
            finally:
                self._kill_all()
        return StackResult(
            world.options.seed,
            world.network.request_count,
            Counter(str(each.final_claim) for each in world.history.attempts),
            Counter(world.faults.counts) + world.counts,
            world.history.violations,
            world.digest,
            world.baton.now_ns / 1e9,
        )

    def _run_phases(self) -> None:
        world, options = self.world, self.world.options
        for number in range(options.services):
            self._start(self._new_service(f"service-{number}", f"id-{number}"))
        if options.has_rival:
            self._start(self._new_service("rival", "id-0", is_rival=True))
        self._events.start()
        self._wait(lambda: all(s.made >= options.transactions for s in self._regulars), 600.0)
        world.trace("the faults end")
        self._events.heal()
        world.heal()
        if not self._wait(lambda: all(s.is_done for s in self._services), _LONGEST_RUN_S):
            late = [s.name for s in self._services if not s.is_done]
            world.history.violate("progress", f"not done an hour after the faults ended: {late}")
        self._settle()

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        violations = self.world.history.violations
        # The first violation ends the run: what follows is mostly its consequence.
        self.world.baton.wait(lambda: condition() or bool(violations), seconds)
        return condition() or bool(violations)

    def _settle(self) -> None:
        world = self.world
        longest_s = world.options.settings["transaction_timeout_ms"] / 1000
        # Dropped producers deliver for half a minute, and time-outs of transactions follow.
        self._wait(lambda: not world.baton.others, 40.0)
        self._wait(lambda: not world.cluster.open_transactions, longest_s * 2 + _SETTLED_S)
        # The markers of the last one.
        world.baton.wait(lambda: False, 1.0)
        if not world.history.violations:
            proofs = {service.name: service.proofs for service in self._regulars}
            self.judge.finish(proofs)

    def _kill_all(self) -> None:
        """End the threads that are left, after a violation."""
        baton = self.world.baton
        for service in self._services:
            baton.kill(service.name)
        try:
            baton.wait(lambda: not baton.others, 3_600)
        except StuckError as stuck:
            self.world.history.violate("hangs", f"at the end: {stuck}")
        self._producers.forget_all()

    # --- services -------------------------------------------------------------------------------

    @property
    def process_names(self) -> list[str]:
        """The names of the processes that run, one for each service."""
        return [service.name for service in self._services]

    def kill(self, name: str) -> None:
        """Kill a process, as `kill -9` does, and start it again."""
        world = self.world
        (service,) = (each for each in self._services if each.name == name)
        world.trace(f"{name} is killed")
        world.baton.kill(name)
        world.network.close_sockets(name)
        # No caller is left to learn their outcome: the logs alone show it.
        for attempt in world.history.attempts:
            if attempt.owner_process == name and attempt.claim == "open":
                attempt.is_crashed = True
        self._services.remove(service)
        # A name of its own, since threads of the killed process may still have to end.
        again = self._new_service(f"{name}'", service.transactional_id)
        # The faults end by this count: from zero, frequent kills would put that off.
        again.made = service.made
        self._start(again)

    @property
    def _regulars(self) -> list[Service]:
        """The services that have to prove their progress."""
        return [service for service in self._services if not service.is_rival]

    def _new_service(self, name: str, transactional_id: str, *, is_rival: bool = False) -> Service:
        world, producers, judge = self.world, self._producers, self.judge
        return Service(world, producers, judge, name, transactional_id, is_rival=is_rival)

    def _start(self, service: Service) -> None:
        baton = self.world.baton
        self._services.append(service)
        # A thread belongs to the process of its starter, so this one stands for that process.
        before, baton.process = baton.process, service.name
        VirtualThread(baton, service.main, service.name).start()
        baton.process = before


@contextmanager
def _listening(take: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    handler = logging.Handler(logging.ERROR)
    handler.emit = take  # type: ignore[assignment, method-assign]
    was_propagating, level = _LOGGER.propagate, _LOGGER.level
    _LOGGER.addHandler(handler)
    # Otherwise a campaign would print every error that a fault causes.
    _LOGGER.propagate = False
    _LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.propagate = was_propagating
        _LOGGER.setLevel(level)
