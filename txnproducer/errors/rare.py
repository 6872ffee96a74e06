"""The errors that a producer seldom or never meets, so that every code has its class.

Why it exists: a broker may answer any code to any request; each keeps its name up to the user.
Owns: one short class per code that `errors` does not define.
Must not know: anything but the kinds. Users import all of it from `txnproducer.errors`.
Rules: ordered by kind, then by code; the parent is the one in the Java client 4.3.
"""

from __future__ import annotations

from .codes import ErrorCode
from .kinds import (
    InvalidConfigurationError,
    InvalidMetadataError,
    KafkaError,
    RetriableError,
)


# Requests of an admin client go to the controller, which may have moved.
class NotControllerError(RetriableError, code=ErrorCode.NOT_CONTROLLER):
    """The broker is not the controller of the cluster."""


class FetchSessionIdNotFoundError(RetriableError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
    """The fetch session is not known to the broker."""


class InvalidFetchSessionEpochError(RetriableError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH):
    """The epoch of the fetch session is not the next one."""


# Metadata can reach the client before they reach the broker.
class UnknownLeaderEpochError(RetriableError, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The leader epoch in the request is newer than the broker's."""


# Until the new leader's high watermark has caught up (KIP-207).
class OffsetNotAvailableError(RetriableError, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """The new leader does not know its offsets yet."""


# OffsetFetch answers so if it requires stable offsets (KIP-447).
class UnstableOffsetCommitError(RetriableError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT):
    """Offsets of an undecided transaction are in the way."""


# For requests of an admin client (KIP-599). A quota on Produce delays answers instead.
class ThrottlingQuotaExceededError(RetriableError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """The quota of the request is used up for now."""


class FetchSessionTopicIdError(RetriableError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
    """The fetch session mixes topic names and topic ids."""


class ShareSessionNotFoundError(RetriableError, code=ErrorCode.SHARE_SESSION_NOT_FOUND):
    """The share session is not known to the broker."""


class InvalidShareSessionEpochError(RetriableError, code=ErrorCode.INVALID_SHARE_SESSION_EPOCH):
    """The epoch of the share session is not the next one."""


class ShareSessionLimitReachedError(RetriableError, code=ErrorCode.SHARE_SESSION_LIMIT_REACHED):
    """The broker has reached its limit of share sessions."""


class ReplicaNotAvailableError(InvalidMetadataError, code=ErrorCode.REPLICA_NOT_AVAILABLE):
    """The broker has no replica of the partition."""


class ListenerNotFoundError(InvalidMetadataError, code=ErrorCode.LISTENER_NOT_FOUND):
    """The leader has no listener of the requested name."""


# The client has older metadata than the broker, so it has to ask for new ones.
class FencedLeaderEpochError(InvalidMetadataError, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The leader epoch in the request is older than the broker's."""


class PreferredLeaderNotAvailableError(
    InvalidMetadataError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
):
    """The preferred leader is not available."""


class EligibleLeadersNotAvailableError(
    InvalidMetadataError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
):
    """No replica may become leader now."""


class ElectionNotNeededError(InvalidMetadataError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition has its leader already."""


# A topic that was deleted and created again has another id (KIP-516).
class UnknownTopicIdError(InvalidMetadataError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """The broker does not know a topic of this id."""


class InconsistentTopicIdError(InvalidMetadataError, code=ErrorCode.INCONSISTENT_TOPIC_ID):
    """The topic id is not the one in the broker's log."""


class InvalidRequiredAcksError(InvalidConfigurationError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """The broker does not know this value of acks."""


class InvalidReplicationFactorError(
    InvalidConfigurationError, code=ErrorCode.INVALID_REPLICATION_FACTOR
):
    """The replication factor is below 1 or above the number of brokers."""


class OffsetOutOfRangeError(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is not in the partition's log."""


class InvalidFetchSizeError(KafkaError, code=ErrorCode.INVALID_FETCH_SIZE):
    """The fetch size is not valid."""


class BrokerNotAvailableError(KafkaError, code=ErrorCode.BROKER_NOT_AVAILABLE):
    """The broker is not available."""


class ControllerMovedError(KafkaError, code=ErrorCode.STALE_CONTROLLER_EPOCH):
    """The controller has moved to another node."""


class OffsetMetadataTooLargeError(
    KafkaError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE, recovery="fix"
):
    """The metadata text of a committed offset is too long."""


class InconsistentGroupProtocolError(
    KafkaError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, recovery="fix"
):
    """The member's protocols do not fit the group's."""


class InvalidGroupIdError(KafkaError, code=ErrorCode.INVALID_GROUP_ID, recovery="fix"):
    """The group id is not valid."""


class InvalidSessionTimeoutError(
    KafkaError, code=ErrorCode.INVALID_SESSION_TIMEOUT, recovery="fix"
):
    """The session time-out is outside the limits of the broker."""


# "abort": the offsets of the transaction belong to an assignment that is about to end.
class RebalanceInProgressError(KafkaError, code=ErrorCode.REBALANCE_IN_PROGRESS, recovery="abort"):
    """The consumer group is rebalancing."""


class InvalidCommitOffsetSizeError(
    KafkaError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE, recovery="fix"
):
    """The committed offsets do not fit into one message."""


class TopicExistsError(KafkaError, code=ErrorCode.TOPIC_ALREADY_EXISTS, recovery="fix"):
    """A topic of this name exists already."""


class InvalidPartitionsError(KafkaError, code=ErrorCode.INVALID_PARTITIONS, recovery="fix"):
    """The number of partitions is not valid."""


class InvalidReplicaAssignmentError(
    KafkaError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT, recovery="fix"
):
    """The replica assignment is not valid."""


# Between brokers: no client writes markers.
class TransactionCoordinatorFencedError(KafkaError, code=ErrorCode.TRANSACTION_COORDINATOR_FENCED):
    """The coordinator that wrote a marker is no longer the coordinator."""


class SecurityDisabledError(KafkaError, code=ErrorCode.SECURITY_DISABLED, recovery="fix"):
    """The cluster has no authorizer."""


# AddPartitionsToTxn adds all partitions or none, so one refusal stops the others.
class OperationNotAttemptedError(
    KafkaError, code=ErrorCode.OPERATION_NOT_ATTEMPTED, recovery="abort"
):
    """The broker did not try: another part of the same request failed."""


class LogDirNotFoundError(KafkaError, code=ErrorCode.LOG_DIR_NOT_FOUND, recovery="fix"):
    """The broker has no log directory of this path."""


class ReassignmentInProgressError(KafkaError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS):
    """A reassignment of partitions is going on."""


class InvalidPrincipalTypeError(KafkaError, code=ErrorCode.INVALID_PRINCIPAL_TYPE, recovery="fix"):
    """The principal type is not supported."""


class GroupNotEmptyError(KafkaError, code=ErrorCode.NON_EMPTY_GROUP, recovery="fix"):
    """The group still has members."""


class GroupIdNotFoundError(KafkaError, code=ErrorCode.GROUP_ID_NOT_FOUND, recovery="fix"):
    """The group does not exist."""


class TopicDeletionDisabledError(
    KafkaError, code=ErrorCode.TOPIC_DELETION_DISABLED, recovery="fix"
):
    """The cluster does not delete topics."""


class StaleBrokerEpochError(KafkaError, code=ErrorCode.STALE_BROKER_EPOCH):
    """The broker epoch has changed."""


# A step of joining a group and no failure: the consumer joins again with the id (KIP-394).
class MemberIdRequiredError(KafkaError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """The member must join with the id it was given."""


class GroupMaxSizeReachedError(KafkaError, code=ErrorCode.GROUP_MAX_SIZE_REACHED, recovery="fix"):
    """The group has reached its limit of members."""


class NoReassignmentInProgressError(KafkaError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """No reassignment of partitions is going on."""


class GroupSubscribedToTopicError(
    KafkaError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, recovery="fix"
):
    """The group is subscribed to the topic."""


class ResourceNotFoundError(KafkaError, code=ErrorCode.RESOURCE_NOT_FOUND, recovery="fix"):
    """The resource does not exist."""


class DuplicateResourceError(KafkaError, code=ErrorCode.DUPLICATE_RESOURCE, recovery="fix"):
    """The request names a resource twice."""


class UnacceptableCredentialError(
    KafkaError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL, recovery="fix"
):
    """The credential does not meet the requirements."""


class InconsistentVoterSetError(KafkaError, code=ErrorCode.INCONSISTENT_VOTER_SET):
    """The voter sets do not agree."""


class InvalidUpdateVersionError(KafkaError, code=ErrorCode.INVALID_UPDATE_VERSION):
    """The version of the update is not valid."""


class FeatureUpdateFailedError(KafkaError, code=ErrorCode.FEATURE_UPDATE_FAILED):
    """The finalized features could not be changed."""


class PrincipalDeserializationError(KafkaError, code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE):
    """The forwarded principal could not be read."""


class SnapshotNotFoundError(KafkaError, code=ErrorCode.SNAPSHOT_NOT_FOUND):
    """The snapshot does not exist."""


class PositionOutOfRangeError(KafkaError, code=ErrorCode.POSITION_OUT_OF_RANGE):
    """The position is not in the snapshot."""


class DuplicateBrokerRegistrationError(KafkaError, code=ErrorCode.DUPLICATE_BROKER_REGISTRATION):
    """A broker of this id is registered already."""


class BrokerIdNotRegisteredError(KafkaError, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """The broker id is not registered."""


class InconsistentClusterIdError(KafkaError, code=ErrorCode.INCONSISTENT_CLUSTER_ID):
    """The cluster id is not the broker's."""


class TransactionalIdNotFoundError(KafkaError, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """The coordinator does not know the transactional id."""


class IneligibleReplicaError(KafkaError, code=ErrorCode.INELIGIBLE_REPLICA):
    """The replica may not join the in-sync set."""


class NewLeaderElectedError(KafkaError, code=ErrorCode.NEW_LEADER_ELECTED):
    """The change made another replica the leader."""


class OffsetMovedToTieredStorageError(KafkaError, code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE):
    """The offset has moved to tiered storage."""


class FencedMemberEpochError(KafkaError, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The group coordinator has fenced the member's epoch."""


class UnreleasedInstanceIdError(KafkaError, code=ErrorCode.UNRELEASED_INSTANCE_ID):
    """The instance id is still in use by another member."""


class UnsupportedAssignorError(KafkaError, code=ErrorCode.UNSUPPORTED_ASSIGNOR, recovery="fix"):
    """The group does not support the assignor."""


# "abort" as for a rebalance: it is the same news under the new group protocol (KIP-848).
class StaleMemberEpochError(KafkaError, code=ErrorCode.STALE_MEMBER_EPOCH, recovery="abort"):
    """The member's epoch is older than the group's."""


class MismatchedEndpointTypeError(
    KafkaError, code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, recovery="fix"
):
    """The request went to the wrong kind of endpoint."""


class UnsupportedEndpointTypeError(
    KafkaError, code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, recovery="fix"
):
    """The kind of endpoint is not supported."""


class UnknownControllerIdError(KafkaError, code=ErrorCode.UNKNOWN_CONTROLLER_ID):
    """The controller id is not known."""


class UnknownSubscriptionIdError(KafkaError, code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
    """The telemetry subscription is not known."""


class TelemetryTooLargeError(KafkaError, code=ErrorCode.TELEMETRY_TOO_LARGE):
    """The telemetry is larger than the broker accepts."""


class InvalidRegistrationError(KafkaError, code=ErrorCode.INVALID_REGISTRATION):
    """The controller refused the registration."""


class InvalidRecordStateError(KafkaError, code=ErrorCode.INVALID_RECORD_STATE):
    """The record cannot be acknowledged in its state."""


class FencedStateEpochError(KafkaError, code=ErrorCode.FENCED_STATE_EPOCH):
    """The share coordinator has fenced the state epoch."""


class InvalidVoterKeyError(KafkaError, code=ErrorCode.INVALID_VOTER_KEY):
    """The voter key is not the receiving replica's."""


class DuplicateVoterError(KafkaError, code=ErrorCode.DUPLICATE_VOTER):
    """The voter is in the set already."""


class VoterNotFoundError(KafkaError, code=ErrorCode.VOTER_NOT_FOUND):
    """The voter is not in the set."""


class InvalidRegularExpressionError(
    KafkaError, code=ErrorCode.INVALID_REGULAR_EXPRESSION, recovery="fix"
):
    """The regular expression is not valid."""


class RebootstrapRequiredError(KafkaError, code=ErrorCode.REBOOTSTRAP_REQUIRED):
    """The client must start again from its bootstrap servers."""


class StreamsInvalidTopologyError(
    KafkaError, code=ErrorCode.STREAMS_INVALID_TOPOLOGY, recovery="fix"
):
    """The topology of the Streams group is not valid."""


class StreamsInvalidTopologyEpochError(KafkaError, code=ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH):
    """The topology epoch of the Streams group is not valid."""


class StreamsTopologyFencedError(KafkaError, code=ErrorCode.STREAMS_TOPOLOGY_FENCED):
    """The topology epoch of the Streams group is out of date."""
