"""Questions to a cluster and changes of its topics, for the ledger, the commands and the tests.

Why it exists: the producer speaks only the protocol of producing. All other requests of this
package go through kafka-python's admin client, and through this package alone.
It is for connecting for one call, bounding it, and turning kafka-python's errors into ours. It
must not know producers, their transactions, or the origin of the cluster.
Used by the command line, the sink and `txnproducer.testing`. It is no public interface: a release
may change it, and an application uses kafka-python's `KafkaAdminClient`.
Rules: every call is bounded by its own `timeout` in seconds; every call opens and closes its own
connection, so that nothing is left open (for frequent questions see
`spark/ledger/kept_clients.py`); `security` takes kafka-python's own settings.
"""

from __future__ import annotations

from ._brokers import (
    broker_ids,
    broker_setting,
    unknown_settings,
    wait_for_brokers,
    wait_for_replicas,
)
from ._connection import (
    DEFAULT_TIMEOUT,
    Asker,
    again_while_passing,
    ask,
    connect,
    our_errors,
    some,
)
from ._coordinators import (
    GROUP_TOPIC,
    TRANSACTION_TOPIC,
    coordinator_of,
    describe_transaction,
    describe_transactions,
    java_hash,
    transactional_ids,
)
from ._groups import committed_offsets, group_ids, group_operations
from ._log import ReadTo, TopicReplacedError, read_log
from ._log_batches import LogBatch, LogRecord
from ._producer_questions import ProducerQuestions
from ._topics import (
    TopicAccess,
    create_topic,
    delete_topic,
    leader_of,
    partition_count,
    replica_count,
    topic_access,
    topic_settings,
)

__all__ = [
    "Asker",
    "DEFAULT_TIMEOUT",
    "GROUP_TOPIC",
    "LogBatch",
    "LogRecord",
    "ProducerQuestions",
    "ReadTo",
    "TRANSACTION_TOPIC",
    "TopicAccess",
    "TopicReplacedError",
    "again_while_passing",
    "ask",
    "broker_ids",
    "broker_setting",
    "committed_offsets",
    "connect",
    "coordinator_of",
    "create_topic",
    "delete_topic",
    "describe_transaction",
    "describe_transactions",
    "group_ids",
    "group_operations",
    "java_hash",
    "leader_of",
    "our_errors",
    "partition_count",
    "replica_count",
    "read_log",
    "some",
    "topic_access",
    "topic_settings",
    "transactional_ids",
    "unknown_settings",
    "wait_for_brokers",
    "wait_for_replicas",
]
