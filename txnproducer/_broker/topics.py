"""The topics of a modelled cluster with their partitions and leaders, as each broker knows them.

Why it exists: a topic can be deleted and created again under its name, and can get more
partitions. As with new leaders, each broker learns of this at a time of its own.
Owns: `Topics`, `Life`. Must not know: requests, coordinators.

Rules:
* A topic that is created again has another id, empty logs, and leader epochs that begin at 0.
* The logs of a deleted topic are kept for the judges of a run.
* A new leader knows at once that it leads. The other brokers answer with the last state that they
  have learned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from txnproducer._broker.options import ClusterOptions
from txnproducer._broker.partition_log import PartitionLog
from txnproducer._broker.resources import topic_id_of
from txnproducer._protocol.rng import Rng
from txnproducer.records import TopicPartition

# As `Topic.validate` of Kafka checks it.
LEGAL_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class Life(NamedTuple):
    """One life of a partition: from the creation of its topic to its deletion.

    Attributes:
        place: the topic and the number.
        generation: how often its topic had been deleted before.
    """

    place: TopicPartition
    generation: int


@dataclass(slots=True)
class TopicView:
    """A topic as a broker knows it.

    Attributes:
        generation: how often it had been deleted before.
        is_there: whether it exists, as far as the broker knows.
        leaders: leader and leader epoch of each partition.
    """

    generation: int
    is_there: bool = True
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)


class Topics:
    """The topics of one cluster.

    Args:
        options: the settings of the cluster.
        rng: draws how long news take.
        nodes: the brokers.
        call_at: schedules an action.
        counts: counts the answers with metadata that was out of date.

    Attributes:
        partition_counts: the number of partitions by topic.
        ids: the topics' names by their ids.
        former_ids: the ids of deleted topics.
        logs: the logs by partition, of existing topics only.
        leaders: the leaders, likewise.
        leader_epochs: the leader epochs, likewise.
        generations: how often each topic was deleted.
    """

    def __init__(
        self,
        options: ClusterOptions,
        rng: Rng,
        nodes: Collection[int],
        call_at: Callable[[int, Callable[[int], None]], None],
        counts: Counter[str],
    ) -> None:
        self._options = options
        self._rng = rng
        self._nodes = nodes
        self._call_at = call_at
        self._counts = counts
        self.partition_counts: dict[str, int] = {}
        self.ids: dict[bytes, str] = {}
        self.former_ids: set[bytes] = set()
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.generations: Counter[str] = Counter()
        self._deleted: dict[Life, PartitionLog] = {}
        self._views: dict[int, dict[str, TopicView]] = {node_id: {} for node_id in nodes}

    def topic_id(self, name: str, generation: int | None = None) -> bytes:
        """Return the id that a topic has, or had in an earlier generation."""
        return topic_id_of(name, self.generations[name] if generation is None else generation)

    def life(self, place: TopicPartition) -> Life:
        """Return a partition's present life."""
        return Life(place, self.generations[place.topic])

    def all_logs(self) -> dict[Life, PartitionLog]:
        """Return every log, those of deleted topics included."""
        return self._deleted | {self.life(place): log for place, log in self.logs.items()}

    # --- changes --------------------------------------------------------------------------------

    def create(self, name: str, partition_count: int, now_ms: int | None = None) -> None:
        """Create a topic. The leader of partition p is broker p modulo the number of brokers.

        Args:
            name: its name.
            partition_count: the number of its partitions.
            now_ms: the time, or None to let every broker know at once.
        """
        self.ids[self.topic_id(name)] = name
        generation = self.generations[name]
        self._tell(now_ms, lambda views: _learn_of(views, name, generation))
        # Counted from 0, so that `add_partitions` makes every partition.
        self.partition_counts[name] = 0
        self.add_partitions(name, partition_count, now_ms)

    def delete(self, name: str, now_ms: int) -> None:
        """Delete a topic."""
        generation = self.generations[name]
        for number in range(self.partition_counts.pop(name)):
            place = TopicPartition(name, number)
            self._deleted[Life(place, generation)] = self.logs.pop(place)
            del self.leaders[place], self.leader_epochs[place]
        del self.ids[self.topic_id(name)]
        self.former_ids.add(self.topic_id(name))
        # Before the count: the news name the generation that ends, so a broker that knows the next
        # one ignores them.
        self._tell(now_ms, lambda views: _learn_of_end(views, name, generation))
        self.generations[name] += 1

    def add_partitions(self, name: str, partition_count: int, now_ms: int | None = None) -> None:
        """Raise the number of a topic's partitions to the given total."""
        for number in range(self.partition_counts[name], partition_count):
            place = TopicPartition(name, number)
            self.logs[place] = PartitionLog(
                is_before_2_5=self._options.is_before_2_5,
                is_log_append_time=name in self._options.log_append_time,
            )
            self.leader_epochs[place] = 0
            # In turn, so that every broker leads some, and the loss of any one has an effect.
            self.leaders[place] = number % len(self._nodes)
            self._tell_leader(place, now_ms)
        self.partition_counts[name] = partition_count

    def move(self, place: TopicPartition, node_id: int, now_ms: int) -> None:
        """Give a partition another leader, or none (-1)."""
        # Even without a leader: clients and brokers tell old news from new ones by this epoch
        # (KIP-320).
        self.leader_epochs[place] += 1
        # Only the old leader knows which batches are being verified.
        self.logs[place].states.verifications.clear()
        self.leaders[place] = node_id
        self._tell_leader(place, now_ms)

    # --- the brokers' knowledge -----------------------------------------------------------------

    def known_leader(self, node_id: int, place: TopicPartition) -> tuple[int, int]:
        """Return a partition's leader and leader epoch as a broker knows them, or -1 for both."""
        view = self._views[node_id].get(place.topic)
        known = (-1, -1) if view is None else view.leaders.get(place.partition, (-1, -1))
        # Only a wrong answer counts: the delay of news has no effect by itself.
        if known[0] != self.leaders.get(place, -1):
            self._counts["stale"] += 1
        return known

    def view(self, node_id: int, name: str) -> TopicView | None:
        """Return a topic as a broker knows it, or None if it does not know the topic."""
        view = self._views[node_id].get(name)
        return view if view is not None and view.is_there else None

    def _tell_leader(self, place: TopicPartition, now_ms: int | None) -> None:
        news = self.leaders[place], self.leader_epochs[place]
        life = self.life(place)
        # In a real broker, the same record of the metadata log makes it lead and tells it so.
        if news[0] in self._views and now_ms is not None:
            _learn_leader(self._views[news[0]], life, news)
        self._tell(now_ms, lambda views: _learn_leader(views, life, news))

    def _tell(self, now_ms: int | None, learn: Callable[[dict[str, TopicView]], None]) -> None:
        """Let each broker learn of a change after a delay."""
        longest_ms = self._options.max_metadata_delay_ms
        for views in self._views.values():
            if now_ms is None:
                learn(views)
                continue
            delay_ms = self._rng.randrange(longest_ms + 1) if longest_ms else 0
            self._call_at(now_ms + delay_ms, _later(learn, views))


def _later(
    learn: Callable[[dict[str, TopicView]], None], views: dict[str, TopicView]
) -> Callable[[int], None]:
    # A lambda in the loop would let only the last broker learn.
    return lambda _: learn(views)


def _learn_of(views: dict[str, TopicView], name: str, generation: int) -> None:
    known = views.get(name)
    # News have delays of their own, so that later ones can arrive first.
    if known is None or known.generation < generation:
        views[name] = TopicView(generation)


def _learn_of_end(views: dict[str, TopicView], name: str, generation: int) -> None:
    known = views.get(name)
    if known is None or known.generation <= generation:
        views[name] = TopicView(generation, is_there=False)


def _learn_leader(views: dict[str, TopicView], life: Life, news: tuple[int, int]) -> None:
    name, partition = life.place
    _learn_of(views, name, life.generation)
    view = views[name]
    # Leader epochs begin at 0 in each life of a topic, so they compare only within one.
    if view.generation == life.generation and view.is_there:
        known = view.leaders.get(partition)
        if known is None or known[1] < news[1]:
            view.leaders[partition] = news
