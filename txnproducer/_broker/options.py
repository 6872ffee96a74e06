"""What a modelled cluster is like.

Owns: `ClusterOptions`. All times are milliseconds; the defaults are Apache Kafka's, but for what
makes a test wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnproducer.errors import ErrorCode

_VERSION_OF_KIP_360: Final = 3  # of InitProducerId


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The settings.

    Attributes:
        node_count: how many brokers; their ids count from 0.
        transaction_version: the finalized feature; 2 turns transactions v2 on.
        coordinator_count: how many partitions `__transaction_state` has, and
            `__consumer_offsets`.
        max_transaction_timeout_ms: InitProducerId refuses a longer one.
        abort_check_interval_ms: how often transactions are looked at for their time-out.
        transactional_id_expiration_ms: after which an idle id is forgotten; None for never.
        producer_id_expiration_ms: after which a partition forgets an idle producer.
        max_marker_delay_ms: markers take from 0 to this.
        max_metadata_delay_ms: brokers learn of a new leader after 0 to this.
        loading_ms: how long a coordinator that has moved takes to load.
        max_message_bytes: of a batch.
        init_producer_id_version: the newest that is offered; below 3 (before Kafka 2.5) epochs
            can't be raised, and a partition refuses later numbers of a producer it does not know.
        old_node_count: so many brokers, the first ones, know neither requests of transactions v2
            nor topic ids yet: a rolling upgrade. Finalizing the feature means that all are new.
        missing_topic: what Metadata says of a topic that there is not: LEADER_NOT_AVAILABLE while
            it is being created, INVALID_REPLICATION_FACTOR where that fails.
        log_append_time: the topics whose records get the broker's time.
        is_before_4: a broker of Apache Kafka 3.9 with transactions v1, not of 4.x. Where a
            transaction has begun in a partition it takes batches of a later epoch unasked; a group
            that it does not know is to it one without members; and offsets that it refuses for
            their old epoch take the new epoch's pending ones of the same partitions with them. A
            fenced producer that adds partitions is told so even while markers are written.
    """

    node_count: int = 1
    transaction_version: int = 2
    coordinator_count: int = 4
    max_transaction_timeout_ms: int = 900_000
    abort_check_interval_ms: int = 200
    transactional_id_expiration_ms: int | None = None
    producer_id_expiration_ms: int | None = None
    max_marker_delay_ms: int = 0
    max_metadata_delay_ms: int = 0
    loading_ms: int = 0
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
