"""The server's side of a SASL login, against kafka-python's client side."""

from __future__ import annotations

import pytest

from tests.server.bench import Bench, init_request
from txnproducer._server.login import TokenVerdict, Users
from txnproducer._wire import kafka_python as kp
from txnproducer.errors import ErrorCode

USERS = Users({"alice": "alice-secret", "a,b=c": "tricky"})
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def shake_hands(bench: Bench, mechanism: str):
    return bench.ask_schema(
        kp.SaslHandshakeRequest(version=1, mechanism=mechanism), kp.SaslHandshakeResponse
    )


def authenticate(bench: Bench, token: bytes):
    return bench.ask_schema(
        kp.SaslAuthenticateRequest(version=2, auth_bytes=token), kp.SaslAuthenticateResponse
    )


def log_in(bench: Bench, mechanism: str, user: str, password: str):
    """Log in as kafka-python does, and return the last answer and the mechanism."""
    assert shake_hands(bench, mechanism).error_code == ErrorCode.NONE
    client = kp.get_sasl_mechanism(mechanism)(
        sasl_plain_username=user, sasl_plain_password=password, host="h", sasl_mechanism=mechanism
    )
    while not client.is_done():
        answer = authenticate(bench, client.auth_bytes())
        if answer.error_code:
            return answer, client
        client.receive(answer.auth_bytes)
    return answer, client


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_with_the_right_password_is_let_in(mechanism):
    bench = Bench(USERS)
    answer, client = log_in(bench, mechanism, "alice", "alice-secret")
    assert answer.error_code == ErrorCode.NONE
    assert client.is_authenticated()  # SCRAM: the server has proven that it knows the password
    assert bench.ask(init_request(), 5).error_code == ErrorCode.NONE


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "alice-secret")])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(mechanism, user, password):
    bench = Bench(USERS)
    answer, _ = log_in(bench, mechanism, user, password)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert bench.connection.is_closed


def test_a_name_with_the_separators_of_scram_is_understood():
    bench = Bench(USERS)
    answer, client = log_in(bench, "SCRAM-SHA-256", "a=2Cb=3Dc", "tricky")
    assert answer.error_code == ErrorCode.NONE
    assert client.is_authenticated()


@pytest.mark.parametrize("token", [b"", b"\xff\xfe", b"n,,n=alice", b"n,,x", b"a,b"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nonsense_is_refused_and_not_raised(mechanism, token):
    bench = Bench(USERS)
    shake_hands(bench, mechanism)
    assert authenticate(bench, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_no_request_is_answered_before_the_login():
    bench = Bench(USERS)
    assert bench.api_versions()[36] == (0, 2)
    assert bench.send(bench.bytes_of(init_request(), 5)) == []
    assert bench.connection.is_closed


def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are():
    bench = Bench(USERS)
    answer = shake_hands(bench, "GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert tuple(answer.mechanisms) == MECHANISMS


def test_a_listener_without_logins_expects_none():
    bench = Bench()
    assert shake_hands(bench, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert authenticate(bench, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_after_the_end_of_its_session_a_connection_needs_another_login():
    """KIP-368: the broker closes at the first request after the end."""
    bench = Bench(Users(USERS.passwords, session_lifetime_ms=1_000))
    answer, _ = log_in(bench, "PLAIN", "alice", "alice-secret")
    assert answer.session_lifetime_ms == 1_000
    bench.now_ms += 999
    bench.ask(init_request(), 5)
    log_in(bench, "PLAIN", "alice", "alice-secret")
    bench.now_ms += 999
    bench.ask(init_request(), 5)
    bench.now_ms += 1
    assert bench.send(bench.bytes_of(init_request(), 5)) == []
    assert bench.connection.is_closed


# --- tokens -------------------------------------------------------------------------------------


def users_of_tokens(session_ms: int = 0, **verdicts: TokenVerdict) -> Users:
    return Users({}, ("OAUTHBEARER",), session_ms, verdicts.__getitem__)


def first_message(token: str, extensions: str = "") -> bytes:
    return f"n,,\x01auth=Bearer {token}{extensions}\x01\x01".encode()


@pytest.mark.parametrize("extensions", ["", "\x01traceId=7"])
def test_a_valid_token_is_let_in_by_one_message(extensions):
    bench = Bench(users_of_tokens(good=TokenVerdict(is_valid=True)))
    shake_hands(bench, "OAUTHBEARER")
    answer = authenticate(bench, first_message("good", extensions))
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.NONE, b"")
    assert bench.ask(init_request(), 5).error_code == ErrorCode.NONE


def test_an_invalid_token_is_refused_once_the_client_has_acknowledged_the_reason():
    """RFC 7628: the broker says why in a message, and the login ends with the client's answer."""
    bench = Bench(users_of_tokens(bad=TokenVerdict(is_valid=False)))
    shake_hands(bench, "OAUTHBEARER")
    answer = authenticate(bench, first_message("bad"))
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    assert not bench.connection.is_closed
    answer = authenticate(bench, b"\x01")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == '{"status":"invalid_token"}'
    assert bench.connection.is_closed


def test_without_a_judge_no_token_is_valid():
    bench = Bench(Users({}, ("OAUTHBEARER",)))
    shake_hands(bench, "OAUTHBEARER")
    assert authenticate(bench, first_message("any")).auth_bytes == b'{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer x"],
)
def test_a_first_message_without_a_token_is_refused(message):
    bench = Bench(users_of_tokens())
    shake_hands(bench, "OAUTHBEARER")
    assert authenticate(bench, message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("session_ms", "token_ms", "lifetime_ms"),
    [(0, 0, 0), (1_000, 0, 1_000), (0, 500, 500), (1_000, 500, 500), (400, 500, 400)],
)
def test_a_session_ends_with_its_token_or_before(session_ms, token_ms, lifetime_ms):
    """KIP-368."""
    verdict = TokenVerdict(is_valid=True, lifetime_ms=token_ms)
    bench = Bench(users_of_tokens(session_ms, good=verdict))
    shake_hands(bench, "OAUTHBEARER")
    assert authenticate(bench, first_message("good")).session_lifetime_ms == lifetime_ms
    bench.now_ms += lifetime_ms
    data = bench.bytes_of(init_request(), 5)
    assert bool(bench.send(data)) is (lifetime_ms == 0)


def test_a_hostile_broker_asks_on_and_on():
    bench = Bench(users_of_tokens(good=TokenVerdict(is_valid=True, ends_login=False)))
    shake_hands(bench, "OAUTHBEARER")
    answers = [authenticate(bench, first_message("good"))]
    answers += [authenticate(bench, b"\x01") for _ in range(100)]
    assert {(each.error_code, each.auth_bytes) for each in answers} == {
        (0, b'{"status":"invalid_token"}')
    }
    assert bench.ask(init_request(), 5).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert bench.connection.is_closed


def test_no_repr_shows_a_password():
    assert "secret" not in repr(USERS)
