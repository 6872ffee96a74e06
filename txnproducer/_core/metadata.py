"""The client's view of the cluster (brokers, topics, leaders), and when to ask again.

Owns: the snapshot, the leader epochs, the topics wanted with their idle expiry, the schedule of
refreshes, the bootstrap addresses. Must not know: connections, who sends the request, batches.

Rules:
* An answer may come from a broker that lags behind: a partition's leader is never replaced by one
  of an older epoch (KIP-320). A topic with a new id is another topic, and its epochs start again.
* A topic is asked for from its first use until it was unused for `metadata_max_idle_ms` (KIP-526).
* After an incomplete answer the next request waits, each time longer. A new topic does not wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.messages import (
    BrokerNode,
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from txnproducer._protocol.rng import Rng
from txnproducer.errors import (
    ErrorCode,
    InvalidMetadataError,
    InvalidTopicError,
    KafkaError,
    RetriableError,
    TopicAuthorizationError,
    class_for_code,
    error_for_code,
)
from txnproducer.records import TopicPartition

NO_LEADER: Final = -1
# Far above every clock, and low enough that compiled code can add a time to it.
NEVER_MS: Final = 1 << 62
_VALID_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicSnapshot:
    """One topic: its id and its partitions' leaders, by partition number.

    Attributes:
        partition_count: how many partitions the topic has.
        available: those with a leader.
    """

    __slots__ = (
        "available",
        "leader_epochs",
        "leader_ids",
        "partition_count",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, topic_id: bytes | None, leader_ids: list[int], leader_epochs: list[int]
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.leader_ids = leader_ids
        self.leader_epochs = leader_epochs
        self.available = [p for p, leader in enumerate(leader_ids) if leader != NO_LEADER]
        self.partition_count = len(leader_ids)

    def partitions(self) -> tuple[PartitionMetadata, ...]:
        """Return all partitions with their leaders."""
        pairs = zip(self.leader_ids, self.leader_epochs, strict=True)
        return tuple(
            PartitionMetadata(p, leader, epoch) for p, (leader, epoch) in enumerate(pairs)
        )


class Metadata:
    """The cluster as it is known now, and the topics that are wanted.

    Args:
        bootstrap_nodes: where to begin, and where to begin again when every known broker is gone.
        retry_backoff_ms: the first wait after an incomplete answer.
        retry_backoff_max_ms: the longest such wait.
        max_age_ms: how old a snapshot may become.
        max_idle_ms: how long an unused topic is still asked for.
        rng: for the jitter of the waits.

    Attributes:
        renewed: the topics that the last answer was about; None if it was about all.
        gone: the known topics that the last answer has ended, or replaced by others of their name.
    """

    def __init__(
        self,
        bootstrap_nodes: Sequence[BrokerNode],
        *,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        max_age_ms: int,
        max_idle_ms: int,
        rng: Rng,
    ) -> None:
        self.bootstrap_nodes = tuple(bootstrap_nodes)
        self.nodes: dict[int, BrokerNode] = {}
        self.topics: dict[str, TopicSnapshot] = {}
        self.version = 0
        self.cluster_id: str | None = None
        self.last_success_ms: int | None = None
        self.answered_ms: int | None = None  # when the last answer came, even a partial one
        self.fatal_error: KafkaError | None = None
        self._backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms, rng)
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._wanted: dict[str, int] = {}  # topic -> when it was last used
        self._topic_errors: dict[str, KafkaError] = {}
        # A set of its own, so that a new topic is asked for without all the others.
        self._new_topics: set[str] = set()
        self._is_update_due = True
        self._is_partial = False
        self._attempts = 0
        self._not_before_ms = -NEVER_MS
        self.asked_count = 0  # how many requests were built
        self._asked_ms = -NEVER_MS  # when the last of them was
        self._answers: dict[str, tuple[int, int]] = {}
        self._open_codes: dict[str, int] = {}
        self.renewed: tuple[str, ...] | None = None
        self.gone: set[str] = set()

    # --- the cluster as it is known -------------------------------------------------------------

    @property
    def node_ids(self) -> set[int]:
        """The ids of the known brokers and of the bootstrap addresses."""
        return {*(node.node_id for node in self.bootstrap_nodes), *self.nodes}

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """Return a partition's leader and leader epoch, each -1 if it is not known."""
        topic, partition = topic_partition
        snapshot = self.topics.get(topic)
        if snapshot is None or partition >= len(snapshot.leader_ids):
            return NO_LEADER, -1
        return snapshot.leader_ids[partition], snapshot.leader_epochs[partition]

    def take_topic_error(self, topic: str) -> KafkaError | None:
        """Return, once, the error that makes a topic unusable, or None if there is none."""
        # Once, so that a later call asks the cluster again: the topic may be repaired since.
        return self._topic_errors.pop(topic, None)

    def answer_of(self, topic: str) -> tuple[int, int]:
        """Return the number and time of the request whose answer last had a topic's partitions.

        The first request has the number 1. The number is 0 if there was no such answer.
        """
        return self._answers.get(topic, (0, -NEVER_MS))

    def open_code(self, topic: str) -> int:
        """Return the code of a topic's last answer if it is asked for again, or NONE."""
        return self._open_codes.get(topic, ErrorCode.NONE)

    def has_topic_error(self, topic: str) -> bool:
        """Return whether `take_topic_error` would return one."""
        return topic in self._topic_errors

    # --- the topics that are wanted -------------------------------------------------------------

    def add_topic(self, topic: str, now_ms: int) -> None:
        """Want a topic from now on. Ask for it at once if it is new."""
        # A new topic must not wait for the backoff of the others.
        if topic not in self._wanted:
            self._not_before_ms = min(self._not_before_ms, now_ms)
        self._wanted[topic] = now_ms
        if topic not in self.topics:
            self._new_topics.add(topic)

    def request_topic(self, topic: str) -> None:
        """Ask for one topic again as soon as the backoff allows it."""
        self._new_topics.add(topic)

    def request_update(self) -> None:
        """Ask again as soon as the backoff allows it."""
        self._is_update_due = True

    def update_delay_ms(self, now_ms: int) -> int:
        """Return in how many milliseconds the next request is due."""
        if self._is_update_due or self._new_topics:
            return max(0, self._not_before_ms - now_ms)
        since = self.last_success_ms if self.last_success_ms is not None else now_ms
        return max(0, since + self._max_age_ms - now_ms, self._not_before_ms - now_ms)

    def build_request(self, now_ms: int) -> MetadataRequest:
        """Return the request that is due: for the new topics alone, or for all that are wanted."""
        self._not_before_ms = NEVER_MS  # until this one is answered
        self.asked_count += 1
        self._asked_ms = now_ms
        self._is_partial = not self._is_update_due and not self._is_too_old(now_ms)
        # Sorted, since the order of a set differs from process to process.
        if self._new_topics and self._is_partial:
            return MetadataRequest(tuple(sorted(self._new_topics)))
        self._is_update_due = self._is_partial = False
        # Here and not by a clock, since only a full request would ask for an idle topic again.
        for topic in [t for t, used_ms in self._wanted.items() if self._is_idle(used_ms, now_ms)]:
            del self._wanted[topic]
            self._new_topics.discard(topic)
        return MetadataRequest(tuple(sorted(self._wanted)))

    def _is_idle(self, used_ms: int, now_ms: int) -> bool:
        return now_ms - used_ms > self._max_idle_ms

    def _is_too_old(self, now_ms: int) -> bool:
        return self.last_success_ms is None or now_ms - self.last_success_ms >= self._max_age_ms

    # --- answers --------------------------------------------------------------------------------

    def fail(self, error: KafkaError) -> None:
        """Note that no broker accepts the login, so that no answer can come."""
        self.fatal_error = error

    def handle_response(
        self, request: MetadataRequest, response: MetadataResponse, now_ms: int
    ) -> None:
        """Take in an answer. Topics that were not asked for stay as they are."""
        self.nodes = {node.node_id: node for node in response.brokers}
        self.cluster_id = response.cluster_id
        self.answered_ms = now_ms
        # An answer shows that a broker accepts the login again.
        self.fatal_error = None
        # A topic that came while the request was out is not in its answer, so it is asked for at
        # once.
        self._new_topics.difference_update(request.topics)
        before = topics = self.topics
        # There may be thousands of topics, and each new one has a partial answer of its own.
        if self._is_partial:
            self.renewed = request.topics
            before = {t: topics[t] for t in request.topics if t in topics}
        else:
            self.renewed = None
            topics = {t: s for t, s in topics.items() if t in self._wanted}
            codes = self._open_codes.items()
            self._open_codes = {t: code for t, code in codes if t in self._wanted}
        # An answer without brokers comes from a broker that has just started. It shows nothing.
        is_open = not response.brokers
        for answer in response.topics:
            is_open |= self._take_topic(topics, answer)
        self.topics = topics
        self.gone = {
            t for t, s in before.items() if t not in topics or topics[t].topic_id != s.topic_id
        }
        # A topic that has gone and comes back must not be judged by an old answer.
        for topic in self.gone:
            if topic not in topics:
                self._answers.pop(topic, None)
        self.version += 1
        if not self._is_partial:  # after a partial answer the other topics are as old as before
            self.last_success_ms = now_ms
        if is_open:
            self._wait_longer(now_ms)
            self._is_update_due = True
        else:
            self._attempts = 0
            # A caller that asks again waits a little: the next answer would be the same.
            self._not_before_ms = now_ms + (0 if self._new_topics else self._backoff.draw_ms(0))

    def handle_failure(self, now_ms: int) -> None:
        """Note that a request was not answered."""
        self._is_update_due = True
        self._wait_longer(now_ms)

    def _wait_longer(self, now_ms: int) -> None:
        self._not_before_ms = now_ms + self._backoff.draw_ms(self._attempts)
        self._attempts += 1

    def _take_topic(self, topics: dict[str, TopicSnapshot], answer: TopicMetadata) -> bool:
        """Put one topic's answer into the snapshot. Return whether to ask for it again."""
        topic = answer.topic
        self._topic_errors.pop(topic, None)
        self._open_codes.pop(topic, None)
        if answer.error_code != ErrorCode.NONE:
            return self._take_topic_error(topics, answer)
        known = topics.get(topic)
        # Another topic of the same name: its leader epochs do not continue the old ones.
        if known is not None and known.topic_id != answer.topic_id:
            known = None
        # Partitions may be missing from an answer, so the highest number counts, and not how many
        # came.
        size = max((p.partition for p in answer.partitions), default=-1) + 1
        leader_ids, epochs = [NO_LEADER] * size, [-1] * size
        for partition in answer.partitions:
            leader_id, epoch = _newer(known, partition)
            leader_ids[partition.partition] = leader_id
            epochs[partition.partition] = epoch
        topics[topic] = TopicSnapshot(topic, answer.topic_id, leader_ids, epochs)
        self._answers[topic] = self.asked_count, self._asked_ms
        return any(_is_worth_asking_again(p.error_code) for p in answer.partitions)

    def _take_topic_error(self, topics: dict[str, TopicSnapshot], answer: TopicMetadata) -> bool:
        if _is_worth_asking_again(answer.error_code):
            # The topic may just have been created. If it is gone, its records end by their
            # deadline.
            if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topics.pop(answer.topic, None)
            self._open_codes[answer.topic] = answer.error_code
            # An idle topic needs no second question.
            return answer.topic in self._wanted
        topics.pop(answer.topic, None)
        self._topic_errors[answer.topic] = _topic_error(answer)
        return False

    def update_leaders(
        self, leaders: Mapping[TopicPartition, LeaderIdAndEpoch], nodes: Iterable[BrokerNode]
    ) -> set[TopicPartition]:
        """Take in leaders that a refusing broker named (KIP-951).

        Returns:
            The partitions that this was news for.
        """
        for node in nodes:
            self.nodes[node.node_id] = node
        updated = set()
        for topic_partition, leader in leaders.items():
            topic, partition = topic_partition
            snapshot = self.topics.get(topic)
            if snapshot is None or partition >= snapshot.partition_count:
                continue
            # Only a later epoch is news (as in Java): an equal one has the same leader.
            if leader.leader_epoch <= snapshot.leader_epochs[partition]:
                continue
            # Without an address nothing could be sent to it.
            if leader.leader_id not in self.nodes:
                continue
            leader_ids, epochs = list(snapshot.leader_ids), list(snapshot.leader_epochs)
            leader_ids[partition] = leader.leader_id
            epochs[partition] = leader.leader_epoch
            self.topics[topic] = TopicSnapshot(topic, snapshot.topic_id, leader_ids, epochs)
            updated.add(topic_partition)
        if updated:
            # Waiting callers look at the version, and ask again when it has changed.
            self.version += 1
        return updated


def _newer(known: TopicSnapshot | None, answer: PartitionMetadata) -> tuple[int, int]:
    """Return a partition's leader and epoch: the answer's, unless a later epoch is known."""
    partition = answer.partition
    # An answer without an epoch (-1) comes from an old broker, and is believed as it is.
    if known is not None and partition < known.partition_count and answer.leader_epoch != -1:
        known_epoch = known.leader_epochs[partition]
        if known_epoch > answer.leader_epoch:
            return known.leader_ids[partition], known_epoch
    return answer.leader_id, answer.leader_epoch


def _is_worth_asking_again(error_code: int) -> bool:
    if error_code == ErrorCode.NONE:
        return False
    return issubclass(class_for_code(error_code), InvalidMetadataError | RetriableError)


def name_error(topic: str) -> KafkaError | None:
    """Return why a topic's name cannot even be asked for, or None if it can."""
    try:
        # A lone surrogate has no bytes. A request with such a name could not be sent, nor could
        # the other topics in it.
        topic.encode()
    except UnicodeEncodeError as error:
        return InvalidTopicError(f"{topic!r} is not a topic name: {error}")
    return None


def is_valid_name(topic: str) -> bool:
    """Return whether a topic can have a name, by the rule of the brokers."""
    return _VALID_NAME.fullmatch(topic) is not None and topic not in (".", "..")


def invalid_name(topic: str) -> str:
    """Return the text about a name that no topic can have."""
    return (
        f"{topic!r} is not a valid topic name: 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and"
        " '-', and not '.' or '..'"
    )


def _topic_error(answer: TopicMetadata) -> KafkaError:
    if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationError(topics=[answer.topic])
    if answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        # Metadata answers carry no text for a topic, so the rule is named here.
        return error_for_code(answer.error_code, invalid_name(answer.topic))
    return error_for_code(answer.error_code)
