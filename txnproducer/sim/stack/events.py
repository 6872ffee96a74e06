"""The events of a run, at brokers, requests, logins, processes and the clock.

Owns: when each happens, and its end. Must not know: the work of services.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from txnproducer._broker.handlers import handle
from txnproducer._protocol.messages import ApiKey, CoordinatorType, InitProducerIdRequest
from txnproducer._server.script import Fault, ScriptedFault
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition
from txnproducer.sim.stack.baton import NS_PER_S
from txnproducer.sim.stack.options import PARTITIONS, TOPIC

if TYPE_CHECKING:
    from txnproducer.sim.stack.run import StackRun

__all__ = ["ClusterEvents"]

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


class ClusterEvents:
    """See the module.

    Args:
        run: the run that they happen to.
        rng: draws them.

    Attributes:
        counts: how often each has happened.
    """

    def __init__(self, run: StackRun, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self._is_over = False
        self.counts: Counter[str] = Counter()
        self._actions: Mapping[str, Callable[[], None]] = {
            "stop a broker": self._stop_broker,
            "move a leader": self._move_leader,
            "move a coordinator": self._move_coordinator,
            "time out": self._time_out,
            "fence": self._fence,
            "refuse a request": self._refuse,
            "lose a request": partial(self._script, ScriptedFault.REQUEST_LOST),
            "lose an answer": partial(self._script, ScriptedFault.ANSWER_LOST),
            "slow answer": partial(self._script, ScriptedFault.SLOW),
            "kill a process": self._kill,
            "jump of the clock": self._jump,
            "refuse logins": self._refuse_logins,
        }

    def start(self) -> None:
        """Begin."""
        for name in self._run.options.event_s:
            self._plan(name)

    def heal(self) -> None:
        """End all faults of brokers."""
        self._is_over = True
        for node_id in self._run.cluster.nodes:
            self._start_broker(node_id)
        if self._run.options.users:
            self._run.network.users = self._run.users

    def _plan(self, name: str) -> None:
        pause_s = self._rng.expovariate(1 / self._run.options.event_s[name])
        self._run.baton.call_after(pause_s * 1000, partial(self._happen, name))

    def _happen(self, name: str) -> None:
        if self._is_over:
            return
        self._run.trace(f"event: {name}")
        self.counts[name] += 1
        self._actions[name]()
        self._plan(name)

    @property
    def _now_ms(self) -> int:
        return self._run.baton.now_ms

    # --- brokers --------------------------------------------------------------------------------

    def _stop_broker(self) -> None:
        cluster = self._run.cluster
        node_id = self._rng.randrange(len(cluster.nodes))
        if not cluster.is_up(node_id):
            return
        cluster.stop_node(node_id, self._now_ms)
        self._run.network.cut(node_id)
        self._run.baton.call_after(
            self._rng.uniform(100, 8_000), partial(self._start_broker, node_id)
        )

    def _start_broker(self, node_id: int) -> None:
        if not self._run.cluster.is_up(node_id):
            self._run.cluster.start_node(node_id, self._now_ms)

    def _move_leader(self) -> None:
        cluster = self._run.cluster
        place = TopicPartition(TOPIC, self._rng.randrange(PARTITIONS))
        cluster.move_partition(place, self._rng.randrange(len(cluster.nodes)), self._now_ms)

    def _move_coordinator(self) -> None:
        cluster, rng = self._run.cluster, self._rng
        cluster.move_coordinator(
            rng.choice(tuple(CoordinatorType)),
            rng.randrange(cluster.options.coordinator_count),
            rng.randrange(len(cluster.nodes)),
            self._now_ms,
        )

    # --- transactions ---------------------------------------------------------------------------

    def _time_out(self) -> None:
        cluster = self._run.cluster
        if cluster.open_transactions:
            name = self._rng.choice(sorted(cluster.open_transactions))
            coordinator = cluster.transaction_coordinator(name)
            known = coordinator.find(name)
            # One that is being ended has no time-out any more.
            if known is not None and known.state.value == "Ongoing":
                coordinator.fence(known, self._now_ms)

    def _fence(self) -> None:
        cluster = self._run.cluster
        name = f"id-{self._rng.randrange(self._run.options.services)}"
        node_id = cluster.coordinator_node(CoordinatorType.TRANSACTION, name)
        handle(cluster, node_id, InitProducerIdRequest(name, _TIMEOUT_MS), self._now_ms)

    # --- requests -------------------------------------------------------------------------------

    def _refuse(self) -> None:
        api = self._rng.choice(tuple(_REFUSALS))
        code = self._rng.choice(_REFUSALS[api])
        self._run.network.script.add(api, Fault(ScriptedFault.REFUSED, code=code))

    def _script(self, kind: ScriptedFault) -> None:
        api = self._rng.choice((*_REFUSALS, ApiKey.METADATA))
        delay_ms = round(self._rng.uniform(10, 8_000))
        self._run.network.script.add(api, Fault(kind, delay_ms=delay_ms))

    def _refuse_logins(self) -> None:
        run = self._run
        if not run.options.users:
            return
        run.network.users = replace(run.users, passwords={"user": "another"})
        run.baton.call_after(self._rng.uniform(100, 3_000), self._accept_logins)

    def _accept_logins(self) -> None:
        self._run.network.users = self._run.users

    # --- processes ------------------------------------------------------------------------------

    def _kill(self) -> None:
        # Not the process whose thread lets the time pass right now: it is in the midst of a call.
        alive = [s for s in self._run.services if s.name != self._run.baton.process]
        if alive:
            self._run.kill(self._rng.choice(alive))

    def _jump(self) -> None:
        """Let the clocks of processes jump, as after the pause of a machine."""
        jump_ms = round(10 ** self._rng.uniform(1, 4.5))
        self._run.baton.now_ns += jump_ms * NS_PER_S // 1000
        self._run.jumped_ms += jump_ms
