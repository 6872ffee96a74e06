"""What the sink refuses, by kind: each says what is committed already, and what can be done.

All are `SinkError`s, so a caller can tell a refusal of the sink from an error of Kafka.
"""

from __future__ import annotations

from txnproducer.errors import KafkaError


class SinkError(KafkaError):
    """The sink refuses to write; nothing was written by this call."""

    recovery = "fix"


class SchemaError(SinkError):
    """The frame's columns are not what Kafka records are made of."""


class LedgerError(SinkError):
    """The ledger does not fit the batch: missing, another query's, or ahead of it."""


class PartialReplayError(SinkError):
    """Some partitions hold this batch already, and the others can't be written safely."""


class BatchFailedError(KafkaError):
    """A whole batch could not be written; nothing of it is visible, so it can be run again."""

    recovery = "abort"


class StaleRunError(SinkError):
    """Another run of the sink has begun; this task or driver is of an earlier one."""


class ReplayMismatchError(SinkError):
    """The batch comes again with other rows than were committed."""
