"""Exactly-once writes into Apache Kafka from Python and Spark.

The names listed here are those that most programs need. All that is supported is in the reference,
docs/api.rst. The other errors are in `txnproducer.errors`.

The root is for one import of them. It must not know Spark, the commands or the tools for tests,
which only their users load.
"""

from __future__ import annotations

from txnproducer import errors
from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.record_future import FutureRecordMetadata
from txnproducer._version import __version__
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    ApplicationRecoverableError,
    ClaimRefusedError,
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RetriableError,
    TransactionAbortableError,
)
from txnproducer.lease import TransactionLease, TransactionParticipant, TransactionReceipt
from txnproducer.producer import TransactionalProducer
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from txnproducer.transaction import Transaction

__all__ = [
    "__version__",
    # the producer
    "TransactionalProducer",
    "Transaction",
    "FutureRecordMetadata",
    "FutureBatchMetadata",
    # a transaction that several processes share
    "TransactionLease",
    "TransactionParticipant",
    "TransactionReceipt",
    # configuration and values
    "ProducerConfig",
    "ConsumerGroupMetadata",
    "OffsetAndMetadata",
    "RecordMetadata",
    "TopicPartition",
    # errors
    "errors",
    "ApplicationRecoverableError",
    "ClaimRefusedError",
    "CommitOutcomeUnknownError",
    "IllegalStateError",
    "InvalidConfigurationError",
    "KafkaError",
    "KafkaTimeoutError",
    "ProducerFencedError",
    "RetriableError",
    "TransactionAbortableError",
]
