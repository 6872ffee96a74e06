"""The settings of a modelled cluster.

Owns: `ClusterOptions`. All times are milliseconds. The defaults are Apache Kafka's, except for
those that would make a test wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnproducer.errors import ErrorCode

_VERSION_OF_KIP_360: Final = 3  # of InitProducerId


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The settings of a cluster.

    Attributes:
        node_count: the number of brokers. Their ids count from 0.
        transaction_version: the finalized feature. 2 turns transactions v2 on.
        coordinator_count: the number of partitions of `__transaction_state` and of
            `__consumer_offsets`.
        max_transaction_timeout_ms: the longest time-out that InitProducerId accepts.
        abort_check_interval_ms: how often the coordinator looks for transactions that have timed
            out.
        transactional_id_expiration_ms: the time after which an idle id expires. None means never.
        producer_id_expiration_ms: the time after which a partition forgets an idle producer.
        max_marker_delay_ms: the longest time that a marker takes. The shortest is 0.
        max_metadata_delay_ms: the longest time until a broker learns of a new leader. The shortest
            is 0.
        loading_ms: how long a coordinator loads its log after a move.
        max_message_bytes: the largest size of a batch.
        init_producer_id_version: the newest version offered. Below 3 (before Kafka 2.5) epochs
            cannot be raised, and a partition refuses a batch of an unknown producer that does not
            begin at 0.
        old_node_count: the first brokers of a rolling upgrade, which know neither requests of
            transactions v2 nor topic ids yet. After the feature is finalized all brokers are new.
        missing_topic: the error in Metadata for a missing topic: LEADER_NOT_AVAILABLE while it is
            being created, INVALID_REPLICATION_FACTOR if that fails.
        log_append_time: the topics whose records get the broker's time.
        is_before_4: whether the brokers are Apache Kafka 3.9 with transactions v1, not 4.x. After
            a transaction has begun in a partition, such a leader accepts batches of a later epoch
            without asking the coordinator. An unknown group counts as one without members. Offsets
            that are refused for their old epoch remove pending offsets of the new epoch for the
            same partitions. A fenced producer that adds partitions gets PRODUCER_FENCED even while
            markers are written.
    """

    node_count: int = 1
    transaction_version: int = 2
    coordinator_count: int = 4
    # The brokers' default `transaction.max.timeout.ms`.
    max_transaction_timeout_ms: int = 900_000
    # Kafka looks every 10 s, and a run would mostly wait for that.
    abort_check_interval_ms: int = 200
    transactional_id_expiration_ms: int | None = None
    producer_id_expiration_ms: int | None = None
    max_marker_delay_ms: int = 0
    max_metadata_delay_ms: int = 0
    loading_ms: int = 0
    # The default of `message.max.bytes`: 1 MiB and the 12 bytes before a batch in the log.
    max_message_bytes: int = 1_048_588
    init_producer_id_version: int = 5
    is_before_4: bool = False
    old_node_count: int = 0
    missing_topic: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    log_append_time: frozenset[str] = frozenset()

    @property
    def is_before_2_5(self) -> bool:
        """Whether the brokers are older than KIP-360."""
        return self.init_producer_id_version < _VERSION_OF_KIP_360
