"""The events of a run, at brokers, requests, logins, processes and the clock.

Owns: when each happens, whether it took effect, and its end. Must not know: the work of services.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from txnproducer._broker.handlers import handle
from txnproducer._protocol.messages import (
    ApiKey,
    CoordinatorType,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txnproducer._server.script import Fault, Script, ScriptedFault
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition
from txnproducer.sim.stack.baton import NS_PER_S
from txnproducer.sim.stack.faults import Ending
from txnproducer.sim.stack.foreign import ForeignListeners
from txnproducer.sim.stack.leaving import LeavingBroker
from txnproducer.sim.stack.listeners import ASKS
from txnproducer.sim.stack.logins import LoginRefusals
from txnproducer.sim.stack.options import (
    LATER_EVENTS,
    PARTITIONS,
    RAISES,
    REFUSES_OTHERS,
    TOPIC,
)
from txnproducer.sim.stack.token_options import ENDLESS, TOKEN_EVENTS
from txnproducer.sim.stack.world import StackWorld

__all__ = ["ClusterEvents", "Processes"]

_TIMEOUT_MS: Final = 60_000
# The errors that a broker may give at any time, and that have no effect.
_REFUSALS: Final[Mapping[ApiKey, tuple[ErrorCode, ...]]] = {
    ApiKey.PRODUCE: (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT),
    ApiKey.FIND_COORDINATOR: (ErrorCode.COORDINATOR_NOT_AVAILABLE,),
    ApiKey.INIT_PRODUCER_ID: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ),
    ApiKey.END_TXN: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ),
}
# Likewise, with a source of their own.
_OTHER_REFUSALS: Final[Mapping[ApiKey, tuple[ErrorCode, ...]]] = {
    ApiKey.METADATA: (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ),
}
# The names of the faults that a request meets later, and perhaps never.
_SCRIPTED: Final[Mapping[ScriptedFault, str]] = {
    ScriptedFault.REFUSED: "refuse a request",
    ScriptedFault.REQUEST_LOST: "lose a request",
    ScriptedFault.ANSWER_LOST: "lose an answer",
    ScriptedFault.SLOW: "slow answer",
}


class _CountedScript(Script):
    """A script that counts those of its faults that a request has met."""

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self._count = count

    def use_up(self, api: ApiKey) -> None:
        """Take away a fault that a request has met."""
        fault = self.next_fault(api)
        super().use_up(api)
        if fault is not None:
            is_other = fault.kind is ScriptedFault.REFUSED and api in _OTHER_REFUSALS
            self._count(REFUSES_OTHERS if is_other else _SCRIPTED[fault.kind])


class Processes(Protocol):
    """The processes of the services, of which an event kills one."""

    @property
    def process_names(self) -> list[str]:
        """The names of those that run."""
        ...

    def kill(self, name: str) -> None:
        """Kill a process and start it again."""
        ...


class ClusterEvents:
    """Let the events of a run happen, and end them.

    Args:
        world: the world that they happen to.
        processes: of the services.
        rng: draws them.
    """

    def __init__(self, world: StackWorld, processes: Processes, rng: random.Random) -> None:
        self._world = world
        self._processes = processes
        self._rng = rng
        # Of their own, so that these do not shift the draws of the others.
        self._later = {name: world.new_rng(name) for name in (*LATER_EVENTS, *TOKEN_EVENTS)}
        self._is_over = False
        self._moves = 0
        self._leaving = LeavingBroker(world)
        self._foreign = ForeignListeners(world, self._later[ASKS], self._count)
        world.network.script = _CountedScript(self._count)
        world.network.refusals = LoginRefusals(self._count)
        # Each returns whether it took effect, or False if that shows only later.
        self._actions: Mapping[str, Callable[[], bool]] = {
            "stop a broker": self._stop_broker,
            "move a leader": self._move_leader,
            "move a coordinator": self._move_coordinator,
            "time out": self._time_out,
            "fence": self._fence,
            "refuse a request": partial(self._refuse, _REFUSALS, rng),
            "lose a request": partial(self._script, ScriptedFault.REQUEST_LOST),
            "lose an answer": partial(self._script, ScriptedFault.ANSWER_LOST),
            "slow answer": partial(self._script, ScriptedFault.SLOW),
            "kill a process": self._kill,
            "jump of the clock": self._jump,
            "refuse logins": self._refuse_logins,
            "refuse logins of one broker": partial(
                self._refuse_logins_of_one, "refuse logins of one broker"
            ),
            # Of one broker as well: it only refuses in another way.
            ENDLESS: partial(self._refuse_logins_of_one, ENDLESS),
            "jump of the wall clock": self._jump_of_the_wall_clock,
            "move a name": self._move_name,
            "a broker leaves": self._leaving.leave,
            ASKS: self._foreign.begin,
            RAISES: self._raise_version,
            REFUSES_OTHERS: partial(self._refuse, _OTHER_REFUSALS, self._later[REFUSES_OTHERS]),
        }

    def start(self) -> None:
        """Begin."""
        for name in self._world.options.event_s:
            self._plan(name)
        self._foreign.start()

    def heal(self) -> None:
        """End all faults of brokers."""
        self._is_over = True
        for node_id in self._world.cluster.nodes:
            self._start_broker(node_id)
        # The end of a refusal of logins may still be to come.
        self._world.network.refusals.clear()
        self._foreign.heal()

    def _count(self, name: str) -> None:
        self._world.counts[name] += 1

    def _plan(self, name: str) -> None:
        rng = self._later.get(name, self._rng)
        pause_s = rng.expovariate(1 / self._world.options.event_s[name])
        self._world.baton.call_after(pause_s * 1000, partial(self._happen, name))

    def _happen(self, name: str) -> None:
        # The baton takes no event back: those that are planned still come when all is over.
        if self._is_over:
            return
        self._world.trace(f"event: {name}")
        if self._actions[name]():
            self._count(name)
        self._plan(name)

    @property
    def _now_ms(self) -> int:
        return self._world.baton.now_ms

    # --- brokers --------------------------------------------------------------------------------

    def _stop_broker(self) -> bool:
        cluster = self._world.cluster
        node_id = self._rng.randrange(len(cluster.nodes))
        # It is down, and its start is planned already.
        if not cluster.is_up(node_id):
            return False
        cluster.stop_node(node_id, self._now_ms)
        self._world.network.cut(node_id)
        self._world.baton.call_after(
            self._rng.uniform(100, 8_000), partial(self._start_broker, node_id)
        )
        return True

    def _start_broker(self, node_id: int) -> None:
        # The end of the faults may have started it before.
        if not (self._world.cluster.is_up(node_id) or self._leaving.has_left(node_id)):
            self._world.cluster.start_node(node_id, self._now_ms)

    def _move_leader(self) -> bool:
        cluster = self._world.cluster
        place = TopicPartition(TOPIC, self._rng.randrange(PARTITIONS))
        old, new = cluster.topology.leaders[place], self._rng.randrange(len(cluster.nodes))
        if self._leaving.has_left(new):
            return False
        cluster.move_partition(place, new, self._now_ms)
        return new != old

    def _move_coordinator(self) -> bool:
        cluster, rng = self._world.cluster, self._rng
        kind = rng.choice(tuple(CoordinatorType))
        number = rng.randrange(cluster.options.coordinator_count)
        node_id = rng.randrange(len(cluster.nodes))
        if self._leaving.has_left(node_id):
            return False
        cluster.move_coordinator(
            kind,
            number,
            node_id,
            self._now_ms,
            # In Kafka the time until a broker learns that another one is the coordinator.
            resigning_ms=500,
        )
        return True  # also on the same broker, which then loads its log again

    def _raise_version(self) -> bool:
        """Raise the version of transactions, after the upgrade of the last old broker."""
        cluster = self._world.cluster
        was_lower = cluster.transaction_version < 2
        # Later ones raise another feature: a new epoch, and the same version.
        cluster.finalize(2)
        return was_lower

    # --- transactions ---------------------------------------------------------------------------

    def _time_out(self) -> bool:
        cluster = self._world.cluster
        if cluster.open_transactions:
            name = self._rng.choice(sorted(cluster.open_transactions))
            coordinator = cluster.transaction_coordinator(name)
            known = coordinator.find(name)
            # One that is being ended has no time-out any more.
            if known is not None and known.state.value == "Ongoing":
                coordinator.fence(known, self._now_ms)
                return True
        return False

    def _fence(self) -> bool:
        cluster = self._world.cluster
        name = f"id-{self._rng.randrange(self._world.options.services)}"
        node_id = cluster.coordinator_node(CoordinatorType.TRANSACTION, name)
        # Straight to the model: the caller is no process of the run, and has no connection.
        answer = handle(cluster, node_id, InitProducerIdRequest(name, _TIMEOUT_MS), self._now_ms)
        # CONCURRENT_TRANSACTIONS while an open one is aborted: the epoch is raised all the same.
        fencing = (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        return isinstance(answer, InitProducerIdResponse) and answer.error_code in fencing

    # --- requests -------------------------------------------------------------------------------

    def _refuse(
        self, refusals: Mapping[ApiKey, tuple[ErrorCode, ...]], rng: random.Random
    ) -> bool:
        api = rng.choice(tuple(refusals))
        code = rng.choice(refusals[api])
        self._world.network.script.add(api, Fault(ScriptedFault.REFUSED, code=code))
        return False

    def _script(self, kind: ScriptedFault) -> bool:
        api = self._rng.choice((*_REFUSALS, ApiKey.METADATA))
        delay_ms = round(self._rng.uniform(10, 8_000))
        self._world.network.script.add(api, Fault(kind, delay_ms=delay_ms))
        return False

    # --- logins and names -----------------------------------------------------------------------

    def _refuse_logins(self) -> bool:
        world = self._world
        if world.options.users:
            delay_ms = self._rng.uniform(100, 3_000)
            self._refuse_logins_for("refuse logins", tuple(world.cluster.nodes), delay_ms)
        return False

    def _refuse_logins_of_one(self, name: str) -> bool:
        world = self._world
        if world.options.users:
            rng = self._later[name]
            nodes = (rng.randrange(len(world.cluster.nodes)),)
            self._refuse_logins_for(name, nodes, rng.uniform(100, 5_000))
        return False

    def _refuse_logins_for(self, name: str, nodes: tuple[int, ...], delay_ms: float) -> None:
        """Let brokers refuse each login for a time, also one that renews the login before."""
        refusals = self._world.network.refusals
        refusals.begin(name, nodes)
        self._world.baton.call_after(delay_ms, partial(refusals.end, name, nodes))

    def _move_name(self) -> bool:
        """Let a broker go on at another address, to which its name leads from now on."""
        world, rng = self._world, self._later["move a name"]
        self._moves += 1
        address = (f"10.0.{self._moves // 256}.{self._moves % 256}", 9092)
        node_id = rng.randrange(len(world.cluster.nodes))
        world.network.move(node_id, address, rng.choice(tuple(Ending)))
        return True

    # --- processes ------------------------------------------------------------------------------

    def _kill(self) -> bool:
        # Not the process whose thread lets the time pass right now: it is in the midst of a call.
        running = self._world.baton.process
        alive = [name for name in self._processes.process_names if name != running]
        if alive:
            self._processes.kill(self._rng.choice(alive))
        return bool(alive)

    # --- clocks ---------------------------------------------------------------------------------

    def _jump(self) -> bool:
        """Let the clocks of processes jump, as after the pause of a machine."""
        jump_ms = round(10 ** self._rng.uniform(1, 4.5))
        # The events and time-outs of the time between are due at once, as after such a pause.
        self._world.baton.now_ns += jump_ms * NS_PER_S // 1000
        # The judge takes it off the time of each call that is under way.
        self._world.jumped_ms += jump_ms
        return True

    def _jump_of_the_wall_clock(self) -> bool:
        """Set the time of day, forward or back. No wait may take notice."""
        rng = self._later["jump of the wall clock"]
        self._world.baton.wall_ahead_ms += rng.choice((-1, 1)) * round(10 ** rng.uniform(0, 8))
        return True
