"""The topic of a ledger: it is made if it is not there, and refused if it would lose entries.

Owns: the checks, their texts. Must not know: the entries, the topic's settings.

Rules:
* A topic of one partition that is compacted and nothing else. Any other policy would delete
  entries by age or size, and the sink would write committed batches once more.
* It is as safe as a ledger in offsets: a topic that the sink makes has as many replicas.
* A sink that keeps its ledger in offsets is refused if a topic of its ledger is there. A topic of
  that name may be another program's: it is a ledger if its first record is an entry. Without the
  right to look it counts as one.
"""

from __future__ import annotations

from typing import Final

from txnproducer.admin import LogBatch, partition_count, read_log
from txnproducer.errors import AuthorizationError, TopicAuthorizationError, TopicExistsError
from txnproducer.ledger import compacted_topic
from txnproducer.ledger.topic_log import readable
from txnproducer.spark.errors import LedgerError, MissingRightError
from txnproducer.spark.ledger.move import default_topic, moved
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import TopicLedger, is_record_of_ledger, unreadable


def check_ledger_topic(ledger: Ledger) -> None:
    """Check that the place of a ledger is the one that its sink has, and can keep it.

    Raises:
        LedgerError: the ledger is in a topic, and the sink was not told; or the topic is not
            compacted, or has several partitions; or its first record cannot be read.
        MissingRightError: there is no topic, and it may not be created.
        KafkaError: the cluster refused, or did not answer.
    """
    count = _count_of(ledger)
    if not isinstance(ledger, TopicLedger):
        # With any settings: the ledger's own may have been changed.
        if count is not None and _holds_entries(ledger, default_topic(ledger.sink_id)):
            raise moved(ledger.sink_id, default_topic(ledger.sink_id))
        return
    if count is None:
        ledger.check_marks()  # a topic that was made by mistake would mislead the next start
        _create(ledger)
        return
    if count != 1:
        raise LedgerError(
            f"the topic {ledger.log!r} has {count} partitions: the topic of a ledger has one. "
            f"{_WAYS_OUT}"
        )
    _check_policy(ledger)


_WAYS_OUT: Final = (
    "Nothing was written. Ways out: let the sink make its topic, under another name "
    '(ledger="topic:NAME"); or change this one, if nothing else uses it.'
)


def _count_of(ledger: Ledger) -> int | None:
    topic = ledger.log if isinstance(ledger, TopicLedger) else default_topic(ledger.sink_id)
    try:
        return partition_count(ledger.bootstrap_servers, topic, **ledger.security)
    except TopicAuthorizationError:
        # Without Describe brokers say so of a topic that is not there as well. A ledger in
        # offsets must not need a right to it.
        return None


class _FoundError(Exception):
    """Ends the reading of a topic that may be long. It has the first record as its argument."""


def _holds_entries(ledger: Ledger, topic: str) -> bool:
    """Return whether a topic is a ledger, as far as it may be looked at."""

    def stop_at_record(batch: LogBatch) -> None:
        for record in batch.newest.values():
            raise _FoundError(record)

    servers, security = ledger.bootstrap_servers, ledger.security
    try:
        with readable(unreadable):
            read_log(servers, topic, 0, stop_at_record, **security)
    except AuthorizationError:
        return True
    except _FoundError as found:
        return is_record_of_ledger(found.args[0])
    return False


def _create(ledger: TopicLedger) -> None:
    try:
        compacted_topic.create(ledger.bootstrap_servers, ledger.log, ledger.security)
    except TopicExistsError:
        # Another driver was quicker: it is looked at like any other.
        _check_policy(ledger)
    except AuthorizationError as error:
        raise MissingRightError(str(error)) from error


def _check_policy(ledger: TopicLedger) -> None:
    policy = compacted_topic.losing_policy(ledger.bootstrap_servers, ledger.log, ledger.security)
    if policy is not None:
        raise LedgerError(
            f"the topic {ledger.log!r} has cleanup.policy={policy}, so that entries of the ledger "
            "would be deleted, and batches be written twice. It needs cleanup.policy=compact. "
            f"{_WAYS_OUT}"
        )
