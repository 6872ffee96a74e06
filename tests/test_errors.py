"""Every broker code has its error, and every error says how the caller can go on."""

from __future__ import annotations

import pickle

import pytest

from txnproducer import errors
from txnproducer.errors import (
    ApplicationRecoverableError,
    BufferExhaustedError,
    CommitOutcomeUnknownError,
    ErrorCode,
    GroupAuthorizationError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidMetadataError,
    InvalidProducerEpochError,
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RefreshRetriableError,
    RetriableError,
    TopicAuthorizationError,
    TransactionAbortableError,
    UnknownConfigError,
    UnknownProducerIdError,
    UnknownServerError,
    class_for_code,
    error_for_code,
)

REFRESH_AND_METADATA = {
    "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER",
    "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION", "KAFKA_STORAGE_ERROR", "LISTENER_NOT_FOUND",
    "FENCED_LEADER_EPOCH", "PREFERRED_LEADER_NOT_AVAILABLE", "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "ELECTION_NOT_NEEDED", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID",
}  # fmt: skip
REFRESH_BY_LOOKUP = {"COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"}
RETRIABLE = {
    *REFRESH_AND_METADATA, *REFRESH_BY_LOOKUP,
    "CORRUPT_MESSAGE", "REQUEST_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_CONTROLLER", "CONCURRENT_TRANSACTIONS",
    "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "UNSTABLE_OFFSET_COMMIT",
    "THROTTLING_QUOTA_EXCEEDED", "FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH",
    "FETCH_SESSION_TOPIC_ID_ERROR", "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH",
    "SHARE_SESSION_LIMIT_REACHED",
}  # fmt: skip
APPLICATION_RECOVERABLE = {
    "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING",
    "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID",
}  # fmt: skip
INVALID_CONFIGURATION = {
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE",
    "UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_TOPIC_EXCEPTION",
    "RECORD_LIST_TOO_LARGE", "INVALID_REQUIRED_ACKS", "INVALID_CONFIG",
    "INVALID_REPLICATION_FACTOR",
}  # fmt: skip
GROUPS = {
    RetriableError: RETRIABLE,
    RefreshRetriableError: REFRESH_AND_METADATA | REFRESH_BY_LOOKUP,
    InvalidMetadataError: REFRESH_AND_METADATA,
    TransactionAbortableError: {"TRANSACTION_ABORTABLE"},
    ApplicationRecoverableError: APPLICATION_RECOVERABLE,
    InvalidConfigurationError: INVALID_CONFIGURATION,
}

CODES = [code for code in ErrorCode if code != ErrorCode.NONE]
ERROR_CLASSES = sorted(
    {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, KafkaError)
    },
    key=lambda each: each.__name__,
)


def test_the_codes_are_the_protocols_without_a_gap() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_code_has_a_class_of_its_own(code: ErrorCode) -> None:
    error = error_for_code(code)
    assert type(error).code == code
    assert type(error) is class_for_code(code)
    assert code.name in str(error)


def test_no_two_codes_share_a_class() -> None:
    assert len({class_for_code(code) for code in CODES}) == len(CODES)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_a_group_has_exactly_the_codes_the_java_client_puts_there(group: type[KafkaError]) -> None:
    assert {code.name for code in CODES if issubclass(class_for_code(code), group)} == GROUPS[
        group
    ]


def test_unknown_producer_id_is_also_out_of_order() -> None:
    assert issubclass(UnknownProducerIdError, OutOfOrderSequenceError)


@pytest.mark.parametrize("code", [134, 999, -2])
def test_a_code_of_the_future_is_an_unknown_server_error_that_keeps_the_number(code: int) -> None:
    error = error_for_code(code)
    assert type(error) is UnknownServerError
    assert str(code) in str(error)


@pytest.mark.parametrize("lookup", [error_for_code, class_for_code])
def test_code_zero_is_no_error(lookup) -> None:
    with pytest.raises(ValueError, match="means success"):
        lookup(0)


def test_each_failure_gets_an_error_of_its_own() -> None:
    first, second = error_for_code(47), error_for_code(47)
    first.recovery = "abort"
    assert second.recovery == "restart"
    assert InvalidProducerEpochError.recovery == "restart"


def test_the_brokers_own_words_are_kept() -> None:
    assert (
        str(error_for_code(44, "topic names start with a team")) == "topic names start with a team"
    )


@pytest.mark.parametrize(
    ("kind", "recovery"),
    [
        (RetriableError, "resume"),
        (KafkaTimeoutError, "resume"),
        (TransactionAbortableError, "abort"),
        (ProducerFencedError, "restart"),
        (TopicAuthorizationError, "fix"),
        (UnknownConfigError, "fix"),
        (CommitOutcomeUnknownError, "unknown"),
        (UnknownServerError, "restart"),
    ],
)
def test_the_kind_of_an_error_gives_the_recovery(kind: type[KafkaError], recovery: str) -> None:
    assert kind().recovery == recovery


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_crosses_processes_with_its_attributes(kind: type[KafkaError]) -> None:
    error = kind("why", recovery="abort")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.recovery, copy.args) == ("why", "abort", ("why",))


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_at_home_in_the_public_module_and_says_something(
    kind: type[KafkaError],
) -> None:
    assert kind.__module__ == "txnproducer.errors"
    assert getattr(errors, kind.__name__) is kind
    assert len(str(kind()).split()) >= 4


def test_fields_and_a_cause_of_ours_cross_processes() -> None:
    error = TopicAuthorizationError(topics=["b", "a"])
    error.__cause__ = GroupAuthorizationError(group_id="g")
    copy = pickle.loads(pickle.dumps(error))
    assert copy.topics == {"a", "b"}
    assert "['a', 'b']" in str(copy)
    assert isinstance(copy.__cause__, GroupAuthorizationError)
    assert copy.__cause__.group_id == "g"


def test_a_cause_that_cannot_be_pickled_does_not_hold_an_error_back() -> None:
    error = KafkaError("lost")
    error.__cause__ = OSError(lambda: None)
    assert str(pickle.loads(pickle.dumps(error))) == "lost"


def test_python_programs_can_catch_time_outs_and_state_errors_by_pythons_names() -> None:
    with pytest.raises(TimeoutError, match="no answer"):
        raise BufferExhaustedError("no answer")
    with pytest.raises(RuntimeError, match="in state READY"):
        raise IllegalStateError("commit in state READY")


def test_a_class_without_a_code_carries_its_parents() -> None:
    assert BufferExhaustedError.code == ErrorCode.REQUEST_TIMED_OUT
    assert CommitOutcomeUnknownError.code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_code_cannot_be_taken_by_a_second_class() -> None:
    with pytest.raises(TypeError, match="already belongs to ProducerFencedError"):
        type("AnotherFencedError", (KafkaError,), {}, code=90)


def test_an_application_can_derive_its_own_errors_and_keeps_its_module() -> None:
    class OurError(TransactionAbortableError):
        pass

    assert OurError.__module__ == __name__
    assert OurError.recovery == "abort"
    assert class_for_code(120) is TransactionAbortableError
