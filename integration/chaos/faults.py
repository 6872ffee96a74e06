"""The faults: brokers that lead or coordinate are killed, or stopped for a while, and return.

Owns: choosing and timing the faults by a seed, counting those that took effect. Must not know: the
workload, the checks.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

from txnproducer.testing import EmbeddedKafka

KILL_LEADER, KILL_COORDINATOR, PAUSE_LEADER = "kill leader", "kill coordinator", "pause leader"
KINDS = (KILL_LEADER, KILL_COORDINATOR, PAUSE_LEADER)
_IN_SYNC_S = 60.0


class Faults:
    """Strikes again and again, one broker at a time, until it is stopped.

    Args:
        kafka: the cluster.
        topic: whose leaders.
        transactional_id: whose coordinator.
        kinds: which faults, in turn.
        seed: decides partitions and pauses.
        pause_s: the shortest and the longest time between two strikes.
    """

    def __init__(
        self,
        kafka: EmbeddedKafka,
        topic: str,
        partitions: int,
        transactional_id: str,
        kinds: tuple[str, ...],
        seed: int,
        pause_s: tuple[float, float] = (0.5, 2.0),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._kafka = kafka
        self._topic = topic
        self._partitions = partitions
        self._transactional_id = transactional_id
        self._kinds = kinds
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the fault under way. The cluster is whole again then."""
        self._stop.set()
        self._thread.join(180)

    def _run(self) -> None:
        strikes: dict[str, Callable[[], None]] = {
            KILL_LEADER: lambda: self._kill(self._leader()),
            KILL_COORDINATOR: lambda: self._kill(
                self._kafka.coordinator_index(self._transactional_id)
            ),
            PAUSE_LEADER: lambda: self._pause(self._leader()),
        }
        number = 0
        try:
            while not self._stop.wait(self._rng.uniform(*self._pause_s)):
                kind = self._kinds[number % len(self._kinds)]
                number += 1
                strikes[kind]()
                self.counts[kind] += 1
        except BaseException as error:  # noqa: BLE001 - told by the run, which fails on it
            self.errors.append(error)

    def _leader(self) -> int:
        return self._kafka.leader_index(self._topic, self._rng.randrange(self._partitions))

    def _kill(self, index: int) -> None:
        self._kafka.kill_node(index)
        self._stop.wait(self._rng.uniform(0.5, 3.0))
        self._kafka.start_node(index)
        # Two brokers must be there at any time, or nobody could write (min.insync.replicas=2).
        self._kafka.wait_in_sync(_IN_SYNC_S)

    def _pause(self, index: int) -> None:
        self._kafka.pause_node(index)
        try:
            self._stop.wait(self._rng.uniform(2.0, 6.0))
        finally:
            self._kafka.resume_node(index)
        self._kafka.wait_in_sync(_IN_SYNC_S)
