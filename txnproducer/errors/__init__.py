"""The errors of this package, in a tree that shows the caller the next step.

Why it exists: a transactional producer fails in few ways that matter. Call again, abort, make a
new producer, change something first, or find out the outcome: the parent class answers in general
(KIP-1050), and `error.recovery` for this very failure.

    KafkaError                                code, recovery; direct children: see the message
    |-- RetriableError                        "resume": retried inside; outside mostly a cause
    |   |-- KafkaTimeoutError(TimeoutError)   raised by blocking calls: call again to go on
    |   |   `-- BufferExhaustedError
    |   |-- DisconnectError                   (ours: UnknownHostError)
    |   |-- ConcurrentTransactionsError  CoordinatorLoadInProgressError
    |   |-- NotEnoughReplicasError  NotEnoughReplicasAfterAppendError  CorruptRecordError ...
    |   `-- RefreshRetriableError             after a look-up
    |       |-- CoordinatorNotAvailableError  NotCoordinatorError
    |       `-- InvalidMetadataError          NotLeaderOrFollowerError  NetworkError ...
    |-- TransactionAbortableError             "abort": abort_transaction(), then go on
    |-- ApplicationRecoverableError           "restart": close(), make a new producer
    |   `-- ProducerFencedError  InvalidProducerEpochError  InvalidPidMappingError
    |       FencedInstanceIdError  UnknownMemberIdError  IllegalGenerationError
    |-- InvalidConfigurationError             "fix": change the configuration or the rights
    |   |-- AuthenticationError               SaslAuthenticationError  SslAuthenticationError ...
    |   |-- AuthorizationError                Topic-, Group-, Cluster-, TransactionalId-
    |   |-- UnsupportedVersionError  UnsupportedForMessageFormatError  InvalidTopicError
    |   |-- RecordBatchTooLargeError ...
    |   `-- UnknownConfigError                (ours) a setting of this name does not exist
    |-- OutOfOrderSequenceError
    |   `-- UnknownProducerIdError
    |-- RecordTooLargeError  InvalidRecordError  SerializationError  TransactionAbortedError
    |-- InvalidTxnStateError  CommitFailedError  UnknownServerError ...
    |-- CommitOutcomeUnknownError             (ours) "unknown": committed or not, it is not known
    |-- ForkedProducerError                   (ours) "restart": make the producer in the child
    `-- IllegalStateError(RuntimeError)       (ours) the caller's mistake; nothing changed

Owns: the classes, their messages, the default of `recovery`; look-up by a broker's code.
Must not know: a producer's state. The kind of a class is a default. One code can mean two things
(INVALID_PRODUCER_EPOCH asks for an abort after Produce, and means fenced in an answer of a
coordinator), so the producer sets `recovery` on the errors it raises.
Rules: parents as in the Java client 4.3; its `XException` is `XError` here. Classes of codes that
a producer hardly meets are in `rare`, those of the login and of rights in `security`; all can be
imported from here.
"""

from __future__ import annotations

from collections.abc import Iterable

from .codes import ErrorCode as ErrorCode

# One list of names, where the sorter would make an import of each.
# isort: off
from .kinds import (
    ApplicationRecoverableError as ApplicationRecoverableError,
    InvalidConfigurationError as InvalidConfigurationError,
    InvalidMetadataError as InvalidMetadataError,
    KafkaError as KafkaError,
    Recovery as Recovery,
    RefreshRetriableError as RefreshRetriableError,
    RetriableError as RetriableError,
    TransactionAbortableError as TransactionAbortableError,
    UnknownServerError as UnknownServerError,
    class_for_code as class_for_code,
    error_for_code as error_for_code,
)

# isort: on
from .rare import *  # noqa: F403
from .security import *  # noqa: F403

# --- retriable ---------------------------------------------------------------------------------


# A `TimeoutError` as well, so that code which knows no Kafka can catch it.
class KafkaTimeoutError(RetriableError, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The operation did not finish in time.

    From a call that begins or ends something: the operation goes on. Call the same method again
    to wait for it, or close the producer; until then most other calls are refused. After
    `flush()` or a future's `result()` any call may follow. As a record's error: it has failed.
    """


# A time-out by its parent, as in Java: code that treats all time-outs alike catches it.
class BufferExhaustedError(KafkaTimeoutError):
    """The buffer memory stayed full for the whole of `max_block_ms`.

    Send slower, or raise `buffer_memory`; a broker that cannot keep up shows itself like this.
    """


# The base of failures without a code of a broker: there was no answer.
class DisconnectError(RetriableError):
    """The connection was lost before the answer came.

    The producer connects and asks again; the broker may or may not have acted on the request.
    """


class UnknownHostError(DisconnectError):
    """The name service knows no host of this name. Check `bootstrap_servers`."""


# Retriable, since a new transfer of the same bytes repairs damage on the way.
class CorruptRecordError(RetriableError, code=ErrorCode.CORRUPT_MESSAGE):
    """The batch failed its checksum or is otherwise damaged.

    Sent again by the producer. If it persists, suspect the network or the broker's disks; a
    compacted topic also answers so to a record without a key.
    """


# A wait and no look-up: this broker is the coordinator, and will answer.
class CoordinatorLoadInProgressError(RetriableError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
    """The coordinator is still reading its log after a move. Wait, it is retried."""


# Refused before the append, so a retry cannot write the records twice.
class NotEnoughReplicasError(RetriableError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas are in sync than `min.insync.replicas` asks. Nothing was written.

    Retried until `delivery_timeout_ms`. Bring brokers back, or lower the topic's minimum.
    """


# The leader has the records already. Without a sequence number each retry writes them again.
class NotEnoughReplicasAfterAppendError(
    RetriableError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
):
    """The record was written, but to fewer replicas than `min.insync.replicas` asks.

    Retried under the same sequence number, so that it is not doubled.
    """


# EndTxn is answered before the markers are written, so the next transaction may come too early.
class ConcurrentTransactionsError(RetriableError, code=ErrorCode.CONCURRENT_TRANSACTIONS):
    """The transactional id's previous transaction is still being completed. It is retried.

    It passes by itself in milliseconds, or with the broker's time-out of a transaction that a
    crashed producer left open.
    """


# A look-up and not only a wait: another broker may be the coordinator by the next attempt.
class CoordinatorNotAvailableError(
    RefreshRetriableError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE
):
    """No coordinator answers for the transactional id or group. It is looked up again.

    If it stays so, the internal topic (`__transaction_state`, `__consumer_offsets`) could not be
    created: its replication factor may be above the number of brokers.
    """


# The asked broker can't name the new coordinator. Only a look-up can.
class NotCoordinatorError(RefreshRetriableError, code=ErrorCode.NOT_COORDINATOR):
    """The coordinator has moved to another broker. It is looked up again."""


# The broker may be gone because the metadata are out of date, so they are asked for again.
class NetworkError(InvalidMetadataError, code=ErrorCode.NETWORK_EXCEPTION):
    """The connection was lost before the broker answered. It may have acted on the request."""


# Retriable: the broker's metadata may be out of date, or the topic is just being created.
class UnknownTopicOrPartitionError(
    InvalidMetadataError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
):
    """The broker does not host this topic or partition.

    Create the topic, check its spelling and the partition's number; it also passes by itself
    right after a topic was created or moved. Without the right to Describe it looks the same.
    """


# A child of stale metadata: only new metadata name the leader that is elected.
class LeaderNotAvailableError(InvalidMetadataError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader now. It is retried while one is elected."""


# The broker refuses before the append or after it, so the batch stays in doubt.
class NotLeaderOrFollowerError(InvalidMetadataError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """The partition has moved to another broker. The producer finds it and sends again."""


# With its disk the broker loses the lead, so the next leader has to be found.
class KafkaStorageError(InvalidMetadataError, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The leader's disk failed. The producer waits for another leader. See the broker's log."""


# --- the application can recover with a new producer -------------------------------------------


# Without a code: no broker refuses a claim. The epoch of its answer shows the other holder.
class ClaimRefusedError(ApplicationRecoverableError):
    """Another process may have the claim of a shared transaction that this one was to take.

    This process has written nothing. The holder of the lease aborts, makes a new lease, and starts
    all participants again.
    """


# A child of "restart" (KIP-1050): no abort helps, since the epoch belongs to another producer.
class ProducerFencedError(ApplicationRecoverableError, code=ErrorCode.PRODUCER_FENCED):
    """A newer producer, or a delayed request of this one, fenced it, or its transaction timed out.

    If another process took over on purpose, stop. If not, look for two programs with one
    `transactional_id`, or raise `transaction_timeout_ms`; then make a new producer.
    """


# Two meanings: a leader saw a stale epoch, or the coordinator knows a newer producer.
class InvalidProducerEpochError(
    ApplicationRecoverableError, code=ErrorCode.INVALID_PRODUCER_EPOCH
):
    """The producer's epoch is an old one.

    After a produce request abort the transaction and go on (`recovery` is "abort"); otherwise the
    producer is fenced: close it and make a new one.
    """


# "restart" as for a fenced producer: its identity has expired, or another one has replaced it.
class InvalidPidMappingError(
    ApplicationRecoverableError, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING
):
    """The coordinator knows the transactional id under another producer id, or not any more.

    It forgets ids that were idle for `transactional.id.expiration.ms` (seven days, unless set
    otherwise): make a new producer.
    """


# The three errors of the consumer group end the consumer and not the producer (KIP-447).
class FencedInstanceIdError(ApplicationRecoverableError, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another consumer has taken over the `group.instance.id` of these offsets.

    Abort, close this consumer, and look for two consumers with one instance id.
    """


class UnknownMemberIdError(ApplicationRecoverableError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The consumer of these offsets is no longer a member of its group.

    Abort, let the consumer join again, rewind it, and do the work again.
    """


class IllegalGenerationError(ApplicationRecoverableError, code=ErrorCode.ILLEGAL_GENERATION):
    """The group has rebalanced since these offsets were read.

    Abort, take the consumer's new group metadata, and do the work again.
    """


# --- a person or the program has to change something first -------------------------------------


class UnknownConfigError(InvalidConfigurationError):
    """A setting of this name does not exist or is not supported. See the message.

    Attributes:
        key: the name as it was passed.
        suggestions: known names that look like it, best first.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        key: str = "",
        suggestions: Iterable[str] = (),
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__(message, recovery=recovery)
        # Fields besides the message, so that a tool can offer the names without reading it.
        self.key = key
        self.suggestions = tuple(suggestions)


# A retry gets the same answer until the broker is upgraded, so it is a matter of configuration.
class UnsupportedVersionError(InvalidConfigurationError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The broker does not know a version of the request that this client can use.

    Upgrade the broker, or leave out the feature that the message names.
    """


class UnsupportedForMessageFormatError(
    InvalidConfigurationError, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
):
    """The topic stores an old message format without transactions. Upgrade its format."""


class InvalidTopicError(InvalidConfigurationError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic's name is not valid or not allowed. Use letters, digits, `.`, `_` and `-`."""


# Not the same as MESSAGE_TOO_LARGE, which the producer answers by splitting the batch.
class RecordBatchTooLargeError(InvalidConfigurationError, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """The batch of several records is larger than the topic's `segment.bytes`.

    Lower `batch_size`, or raise `segment.bytes`.
    """


# --- plain errors: the message and `recovery` decide -------------------------------------------


# "fix" in a transaction as well: after an abort alone, the same record would fail again.
class RecordTooLargeError(KafkaError, code=ErrorCode.MESSAGE_TOO_LARGE, recovery="fix"):
    """The record is larger than `max_request_size`, or than the topic takes.

    Make it smaller, or raise `max_request_size` here and `max.message.bytes` of the topic. In a
    transaction abort first: it cannot be committed without the record. The commit's error says so
    (`recovery` is "abort"), and has the record's own error ("fix") as its cause.
    """


# The record stays wrong, so a repetition of the transaction with it would fail again.
class InvalidRecordError(KafkaError, code=ErrorCode.INVALID_RECORD, recovery="fix"):
    """The broker refused the record itself, for example one without key on a compacted topic."""


class InvalidTimestampError(KafkaError, code=ErrorCode.INVALID_TIMESTAMP, recovery="fix"):
    """The record's timestamp is outside the limits of the topic. See `timestamp_ms`."""


# Raised before the record joins a batch, so that it cannot harm the transaction.
class SerializationError(KafkaError, recovery="fix"):
    """A key, value or header could not be turned into bytes.

    Raised by `send` at once; the transaction is untouched. Pass bytes, or set a serializer.
    """


# "fix": a retry brings the codec to neither side.
class UnsupportedCompressionTypeError(
    KafkaError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, recovery="fix"
):
    """The broker or this installation lacks the codec. Choose another `compression_type`."""


# "fix": the same request meets the same policy again.
class PolicyViolationError(KafkaError, code=ErrorCode.POLICY_VIOLATION, recovery="fix"):
    """A policy of the cluster forbids the request. Its message says why."""


class InvalidRequestError(KafkaError, code=ErrorCode.INVALID_REQUEST):
    """The broker calls the request malformed. This is a bug here or there, worth a report."""


# Refused by InitProducerId, so no transaction is open that an abort could end.
class InvalidTxnTimeoutError(
    KafkaError, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT, recovery="fix"
):
    """`transaction_timeout_ms` is above the broker's `transaction.max.timeout.ms`. Lower it."""


class InvalidTxnStateError(KafkaError, code=ErrorCode.INVALID_TXN_STATE):
    """The coordinator's view of the transaction does not allow this.

    After a produce request abort and go on (`recovery` is "abort"); otherwise make a new producer.
    """


# Neither retriable nor fatal as a class: the sequence manager decides by the batches in flight.
class OutOfOrderSequenceError(KafkaError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A batch came with a sequence number the broker did not expect: records may be lost.

    In a transaction abort and do the work again. Without one, decide whether to send the
    unacknowledged records again.
    """


# A child, as in Java: broker and producer disagree on the sequence in this case as well.
class UnknownProducerIdError(OutOfOrderSequenceError, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The broker has no record of this producer on the partition.

    Its last records were deleted by retention. In a transaction abort and do the work again.
    """


# The broker answers a retry of the last five batches with its offset, so this one is older.
class DuplicateSequenceError(KafkaError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The broker has the batch already: it was written once.

    The producer counts it as a success whose offset is unknown.
    """


# Without a code, as in Java: the client itself drops these records.
class TransactionAbortedError(KafkaError, recovery="abort"):
    """The record was not sent, because its transaction was aborted, or has ended without it.

    Nothing is wrong with the record: send it again in the next transaction.
    """


# An abort suffices: the offsets were refused, and the records are part of an open transaction.
class CommitFailedError(KafkaError, recovery="abort"):
    """The group refused the offsets of the transaction: its members have changed.

    Abort, take the consumer's new group metadata, rewind it, and do the work again (KIP-447).
    """


# No kind of refusal: an application that took it for one, and wrote again, would write twice.
class CommitOutcomeUnknownError(KafkaError, recovery="unknown"):
    """The commit was sent, its answer is lost: committed or aborted, this process cannot tell.

    Do not write the same records again before it is known: ask `producer.resolve_outcome()`,
    or read the output with `read_committed`.
    """


# "restart", although the parent's producer is sound: the child needs one of its own.
class ForkedProducerError(KafkaError, recovery="restart"):
    """The producer was made in another process.

    Sockets and threads do not survive a fork. Make the producer in the process that uses it.
    """


# A `RuntimeError` as well, since it is a mistake of the program.
class IllegalStateError(KafkaError, RuntimeError, recovery="fix"):
    """The call does not fit the producer's state: a mistake of the program.

    Nothing was changed by the call; the message names the state and what is allowed in it.
    """
