"""The judgement on an answer to Produce, code by code, in the order of the checks."""

from __future__ import annotations

import pytest

from tests.core.support import TP0
from txnproducer._core.sending.produce_outcome import BatchAction, judge, record_errors
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
    RetriableError,
    TopicAuthorizationError,
    error_for_code,
)

FAILURES = [code for code in ErrorCode if code != ErrorCode.NONE]
# The codes that also ask for new metadata; NETWORK_EXCEPTION stands for a lost connection.
REFRESHING = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


def outcome_of(code, *, can_retry=False, can_split=False, is_done=False, attempts=True, **fields):
    """Judge an answer."""
    return judge(
        ProducePartitionResponse(TP0, code, **fields),
        can_split=can_split,
        is_done=is_done,
        has_attempts_left=attempts,
        can_retry=lambda _: can_retry,
    )


@pytest.mark.conformance("4.26")
@pytest.mark.parametrize("code", FAILURES)
def test_retriable_errors_are_retried_and_the_others_fail(code):
    assert outcome_of(code, can_retry=True).action is BatchAction.RETRY
    expected = (
        BatchAction.COMPLETE if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else BatchAction.FAIL
    )
    assert outcome_of(code, can_retry=False).action is expected
    assert outcome_of(code, can_retry=True, attempts=False).action is expected
    assert outcome_of(code, can_retry=True, is_done=True).action is expected


@pytest.mark.parametrize("code", FAILURES)
def test_the_codes_of_stale_metadata_ask_for_new_metadata(code):
    assert outcome_of(code, can_retry=True).needs_metadata == (code in REFRESHING)
    assert isinstance(error_for_code(code), InvalidMetadataError) == (code in REFRESHING)


@pytest.mark.conformance("4.52")
def test_too_large_splits_only_several_records_that_have_not_ended():
    code = ErrorCode.MESSAGE_TOO_LARGE
    assert outcome_of(code, can_split=True).action is BatchAction.SPLIT
    assert outcome_of(code, can_split=True, attempts=False).action is BatchAction.SPLIT
    assert outcome_of(code).action is BatchAction.FAIL


@pytest.mark.conformance("4.10")
def test_a_duplicate_is_success():
    assert outcome_of(ErrorCode.DUPLICATE_SEQUENCE_NUMBER).action is BatchAction.COMPLETE


@pytest.mark.conformance("4.24")
@pytest.mark.trap(27)
@pytest.mark.parametrize("code", FAILURES)
def test_a_refusal_is_certain_only_if_not_retriable_and_with_attempts_left(code):
    """Java counts a retriable error that meets a passed deadline as certain too."""
    failed = outcome_of(code, can_retry=False)
    if failed.action is not BatchAction.FAIL:
        return
    assert failed.is_refusal_certain != isinstance(error_for_code(code), RetriableError)
    assert not outcome_of(code, attempts=False).is_refusal_certain


@pytest.mark.conformance("6.15")
def test_a_named_leader_counts_only_for_codes_that_say_it_moved_and_if_it_is_known():
    leader = LeaderIdAndEpoch(3, 9)
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        assert outcome_of(code, can_retry=True, current_leader=leader).new_leader == leader
        for unknown in (LeaderIdAndEpoch(-1, 9), LeaderIdAndEpoch(3, -1), None):
            assert outcome_of(code, can_retry=True, current_leader=unknown).new_leader is None
    code = ErrorCode.KAFKA_STORAGE_ERROR
    assert outcome_of(code, can_retry=True, current_leader=leader).new_leader is None


def test_errors_name_the_refused_resource():
    topic = outcome_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED).error
    assert isinstance(topic, TopicAuthorizationError)
    assert topic.topics == {"topic"}
    cluster = outcome_of(ErrorCode.CLUSTER_AUTHORIZATION_FAILED).error
    assert isinstance(cluster, ClusterAuthorizationError)
    assert "idempotent" in str(cluster)


@pytest.mark.conformance("4.61")
def test_a_message_of_the_partition_replaces_the_codes_own():
    assert str(outcome_of(ErrorCode.INVALID_RECORD, error_message="said so").error) == "said so"
    assert "INVALID_RECORD" in str(outcome_of(ErrorCode.INVALID_RECORD).error)


def errors_by_index(*named, message=None, code=ErrorCode.INVALID_TIMESTAMP):
    """Return the function from index to error for an answer that names records."""
    response = ProducePartitionResponse(TP0, code, error_message=message, record_errors=named)
    return record_errors(response, error_for_code(code))


@pytest.mark.conformance("4.61")
def test_without_named_records_all_get_the_partitions_error():
    error_of = errors_by_index()
    assert error_of(0) is error_of(5)
    assert error_of(0).code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.conformance("4.61")
def test_several_named_records_get_invalid_record_with_their_own_message():
    error_of = errors_by_index(RecordError(0, "0"), RecordError(2), message="partition")
    assert isinstance(error_of(0), InvalidRecordError)
    assert str(error_of(0)) == "0"
    assert str(error_of(2)) == "partition"
    assert type(error_of(1)) is KafkaError
    assert "its batch" in str(error_of(1))


@pytest.mark.conformance("4.61")
def test_a_single_named_record_gets_the_partitions_type():
    error_of = errors_by_index(RecordError(3, "too old"))
    assert error_of(3).code == ErrorCode.INVALID_TIMESTAMP
    assert str(error_of(3)) == "too old"
    assert "INVALID_TIMESTAMP" in str(errors_by_index(RecordError(3))(3))


def test_a_topic_that_the_broker_refuses_is_named_unless_the_broker_says_why():
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"{TP0.topic!r}: it is an internal topic" in str(outcome_of(refused).error)
    assert str(outcome_of(refused, error_message="why").error) == "why"
