"""The faults of the campaign: each is made once, held for a while, and undone.

Owns: the fault's effect on brokers and processes. Must not know: workloads, checks.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from integration.chaos.cluster import (
    CLIENTS,
    LinkedKafka,
    broker,
    controller_index,
    group_coordinator_index,
    raise_version,
)
from integration.chaos.plan import (
    CLIENT,
    FULL_DISK,
    KILL,
    NEED_PROXIES,
    NONE,
    ONE_SIDED,
    PARTITION,
    PAUSE,
    ROLLING,
    SLOW,
    STOP,
    UPGRADE,
    Row,
)
from integration.chaos.writers import Writers
from txnproducer.testing import EmbeddedKafka

PAUSE_S, AWAY_S, CUT_S, SLOW_S, FULL_S = 10.0, 3.0, 10.0, 10.0, 8.0
DELAY_S = 0.1
_STOP_S = 15.0
_UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True)
class Scene:
    """The cluster and the processes that a fault can strike.

    Attributes:
        kafka: the cluster.
        row: the row that is played.
        topic: whose first partition's leader is meant.
        transactional_id: whose coordinator is meant.
        group: whose coordinator is meant.
        writers: the clients' processes.
    """

    kafka: EmbeddedKafka
    row: Row
    topic: str
    transactional_id: str
    group: str
    writers: Writers

    def index(self) -> int:
        """Return the index of the broker that the row's target is now."""
        match self.row.target:
            case "leader":
                return self.kafka.leader_index(self.topic, 0)
            case "group coordinator":
                return group_coordinator_index(self.kafka, self.group)
            case "controller":
                return controller_index(self.kafka)
        return self.kafka.coordinator_index(self.transactional_id)


@contextlib.contextmanager
def fault(scene: Scene) -> Iterator[str]:
    """Make the row's fault; the caller waits in the block. Yields the victim.

    The cluster is whole again after the block.
    """
    row = scene.row
    if row.target == CLIENT and row.fault not in NEED_PROXIES:
        with _client_fault(scene):
            yield "client"
        return
    if row.fault == NONE:
        yield "nothing"
    elif row.fault == ROLLING:
        _roll(scene.kafka)
        yield "all brokers"
    elif row.fault == UPGRADE:
        raise_version(scene.kafka)
        yield "the cluster"
    elif row.fault in NEED_PROXIES:
        with _link_fault(scene) as victim:
            yield victim
    else:
        index = scene.index()
        with _BROKER_FAULTS[row.fault](scene.kafka, index):
            yield broker(index)


def held_s(name: str) -> float:
    """Return the seconds for which a fault is held."""
    return {
        NONE: 0.0,
        KILL: AWAY_S,
        STOP: AWAY_S,
        PAUSE: PAUSE_S,
        PARTITION: CUT_S,
        ONE_SIDED: CUT_S,
        SLOW: SLOW_S,
        FULL_DISK: FULL_S,
        ROLLING: 0.0,
        UPGRADE: 0.0,
    }[name]


@contextlib.contextmanager
def _client_fault(scene: Scene) -> Iterator[None]:
    writers = scene.writers
    match scene.row.fault:
        case "kill -9":
            writers.kill_first()
            yield
        case "clean stop":
            writers.stop_first()
            yield
        case _:
            writers.pause_first()
            try:
                yield
            finally:
                writers.resume_first()


def both_ways(victim: str, others: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of a party with each other one, in both directions."""
    apart = [other for other in others if other != victim]
    return [pair for other in apart for pair in ((victim, other), (other, victim))]


def _roll(kafka: EmbeddedKafka) -> None:
    for index in range(kafka.nodes):
        kafka.stop_node(index, _STOP_S)
        kafka.start_node(index)
        kafka.wait_in_sync()


@contextlib.contextmanager
def _killed(kafka: EmbeddedKafka, index: int) -> Iterator[None]:
    kafka.kill_node(index)
    yield
    kafka.start_node(index)


@contextlib.contextmanager
def _stopped(kafka: EmbeddedKafka, index: int) -> Iterator[None]:
    kafka.stop_node(index, _STOP_S)
    yield
    kafka.start_node(index)


@contextlib.contextmanager
def _paused(kafka: EmbeddedKafka, index: int) -> Iterator[None]:
    kafka.pause_node(index)
    try:
        yield
    finally:
        kafka.resume_node(index)


@contextlib.contextmanager
def _full(kafka: EmbeddedKafka, index: int) -> Iterator[None]:
    """Let no file of a broker grow beyond the size that the smallest log has.

    A broker takes the failed write for a broken disk, and ends since it has no other.
    """
    pid = kafka.node_pid(index)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, _UNLIMITED))
    yield
    if kafka.is_node_running(index):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_UNLIMITED, _UNLIMITED))
        # Running, but perhaps with its log directory offline.
        kafka.kill_node(index)
    kafka.start_node(index)


_BROKER_FAULTS: dict[
    str, Callable[[EmbeddedKafka, int], contextlib.AbstractContextManager[None]]
] = {KILL: _killed, STOP: _stopped, PAUSE: _paused, FULL_DISK: _full}


@contextlib.contextmanager
def _link_fault(scene: Scene) -> Iterator[str]:
    kafka = scene.kafka
    assert isinstance(kafka, LinkedKafka)
    brokers = [broker(index) for index in range(kafka.nodes)]
    victim = CLIENTS if scene.row.target == CLIENT else broker(scene.index())
    parties = [*brokers, CLIENTS] if scene.row.fault == SLOW else brokers
    others = [party for party in (brokers if victim == CLIENTS else parties) if party != victim]
    both = both_ways(victim, others)
    match scene.row.fault:
        case "partition":
            kafka.links.cut(both)
        case "one-sided partition":
            # Each direction is cut in some rows. They are the same ones for every client.
            mute = [(victim, other) for other in others]
            unheard = [(other, victim) for other in others]
            kafka.links.cut(mute if scene.row.version == 2 else unheard)
        case _:
            kafka.links.slow(both, DELAY_S)
    try:
        yield victim
    finally:
        kafka.links.heal()
