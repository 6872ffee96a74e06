"""Random events that hit the cluster and the processes while faults are on.

Owns: `Trouble`: the events of `EVENT_INTERVALS_MS` and `LATER_INTERVALS_MS`, and counting those
that took effect. Must not know: the workload, the checkers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from txnproducer._broker.resources import Resource
from txnproducer._broker.transaction_coordinator import LogWrite
from txnproducer._broker.transaction_metadata import TransactionalIdState, TransactionMetadata
from txnproducer._protocol.messages import CoordinatorType
from txnproducer.errors import ErrorCode
from txnproducer.sim.apps.process import Process
from txnproducer.sim.apps.programs import Programs
from txnproducer.sim.world.faults import FaultKind, Faults
from txnproducer.sim.world.options import COMPACTED_TOPIC
from txnproducer.sim.world.world import World

# Errors of a leader that did not append. One that appended too slowly has the errors in `_KEPT`.
_REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
)
_OTHER_FEATURE_RATE = 0.3
_MOVED_TOO_RATE = 0.3
_SOON_MS = 20
_BLINK_MS = 40
# The times between the deletion of a topic and its creation.
_GAPS_MS = (0, 50, 2000)  # with 0 only the topic's id may show it
_MOST_PARTITIONS = 8
# How long one broker refuses logins. The longest lasts until the faults end.
_REFUSING_MS = (500, 5000, 1 << 40)
_LOWERED_MS = 600
# Too small for a batch of several records, or for one large record.
_LOWERED_LIMITS_BYTES = (110, 150, 300)
_REFUSALS_WHEN_HEALED = 30
_REFUSED_WHEN_HEALED = 0.3
_KEPT_WHEN_HEALED = 0.2
_OFFSETS_REFUSALS_WHEN_HEALED = 6
_LOG_WRITES_WHEN_HEALED = 8
_LOG_WRITE_FAILS_WHEN_HEALED = 0.1
_RESIGNATIONS_WHEN_HEALED = 4
_MILD = (FaultKind.LEADER_MOVED, FaultKind.COORDINATOR_MOVED, FaultKind.GROUP_MOVED)
_MOVES_WHEN_HEALED = 4
_MOVED_WITHIN_MS = 4000
# In Kafka the time until it gets the metadata, which is long after a pause or a partition.
_RESIGNING_MS = 1000
# With v1 its memory shows only if the next transaction begins and ends elsewhere meanwhile.
_RESIGNING_MS_V1 = 10_000
# The leader has the batch, but not the acknowledgements of enough replicas.
_KEPT = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)
# A group's coordinator does not wait for other replicas.
_OFFSETS_REFUSALS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
_OFFSETS_KEPT = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)


class _Appends:
    """Decides the outcome of each append of one kind."""

    def __init__(
        self,
        faults: Faults,
        rng: random.Random,
        refusals: Sequence[ErrorCode],
        kept: Sequence[ErrorCode],
        refusals_when_healed: int,
    ) -> None:
        self._faults = faults
        self._rng = rng
        self._refusals = refusals
        self._kept = kept
        self._left = refusals_when_healed

    def decide(self) -> tuple[ErrorCode, bool]:
        """Return the error, and whether the batch is written."""
        if self._faults.is_healed:
            return self._decide_when_healed()
        if self._faults.happens(FaultKind.APPEND_REFUSED):
            return self._rng.choice(self._refusals), False
        if self._faults.happens(FaultKind.APPEND_KEPT):
            return self._rng.choice(self._kept), True
        return ErrorCode.NONE, True

    def _decide_when_healed(self) -> tuple[ErrorCode, bool]:
        """Refuse some appends for a while. Any producer can repeat them and must not fail."""
        if not self._left or self._rng.random() >= _REFUSED_WHEN_HEALED:
            return ErrorCode.NONE, True
        self._left -= 1
        if self._rng.random() < _KEPT_WHEN_HEALED:
            return self._rng.choice(self._kept), True
        return self._rng.choice(self._refusals), False


class Trouble:
    """The random events of one run.

    Args:
        world: the world that they hit.
        programs: the programs with the processes that they hit.
        rng: draws the times and the victims.
    """

    def __init__(self, world: World, programs: Programs, rng: random.Random) -> None:
        self._world = world
        self._programs = programs
        self._rng = rng
        self._faults = world.faults
        self._counts = world.faults.counts
        records, offsets = _REFUSALS_WHEN_HEALED, _OFFSETS_REFUSALS_WHEN_HEALED
        self._log_writes_left = _LOG_WRITES_WHEN_HEALED
        self._resignations_left = _RESIGNATIONS_WHEN_HEALED
        self._moved: set[str] = set()  # ids of which the next end is refused once
        # The largest number of partitions that the recreated topic has ever had.
        self._widest = world.options.partition_count
        cluster = world.cluster
        cluster.decide_log_write = self._decide_log_write
        cluster.decide_append = _Appends(self._faults, rng, _REFUSALS, _KEPT, records).decide
        cluster.decide_offsets_append = _Appends(
            self._faults, rng, _OFFSETS_REFUSALS, _OFFSETS_KEPT, offsets
        ).decide
        cluster.decide_wrong_topic_id = self._decide_wrong_topic_id
        cluster.decide_refusal = self._decide_refusal
        self._events: dict[FaultKind, Callable[[int], bool]] = {
            FaultKind.UNREACHABLE: self._make_unreachable,
            FaultKind.LEADER_MOVED: self._move_leader,
            FaultKind.COORDINATOR_MOVED: self._move_coordinator,
            FaultKind.GROUP_MOVED: self._move_group,
            FaultKind.BROKER_CRASHED: self._crash_broker,
            FaultKind.CLIENT_CRASHED: self._crash_client,
            FaultKind.CLIENT_PAUSED: self._pause_client,
            FaultKind.ZOMBIE: self._start_zombie,
            FaultKind.ACCESS_REFUSED: self._refuse_access,
            FaultKind.UPGRADED: self._upgrade,
            FaultKind.MEMBER_FENCED: self._fence_member,
            FaultKind.LOGIN_REFUSED: self._refuse_login,
            FaultKind.ACCESS_BLINKED: self._blink,
            FaultKind.LIMIT_LOWERED: self._lower_limit,
            FaultKind.LOGIN_REFUSED_BY_ONE: self._refuse_login_at_one,
            FaultKind.TOPIC_RECREATED: self._recreate_topic,
            FaultKind.PARTITIONS_ADDED: self._add_partitions,
        }

    def start(self) -> None:
        """Schedule the first event of each kind."""
        for kind, interval_ms in self._world.options.intervals_ms.items():
            self._plan(kind, interval_ms)

    def _plan(self, kind: FaultKind, interval_ms: int) -> None:
        delay_ms = 1 + int(self._rng.expovariate(1 / interval_ms))  # some come close together
        self._world.call_at(
            self._world.now_ms + delay_ms, lambda at_ms: self._happen(kind, interval_ms, at_ms)
        )

    def _happen(self, kind: FaultKind, interval_ms: int, now_ms: int) -> None:
        if self._faults.is_healed:
            return
        self._happen_once(kind, now_ms)
        self._plan(kind, interval_ms)

    def _happen_once(self, kind: FaultKind, now_ms: int) -> None:
        self._world.trace.add(now_ms, "TROUBLE", kind.value)
        if self._events[kind](now_ms):
            self._counts[kind] += 1

    def _later(self, longest_ms: int, action: Callable[[int], None]) -> None:
        delay_ms = 1 + self._rng.randrange(longest_ms)
        self._world.call_at(self._world.now_ms + delay_ms, action)

    # --- writes ---------------------------------------------------------------------------------

    def _decide_log_write(self, changed: TransactionMetadata) -> LogWrite:
        name = changed.transactional_id
        if changed.state.is_prepared and name in self._moved:
            # The producer looks for the coordinator again, and may find the old one.
            self._moved.discard(name)
            return LogWrite.LOST
        if self._faults.is_healed:
            decision = self._decide_log_write_when_healed()
        else:
            decision = self._decide_log_write_in_trouble()
        if changed.state.is_complete and self._resigns(name):
            # With v1 the old broker repeats a complete end from its memory; with v2 the identity
            # tells it from the next one.
            if self._world.cluster.transaction_version >= 2 or self._rng.random() < 0.5:
                return LogWrite.LOST
            self._moved.add(name)
        is_kept = decision not in (LogWrite.DONE, LogWrite.LOST)  # found after a later move
        if is_kept and changed.state is TransactionalIdState.ONGOING:
            self._faults.openings_kept[changed.transactional_id] += 1
        return decision

    def _resigns(self, transactional_id: str) -> bool:
        """Perhaps move the coordinator that is about to complete a transaction."""
        cluster, now_ms = self._world.cluster, self._world.now_ms
        kind, number = CoordinatorType.TRANSACTION, cluster.coordinator_number(transactional_id)
        old_node_id = cluster.coordinator_node(kind, transactional_id)
        others = [n for n in cluster.nodes if n != old_node_id and cluster.is_up(n)]
        is_spared = not others or (self._faults.is_healed and not self._resignations_left)
        if is_spared or not self._faults.happens_later(FaultKind.COORDINATOR_RESIGNED):
            return False
        self._resignations_left -= self._faults.is_healed
        self._counts[FaultKind.COORDINATOR_RESIGNED] += 1

        # After the refused write, which leaves the transaction incomplete at the old coordinator.
        def move(at_ms: int) -> None:
            self._move_to(kind, number, others[0], at_ms)

        self._world.call_at(now_ms, move)
        return True

    def _decide_wrong_topic_id(self) -> ErrorCode:
        """Return one of the errors of a leader whose topic has another id than the batch."""
        return self._rng.choice((ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID))

    def _decide_refusal(self) -> ErrorCode:
        """Sometimes answer TRANSACTION_ABORTABLE, as brokers may for any request (KIP-1050)."""
        if self._faults.happens(FaultKind.CALLED_ABORTABLE):
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.NONE

    def _decide_log_write_in_trouble(self) -> LogWrite:
        if self._faults.happens(FaultKind.LOG_WRITE_LOST):
            return LogWrite.LOST
        if self._faults.happens(FaultKind.LOG_WRITE_BROKEN):
            # Before or after the write: the client gets the same error and cannot know which.
            return self._rng.choice((LogWrite.BROKEN, LogWrite.BROKEN_LATE))
        if not self._faults.happens(FaultKind.LOG_WRITE_LATE):
            return LogWrite.DONE
        if self._rng.random() < _MOVED_TOO_RATE:
            # A broker with slow replicas often loses its coordinators.
            self._later(_SOON_MS, partial(self._happen_once, FaultKind.COORDINATOR_MOVED))
        return LogWrite.LATE

    def _decide_log_write_when_healed(self) -> LogWrite:
        """Let a few writes fail or be kept in spite of an error. The producer can repeat them."""
        if self._log_writes_left and self._rng.random() < _LOG_WRITE_FAILS_WHEN_HEALED:
            self._log_writes_left -= 1
            # Not BROKEN: over UNKNOWN_SERVER_ERROR a producer may fail for good (`fatal_ends`).
            return self._rng.choice((LogWrite.LOST, LogWrite.LATE))
        return LogWrite.DONE

    # --- the cluster ----------------------------------------------------------------------------

    def _pick_node(self) -> int:
        return self._rng.randrange(self._world.options.cluster.node_count)

    def _move_leader(self, now_ms: int) -> bool:
        cluster = self._world.cluster
        place = self._rng.choice(list(cluster.logs))
        node_id = cluster.pick_node()
        is_move = node_id not in (-1, cluster.leaders[place])  # a move to itself is no fault
        if is_move:
            cluster.move_partition(place, node_id, now_ms)
        return is_move

    def _move_coordinator(self, now_ms: int) -> bool:
        return self._move(CoordinatorType.TRANSACTION, now_ms)

    def _move_group(self, now_ms: int) -> bool:
        return self._move(CoordinatorType.GROUP, now_ms)

    def _move(self, kind: CoordinatorType, now_ms: int) -> bool:
        cluster = self._world.cluster
        node_id = cluster.pick_node()
        if node_id == -1:
            return False
        number = self._rng.randrange(self._world.options.cluster.coordinator_count)
        self._move_to(kind, number, node_id, now_ms)
        return True

    def _move_to(self, kind: CoordinatorType, number: int, node_id: int, now_ms: int) -> None:
        cluster = self._world.cluster
        resigning_ms = _RESIGNING_MS if cluster.transaction_version >= 2 else _RESIGNING_MS_V1
        cluster.move_coordinator(kind, number, node_id, now_ms, resigning_ms=resigning_ms)

    def _crash_broker(self, now_ms: int) -> bool:
        cluster = self._world.cluster
        node_id = self._pick_node()
        if not cluster.is_up(node_id):
            return False
        cluster.stop_node(node_id, now_ms)
        for process in self._programs.processes:
            process.network.lose_node(node_id, now_ms)
        self._later(4000, lambda at_ms: self._return_broker(node_id, at_ms))
        return True

    def _return_broker(self, node_id: int, now_ms: int) -> None:
        if not self._world.cluster.is_up(node_id):
            self._world.cluster.start_node(node_id, now_ms)

    def _refuse_access(self, now_ms: int) -> bool:
        cluster = self._world.cluster
        name = self._rng.choice(self._world.transactional_ids or ("none",))
        refusals = [
            (Resource.TOPIC, "topic"),
            (Resource.TOPIC, "compacted"),
            (Resource.TRANSACTIONAL_ID, name),
            (Resource.GROUP, f"group-{name}"),
            (Resource.CLUSTER, ""),
        ]
        refusal = self._rng.choice(refusals)
        before = cluster.counts["refused"]
        cluster.denied.add(refusal)
        if self._rng.random() < _MOVED_TOO_RATE:
            cluster.rehash_coordinators(now_ms)  # producers have to look them up

        def allow(_: int) -> None:
            cluster.denied.discard(refusal)
            if cluster.counts["refused"] > before:
                self._counts[FaultKind.ACCESS_REFUSED] += 1

        self._later(2000, allow)
        return False  # counted later, if a request was refused

    def _blink(self, now_ms: int) -> bool:  # noqa: ARG002
        """Refuse access to a topic for a moment, so that some requests in flight fail."""
        cluster = self._world.cluster
        refusal = (Resource.TOPIC, self._rng.choice(("topic", "topic", "compacted")))
        before = cluster.counts["refused"]
        cluster.denied.add(refusal)

        def allow(_: int) -> None:
            cluster.denied.discard(refusal)
            if cluster.counts["refused"] > before:
                self._counts[FaultKind.ACCESS_BLINKED] += 1

        self._later(_BLINK_MS, allow)
        return False  # counted later, if a request was refused

    def _lower_limit(self, now_ms: int) -> bool:  # noqa: ARG002
        """Lower the size limit of batches. Batches in flight may be written and then too large."""
        before = self._counts[FaultKind.BATCH_TOO_LARGE]
        self._limit_batches(self._rng.choice(_LOWERED_LIMITS_BYTES))

        def restore(_: int) -> None:
            self._limit_batches(self._world.options.cluster.max_message_bytes)
            if self._counts[FaultKind.BATCH_TOO_LARGE] > before:
                self._counts[FaultKind.LIMIT_LOWERED] += 1

        self._later(_LOWERED_MS, restore)
        return False  # counted later, if a batch was too large

    def _limit_batches(self, limit_bytes: int) -> None:
        cluster = self._world.cluster
        cluster.options = replace(cluster.options, max_message_bytes=limit_bytes)

    def _recreate_topic(self, now_ms: int) -> bool:
        """Delete the topic that has no committed offsets. It is created again at once or later."""
        cluster = self._world.cluster
        if COMPACTED_TOPIC not in cluster.topics:
            return False
        cluster.delete_topic(COMPACTED_TOPIC, now_ms)
        gap_ms = self._rng.choice(_GAPS_MS)
        self._world.call_at(now_ms + gap_ms, self._make_topic)
        return True

    def _make_topic(self, now_ms: int) -> None:
        cluster, count = self._world.cluster, self._world.options.partition_count
        if self._faults.is_healed:
            # Producers cannot deliver records for a partition that they know but that does not
            # exist.
            count = self._widest
        if COMPACTED_TOPIC not in cluster.topics:
            cluster.create_topic(COMPACTED_TOPIC, count, now_ms)

    def _add_partitions(self, now_ms: int) -> bool:
        cluster = self._world.cluster
        name = self._rng.choice(list(cluster.topics))
        count = cluster.topics[name]
        if count >= _MOST_PARTITIONS:
            return False
        count += 1 + self._rng.randrange(2)
        cluster.add_partitions(name, count, now_ms)
        # It may be deleted, and then comes back with all the partitions that producers know.
        if name == COMPACTED_TOPIC:
            self._widest = max(self._widest, count)
        return True

    def _upgrade(self, now_ms: int) -> bool:  # noqa: ARG002 - every event takes the time
        cluster = self._world.cluster
        if cluster.transaction_version >= 2:  # no fault goes back to v1
            return False
        if self._rng.random() < _OTHER_FEATURE_RATE:
            cluster.finalize(cluster.transaction_version)  # a new epoch, and no upgrade
            return False
        cluster.finalize(2)
        return True

    def _fence_member(self, now_ms: int) -> bool:  # noqa: ARG002
        if not self._world.transactional_ids:
            return False
        group_id = f"group-{self._rng.choice(self._world.transactional_ids)}"
        group = self._world.cluster.group_offsets(group_id).group(group_id)
        group.generation_id += 1  # refuses transactions that have read the old one
        return False  # counted when the group refuses a member

    # --- processes ------------------------------------------------------------------------------

    def _pick_process(self) -> Process | None:
        alive = [p for p in self._programs.processes if not p.is_crashed and not p.is_done]
        return self._rng.choice(alive) if alive else None

    def _make_unreachable(self, now_ms: int) -> bool:
        process, node_id = self._pick_process(), self._pick_node()
        if process is None:
            return False
        network = process.network
        network.unreachable.add(node_id)
        network.lose_node(node_id, now_ms)
        self._later(3000, lambda _: network.unreachable.discard(node_id))
        return False  # counted by the network at the next connection

    def _refuse_login(self, now_ms: int) -> bool:
        process = self._pick_process()
        if process is None:
            return False
        network = process.network
        network.is_login_refused = True
        network.lose_node(self._pick_node(), now_ms)

        def accept(_: int) -> None:
            network.is_login_refused = False

        self._later(300, accept)
        return False  # counted by the network at the next connection

    def _refuse_login_at_one(self, now_ms: int) -> bool:
        process, node_id = self._pick_process(), self._pick_node()
        # With one broker this is LOGIN_REFUSED: there is no other one that takes the login.
        if process is None or self._world.options.cluster.node_count == 1:
            return False
        network = process.network
        network.refusing.add(node_id)
        network.lose_node(node_id, now_ms)  # a login needs a new connection
        self._later(self._rng.choice(_REFUSING_MS), lambda _: network.refusing.discard(node_id))
        return False  # counted by the network at the next connection

    def _crash_client(self, now_ms: int) -> bool:  # noqa: ARG002
        process = self._pick_process()
        if process is None:
            return False
        self._programs.crash(process)
        self._later(2000, lambda _: process.restart())
        return True

    def _pause_client(self, now_ms: int) -> bool:  # noqa: ARG002
        process = self._pick_process()
        if process is None:
            return False
        process.pause(self._rng.choice((50, 1000, 20_000)))  # 20 s: all has expired
        return True

    def _start_zombie(self, now_ms: int) -> bool:  # noqa: ARG002
        if not self._world.transactional_ids:
            return False
        self._programs.start_second(self._rng.choice(self._world.transactional_ids))
        return True

    # --- the end --------------------------------------------------------------------------------

    def heal(self, now_ms: int) -> None:
        """End all faults."""
        self._faults.is_healed = True  # first: the rest must draw no fault
        cluster = self._world.cluster
        cluster.denied.clear()
        self._limit_batches(self._world.options.cluster.max_message_bytes)
        for node_id in cluster.nodes:
            self._return_broker(node_id, now_ms)
        if FaultKind.TOPIC_RECREATED in self._world.options.intervals_ms:
            # Recreate the topic once more. Producers know the old one and have to find the new
            # one.
            if COMPACTED_TOPIC in cluster.topics:
                cluster.delete_topic(COMPACTED_TOPIC, now_ms)
            self._make_topic(now_ms)
        for process in self._programs.processes:
            process.network.unreachable.clear()
            process.network.is_login_refused = False
            process.network.refusing.clear()
        for _ in range(_MOVES_WHEN_HEALED):
            kind = self._rng.choice(_MILD)
            # Healthy clusters also move leaders and coordinators, and no producer may fail over
            # that.
            self._later(_MOVED_WITHIN_MS, partial(self._happen_once, kind))
