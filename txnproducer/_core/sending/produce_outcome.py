"""The judgement on one partition's answer to a Produce request.

Owns: the order of the tests (split, retry, duplicate, fail), the errors that records get. Must not
know: queues, connections, transactions; the caller decides whether a retry is allowed.

Rules:
* A failure counts as a certain refusal only if the code is not retriable and the retries were not
  used up: only then may its sequence numbers be used again. (Java also shifts them when a
  retriable error meets a deadline that has passed, though the record may be in the log.)
* DUPLICATE_SEQUENCE_NUMBER is success without an offset: the broker has the records, and no longer
  knows where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from txnproducer._core.batches.results import RecordErrors
from txnproducer._protocol.messages import (
    LeaderIdAndEpoch,
    ProducePartitionResponse,
    RecordError,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    InvalidMetadataError,
    InvalidRecordError,
    KafkaError,
    RecordTooLargeError,
    RetriableError,
    TopicAuthorizationError,
    error_for_code,
)


class BatchAction(Enum):
    """The action for the batch."""

    COMPLETE = auto()
    SPLIT = auto()
    RETRY = auto()
    FAIL = auto()


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """The judgement on a refusal.

    Attributes:
        action: for the batch.
        error: the broker's error.
        is_refusal_certain: whether this attempt certainly did not write the records.
        needs_metadata: whether the cached metadata are out of date.
        new_leader: the leader that the broker named, if it did.
    """

    action: BatchAction
    error: KafkaError
    is_refusal_certain: bool = False
    needs_metadata: bool = False
    new_leader: LeaderIdAndEpoch | None = None


# The limit that a record exceeds, by the answer's code.
_LIMITS: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: (
        "the topic's max.message.bytes (or, where the topic has none, the broker's"
        " message.max.bytes)"
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: "the topic's segment.bytes",
}

_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def judge(
    response: ProducePartitionResponse,
    *,
    can_split: bool,
    is_done: bool,
    has_attempts_left: bool,
    can_retry: Callable[[KafkaError], bool],
) -> ProduceOutcome:
    """Judge one partition's refusal.

    Args:
        response: the answer, with an error code.
        can_split: whether the batch can be sent in parts.
        is_done: whether the batch has expired or was aborted meanwhile.
        has_attempts_left: whether `retries` allows another attempt.
        can_retry: asked at most once, and only when it matters: whether the batch may be sent
            again.
    """
    code = response.error_code
    error = _error(response)
    # Before the retry, which would be refused for its size again.
    if code == ErrorCode.MESSAGE_TOO_LARGE and can_split:
        return ProduceOutcome(BatchAction.SPLIT, error)
    # Also for a batch that is not sent again: others of its partition wait for the new leader.
    needs_metadata = isinstance(error, InvalidMetadataError)
    new_leader = _new_leader(response)
    if not is_done and has_attempts_left and can_retry(error):
        return ProduceOutcome(
            BatchAction.RETRY, error, needs_metadata=needs_metadata, new_leader=new_leader
        )
    if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return ProduceOutcome(BatchAction.COMPLETE, error)
    is_certain = has_attempts_left and not isinstance(error, RetriableError)
    return ProduceOutcome(BatchAction.FAIL, error, is_certain, needs_metadata, new_leader)


def _error(response: ProducePartitionResponse) -> KafkaError:
    code, message = response.error_code, response.error_message
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationError(topics=[response.topic_partition.topic])
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return ClusterAuthorizationError("the producer is not authorized to do idempotent sends")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION and message is None:
        # The metadata have it, so the name is one that a topic can have.
        topic = response.topic_partition.topic
        message = (
            f"the broker takes no records for {topic!r}: it is an internal topic of Kafka, or its"
            " name is not allowed"
        )
    return error_for_code(code, message)


def _new_leader(response: ProducePartitionResponse) -> LeaderIdAndEpoch | None:
    leader = response.current_leader
    # The broker fills only these two codes' answers (KIP-951). Elsewhere the field has its
    # default.
    if response.error_code not in _MOVED or leader is None:
        return None
    # -1 is the field's default: the broker does not know the new leader either.
    return leader if leader.leader_id != -1 and leader.leader_epoch != -1 else None


def only_record_error(
    response: ProducePartitionResponse, error: KafkaError, size_bytes: int
) -> KafkaError:
    """Return the error of a batch with a single record. A size error names the limit.

    Args:
        response: the answer.
        error: its error.
        size_bytes: of the batch, as it was sent.
    """
    limit = _LIMITS.get(response.error_code)
    # All other refusals would be the same for a smaller record.
    if limit is None:
        return error
    topic, partition = response.topic_partition
    told = f" (the broker says: {response.error_message})" if response.error_message else ""
    return RecordTooLargeError(
        f"the broker refuses a record for {topic}-{partition}, {size_bytes} bytes as it was sent:"
        f" more than {limit}{told}. Make the record smaller, or raise that limit"
    )


def record_errors(response: ProducePartitionResponse, error: KafkaError) -> RecordErrors:
    """Return each record's error, by its index in the batch.

    Records that the broker names get their own message (KIP-467). If it names one record, the
    error has the type of the partition's code. If it names several, the reason of each is not
    known. Records that are not named are not at fault.
    """
    named = response.record_errors
    if not named:
        return lambda _: error
    errors = _named_errors(response, named)

    def error_of(index: int) -> KafkaError:
        # Of another type than the named ones, since these records need no change (as in Java).
        return errors.get(index) or KafkaError(
            "the record was refused because its batch had one or more invalid records"
        )

    return error_of


def _named_errors(
    response: ProducePartitionResponse, named: Sequence[RecordError]
) -> dict[int, KafkaError]:
    code = response.error_code
    fallback = response.error_message or str(error_for_code(code))
    if len(named) == 1:
        only = named[0]
        return {only.batch_index: error_for_code(code, only.message or fallback)}
    return {one.batch_index: InvalidRecordError(one.message or fallback) for one in named}
