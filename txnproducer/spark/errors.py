"""What the sink refuses, by kind: each says what is committed already, and what can be done.

All are `SinkError`s, so a caller can tell a refusal of the sink from an error of Kafka.
"""

from __future__ import annotations

from txnproducer.errors import AuthorizationError, KafkaError, Recovery


class SinkError(KafkaError):
    """The sink refuses to write; nothing was written by this call."""

    recovery = "fix"


class SchemaError(SinkError):
    """The frame's columns are not what Kafka records are made of."""


class MissingRightError(SinkError, AuthorizationError):
    """The user of the sink has not been granted what it needs; names the right and the way out."""


class LedgerError(SinkError):
    """The ledger does not fit the batch: missing, another query's, or ahead of it."""


class TornBatchError(LedgerError):
    """An earlier batch is committed in part, and has to be completed before a newer one."""


class PartialReplayError(SinkError):
    """Some partitions hold this batch already, and the others can't be written safely."""


class BatchFailedError(KafkaError):
    """A whole batch could not be written; nothing of it is visible, so it can be run again."""

    recovery: Recovery = "abort"


class BatchTimedOutError(BatchFailedError):
    """A whole batch took longer than its transaction may, and the broker has aborted it.

    Another run would end the same way: raise `transactionTimeout`, or make batches smaller.
    """

    recovery = "fix"


class StoppedError(KafkaError):
    """The query, the job or Spark was stopped; rows not committed before are not written."""

    recovery = "restart"


class CommitIncompleteError(KafkaError):
    """Some partitions of a batch are committed, not all; the same batch again completes it."""

    recovery = "restart"


class StaleRunError(SinkError):
    """Another run of the sink has begun; this task or driver is of an earlier one."""


class ReplayMismatchError(SinkError):
    """The batch comes again with other rows than were committed."""


class InputBrokenError(KafkaError):
    """A task has not got all of its rows from Spark; nothing of it is committed."""

    recovery = "abort"
