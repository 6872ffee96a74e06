"""The public log line about each transaction's end.

Owns: the logger's name, the line, its values. Must not know: how a transaction ends.
"""

from __future__ import annotations

import logging

from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import KafkaError
from txnproducer.records import ProducerIdAndEpoch

_LOG = held_logger("txnproducer.transactions")
_LINE = (
    "transactional_id=%(transactional_id)r producer_id=%(producer_id)d"
    " producer_epoch=%(producer_epoch)d version=%(version)d outcome=%(outcome)s ms=%(ms)s"
    " records=%(records)d cause=%(cause)s"
)


def is_logged() -> bool:
    """Return whether the logger is enabled. Only then are the values of a line needed."""
    return _LOG.isEnabledFor(logging.INFO)


def log_end(
    transactional_id: str | None,
    producer: ProducerIdAndEpoch,
    version: int,
    outcome: ResolvedOutcome,
    age_ms: int | None,
    record_count: int,
    cause: KafkaError | None,
) -> None:
    """Log the end of a transaction, for operators. The record's `args` are its values.

    Args:
        transactional_id: the producer's.
        producer: the identity that the transaction had.
        version: of transactions, 1 or 2.
        outcome: how it ended.
        age_ms: how long it was open; None if another process may have begun it.
        record_count: how many records were acknowledged.
        cause: why it was not committed.
    """
    _LOG.info(
        _LINE,
        {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "version": version,
            "outcome": outcome,
            "ms": age_ms,
            "records": record_count,
            "cause": None if outcome == "committed" else cause,
        },
    )
