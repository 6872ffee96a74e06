"""The order of a connection's first requests. Real brokers have given these answers."""

from __future__ import annotations

import pytest

from tests.server.bench import Bench, init_request
from tests.server.test_login import USERS, authenticate, log_in, shake_hands
from txnproducer._protocol import messages as m
from txnproducer._server.login import Users
from txnproducer._wire import kafka_python as kp
from txnproducer.errors import ErrorCode

MISPLACED = "SaslAuthenticate request received after successful authentication"
OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
SESSIONS = Users({"alice": "alice-secret", "bob": "bob-secret"}, session_lifetime_ms=60_000)


def logged_in(users=SESSIONS):
    bench = Bench(users)
    log_in(bench, "PLAIN", "alice", "alice-secret")
    return bench


def test_versions_are_asked_for_once_before_a_login_and_at_will_after_it():
    bench = Bench(USERS)
    bench.api_versions()
    log_in(bench, "PLAIN", "alice", "alice-secret")
    for _ in range(2):
        bench.api_versions()
    bench = Bench(USERS)
    bench.api_versions()
    with pytest.raises(ValueError, match="not enough values"):
        bench.api_versions()
    assert bench.connection.is_closed


def test_a_client_that_asked_in_a_newer_version_asks_again_and_logs_in():
    bench = Bench(USERS)
    [refusal] = bench.send(b"\0\0\0\x0c" + b"\0\x12\0\x09" + b"\0\0\0\x07" + b"\0\x01x\0")
    answer = kp.ApiVersionsResponse.decode(refusal.data[4:], version=0, header=True)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    bench.api_versions(4)
    answer, _ = log_in(bench, "PLAIN", "alice", "alice-secret")
    assert answer.error_code == ErrorCode.NONE


def test_a_newer_question_in_the_midst_of_a_login_is_refused_in_version_0():
    bench = Bench(USERS)
    shake_hands(bench, "PLAIN")
    [refusal] = bench.send(b"\0\0\0\x0c" + b"\0\x12\0\x09" + b"\0\0\0\x07" + b"\0\x01x\0")
    answer = kp.ApiVersionsResponse.decode(refusal.data[4:], version=0, header=True)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert bench.connection.is_closed


def test_a_client_in_the_midst_of_a_login_learns_nothing_about_the_cluster():
    for topics, codes in (((), []), (("t",), [ErrorCode.ILLEGAL_SASL_STATE])):
        bench = Bench(USERS)
        shake_hands(bench, "PLAIN")
        answer = bench.ask(m.MetadataRequest(topics, allow_auto_topic_creation=False), 9)
        assert answer.brokers == ()
        assert [topic.error_code for topic in answer.topics] == codes
        assert bench.connection.is_closed


def test_a_token_needs_a_handshake():
    bench = Bench(USERS)
    with pytest.raises(ValueError, match="not enough values"):
        authenticate(bench, b"x")
    assert bench.connection.is_closed


@pytest.mark.parametrize("make", [Bench, logged_in], ids=["no login", "logged in"])
def test_a_token_where_none_is_due_is_refused_and_the_connection_goes_on(make):
    bench = make()
    answer = authenticate(bench, b"x")
    assert (answer.error_code, answer.error_message) == (ErrorCode.ILLEGAL_SASL_STATE, MISPLACED)
    assert bench.ask(init_request(), 5).error_code == ErrorCode.NONE


@pytest.mark.parametrize("make", [lambda: Bench(SESSIONS), logged_in], ids=["first", "second"])
def test_another_request_in_the_midst_of_a_login_is_refused_and_ends_the_connection(make):
    bench = make()
    shake_hands(bench, "PLAIN")
    assert bench.ask(init_request(), 5).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert bench.connection.is_closed


def test_versions_and_a_handshake_in_the_midst_of_a_login_are_refused():
    bench = Bench(USERS)
    shake_hands(bench, "PLAIN")
    request = kp.ApiVersionsRequest(
        version=0, client_software_name="x", client_software_version="1"
    )
    answer = bench.ask_schema(request, kp.ApiVersionsResponse)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert bench.connection.is_closed
    bench = Bench(USERS)
    shake_hands(bench, "PLAIN")
    answer = shake_hands(bench, "PLAIN")
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert bench.connection.is_closed


def test_an_unknown_mechanism_ends_the_connection():
    bench = Bench(USERS)
    assert shake_hands(bench, "GSSAPI").error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert bench.connection.is_closed


def test_a_second_login_is_refused_if_logins_do_not_end():
    bench = logged_in(USERS)
    assert shake_hands(bench, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert bench.ask(init_request(), 5).error_code == ErrorCode.NONE


def test_a_second_login_changes_neither_the_user_nor_the_mechanism():
    answer, _ = log_in(logged_in(), "PLAIN", "bob", "bob-secret")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    bench = logged_in()
    with pytest.raises(ValueError, match="not enough values"):
        log_in(bench, "SCRAM-SHA-256", "alice", "alice-secret")
    assert bench.connection.is_closed
    bench = logged_in()
    shake_hands(bench, "SCRAM-SHA-256")
    assert bench.send(bench.bytes_of(init_request(), 5)) == []
    assert bench.connection.is_closed


def test_the_text_of_a_refusal_names_the_login_that_failed():
    bench = Bench(SESSIONS)
    log_in(bench, "SCRAM-SHA-512", "alice", "alice-secret")
    for each, word in ((Bench(SESSIONS), "authentication"), (bench, "re-authentication")):
        answer, _ = log_in(each, "SCRAM-SHA-512", "alice", "wrong")
        assert answer.error_message == (
            f"Authentication failed during {word} due to invalid credentials with SASL mechanism"
            " SCRAM-SHA-512"
        )


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0alice-secret",
            OTHER_ID,
        ),
        (b"alice\0alice\0alice-secret", None),
    ],
)
def test_a_token_of_plain_is_refused_with_its_reason(token, text):
    bench = Bench(USERS)
    shake_hands(bench, "PLAIN")
    assert (authenticate(bench, token).error_message or None) == text
