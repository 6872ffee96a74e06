"""The errors of batches that were not delivered within their time.

Why it exists: a record's time-out is often the only error that a program sees, and the client
knows what the batch has waited for. Owns: the texts, and the search for the cause. Must not know:
when a batch expires, or what follows.
Rule: the cause is the first of these that there is: the refusal of the batch itself, the refusal
of a request to a coordinator, which data waits for, and the reason why the leader takes nothing.
"""

from __future__ import annotations

from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.failed_tries import FailedTries, caused_by
from txnproducer._core.metadata import Metadata
from txnproducer._core.ports import KafkaClient
from txnproducer._core.sending.quotas import quota_error
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._protocol.events import data_connection
from txnproducer.errors import KafkaError, KafkaTimeoutError, LeaderNotAvailableError
from txnproducer.records import TopicPartition


class Expiries:
    """Make the errors of expired batches.

    Args:
        delivery_timeout_ms: the setting.
        client: knows whether a broker throttles this client.
        metadata: knows the leaders.
        transactions: has the requests that data waits for; None without idempotence.
        tries: know the failed connections, and have the words for refusals.
    """

    def __init__(
        self,
        delivery_timeout_ms: int,
        client: KafkaClient,
        metadata: Metadata,
        transactions: TransactionManager | None,
        tries: FailedTries,
    ) -> None:
        self._timeout_ms = delivery_timeout_ms
        self._client = client
        self._metadata = metadata
        self._transactions = transactions
        self._tries = tries

    def error_of(self, batch: ProducerBatch, now_ms: int) -> KafkaTimeoutError:
        """Return the error of a batch that expires now."""
        topic, partition = batch.topic_partition
        reason = self._reason(batch, now_ms)
        # The fate of a batch that was refused has the refusal's code already.
        told = "" if reason is None or batch.refusal is not None else f"; {reason}"
        text = (
            f"{batch.record_count} record(s) for {topic}-{partition} expired "
            f"{now_ms - batch.created_ms} ms after their batch was begun "
            f"(delivery_timeout_ms={self._timeout_ms}); {known_fate(batch)}{told}. "
            f"{self._advice(batch)}, or raise delivery_timeout_ms if this is too soon"
        )
        return caused_by(KafkaTimeoutError(text), (), refusal=reason)

    def _reason(self, batch: ProducerBatch, now_ms: int) -> KafkaError | None:
        if batch.refusal is not None:
            return self._tries.refusal_error(batch.refusal)
        # What keeps it from its answer is not what keeps others from being sent.
        if batch.is_in_flight:
            return None
        if self._transactions is not None:
            refusals = self._transactions.requests.refusals()
            refusal = self._tries.last_refusal(refusals, now_ms)
            if refusal is not None:
                return refusal
        return self._reason_of_leader(batch.topic_partition, now_ms)

    def _reason_of_leader(self, place: TopicPartition, now_ms: int) -> KafkaError | None:
        leader_id, _ = self._metadata.leader_of(place)
        # Also if the metadata name a leader without its address.
        if leader_id not in self._metadata.nodes:
            return LeaderNotAvailableError("no broker of the cluster leads the partition")
        connection = data_connection(leader_id)
        quota = quota_error(self._client, connection, "leads the partition", now_ms)
        return self._tries.failure_of(leader_id) if quota is None else quota

    def _advice(self, batch: ProducerBatch) -> str:
        if self._transactions is not None and self._transactions.is_transactional:
            return "Abort the transaction and make it again"
        if batch.was_sent:
            return "Check whether they are there before you send them again"
        return "Send them again"


def known_fate(batch: ProducerBatch) -> str:
    """Return the known fate of an ended batch, for the text of its error."""
    if not batch.was_sent:
        return "nothing was sent"
    if batch.is_in_flight:
        return "the broker has not answered yet, it may have the records"
    # A late copy of an earlier attempt can still be written, even if the last one was refused.
    not_written = "they were not written when it was last sent"
    doubt = "the broker may have the records" if batch.may_be_written else not_written
    return f"{doubt}; its last attempt ended with: {batch.last_error}"
