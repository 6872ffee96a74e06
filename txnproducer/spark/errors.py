"""Errors of the sink. Each names the rows that are committed already, and the way out.

A refusal is a `SinkError`, so a caller can tell it from an error of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnproducer.errors import AuthorizationError, KafkaError, Recovery
from txnproducer.ledger.errors import LedgerError as AnyLedgerError


# A refusal is no passing failure: the same call again finds the same ledger and the same settings.
class SinkError(KafkaError):
    """The sink refuses to write: on the driver the batch, in a task the task's partition."""

    recovery = "fix"


class SchemaError(SinkError):
    """The frame's columns do not make Kafka records."""


# Of both kinds, so that a program that handles Kafka's refusals of rights meets this one, too.
class MissingRightError(SinkError, AuthorizationError):
    """A right that the sink needs is missing. The text names it, and the way out."""


class LedgerError(SinkError, AnyLedgerError):
    """The ledger does not fit the batch. It is missing, another query's, or ahead of it."""


class TornBatchError(LedgerError):
    """An earlier batch is committed in part, and has to be completed before a newer one."""


class PartialReplayError(SinkError):
    """Some partitions hold this batch already, and the rest cannot be written safely."""


class BatchFailedError(KafkaError):
    """A whole batch could not be written. Nothing of it is visible, so it can be tried again."""

    recovery: Recovery = "abort"


class BatchTimedOutError(BatchFailedError):
    """A whole batch took longer than its transaction may, and the broker has aborted it.

    Another attempt would end the same way: raise `transactionTimeout`, or make batches smaller.
    """

    recovery = "fix"


class StoppedError(KafkaError):
    """The query, the job or Spark was stopped. Rows not committed before are not written."""

    recovery = "restart"


class CommitIncompleteError(KafkaError):
    """Some partitions of a batch are committed, not all. The same batch again completes it.

    Start the query again, or write the batch again with the same rows.
    """

    recovery = "restart"


class StaleRunError(SinkError):
    """Another run of the sink has begun. This task or driver belongs to an earlier one."""


class ReplayMismatchError(SinkError):
    """The batch was committed with other rows than it has now."""


class InputBrokenError(KafkaError):
    """A task has not received all of its rows from Spark. None of them is committed.

    Spark runs the task again. If the error stays, write the batch again.
    """

    recovery = "abort"


@contextmanager
def naming_prepared(atomicity: str | None) -> Iterator[None]:
    """Let a refusal in a block name the atomicity that would not stop there."""
    try:
        yield
    except (PartialReplayError, ReplayMismatchError, TornBatchError) as error:
        if atomicity == "prepared":
            raise
        raise type(error)(
            f'{error} An ExactlyOnceKafkaSink with atomicity="prepared", which needs a new '
            "sink_id, would not stop here: it ends all parts of a batch without their rows, and "
            "leaves a committed batch as it is, with a warning"
        ) from None
