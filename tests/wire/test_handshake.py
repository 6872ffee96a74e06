"""ApiVersions and SASL, fed with scripted answers: no socket is needed to hold the talk."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.wire import answers
from txnproducer._protocol.messages import ApiKey
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import ResponseDecodeError
from txnproducer._wire.handshake import (
    SOFTWARE_VERSION,
    SaslLogin,
    exchange_api_versions,
    exchange_login,
    exchange_sasl_question,
)
from txnproducer._wire.sasl_mechanisms import make_mechanism
from txnproducer.errors import (
    DisconnectError,
    IllegalSaslStateError,
    InvalidConfigurationError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
)

USER = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}


class Talk:
    """Holds an exchange: `asked` is the last request, `answer` goes on."""

    def __init__(self, exchange: Any) -> None:
        self.exchange = exchange
        self.asked: bytes = next(exchange)
        self.result: Any = None
        self.is_over = False

    @property
    def version(self) -> int:
        return int.from_bytes(self.asked[6:8], "big")

    @property
    def correlation_id(self) -> int:
        return int.from_bytes(self.asked[8:12], "big")

    def answer(self, payload: bytes) -> Talk:
        try:
            self.asked = self.exchange.send(memoryview(payload))
        except StopIteration as end:
            self.result, self.is_over = end.value, True
        return self


def ask_versions() -> Talk:
    return Talk(exchange_api_versions("me", itertools.count()))


def log_in(mechanism: str = "PLAIN", version: int = 2, **settings: Any) -> Talk:
    login = SaslLogin("me", "broker", mechanism, USER | settings, version)
    return Talk(exchange_login(login, itertools.count()))


# --- ApiVersions --------------------------------------------------------------------------------


def test_the_newest_version_is_asked_first_and_returns_the_features() -> None:
    talk = ask_versions()
    assert talk.version == 4
    talk.answer(answers.api_versions(0, features={"transaction.version": 2}, epoch=18))
    assert talk.result.features.transaction_version == 2
    assert talk.result.features.epoch == 18
    assert talk.result.api_versions.max_version(ApiKey.PRODUCE) == 13
    assert talk.result.sasl_authenticate_version == 2


def test_apis_that_this_client_does_not_use_are_not_kept() -> None:
    talk = ask_versions().answer(answers.api_versions(0, offer={0: 9, 18: 3, 999: 1}))
    assert set(talk.result.api_versions.ranges) == {ApiKey.PRODUCE, ApiKey.API_VERSIONS}


def test_an_older_broker_names_its_newest_version_and_is_asked_in_it() -> None:
    talk = ask_versions()
    talk.answer(answers.api_versions(0, version=0, offer={18: 3}, error_code=35))
    assert talk.version == 3
    talk.answer(answers.api_versions(1, version=3, features={"transaction.version": 1}, epoch=2))
    assert talk.result.features.transaction_version == 1


def test_a_broker_that_names_no_version_is_asked_in_version_0() -> None:
    talk = ask_versions().answer(answers.api_versions(0, version=0, offer={}, error_code=35))
    assert talk.version == 0
    talk.answer(answers.api_versions(1, version=0))
    assert talk.result.features.epoch == -1
    assert talk.result.features.transaction_version == 0


def test_a_broker_that_refuses_every_version_ends_the_talk() -> None:
    talk = ask_versions()
    asked = []
    for number in range(4):
        asked.append(talk.version)
        talk.answer(answers.api_versions(number, version=0, offer={18: 4}, error_code=35))
    assert asked == [4, 3, 2, 1]
    with pytest.raises(InvalidConfigurationError, match="ApiVersions"):
        talk.answer(answers.api_versions(4, version=0, offer={18: 4}, error_code=35))


def test_another_error_is_worth_a_retry() -> None:
    with pytest.raises(DisconnectError, match="ApiVersions"):
        ask_versions().answer(answers.api_versions(0, version=0, error_code=-1))


def test_an_answer_to_another_request_is_not_taken() -> None:
    with pytest.raises(ResponseDecodeError, match="another request"):
        ask_versions().answer(answers.api_versions(7))


@pytest.mark.parametrize("noise", [b"", b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 40])
def test_noise_is_not_taken_for_an_answer(noise: bytes) -> None:
    with pytest.raises(DisconnectError):
        ask_versions().answer(noise)


def test_the_software_version_has_only_characters_that_brokers_accept() -> None:
    assert SOFTWARE_VERSION.replace("-", "").replace(".", "").isalnum()
    read = kp.ApiVersionsRequest.decode(ask_versions().asked, version=4, header=True, framed=True)
    assert read.client_software_name == "txnproducer"
    assert read.client_software_version == SOFTWARE_VERSION


# --- SASL ---------------------------------------------------------------------------------------


def test_plain_logs_in_and_returns_the_end_of_the_session() -> None:
    talk = log_in().answer(answers.sasl_handshake(0))
    assert b"alice\0alice\0secret" in talk.asked
    assert talk.version == 2
    talk.answer(answers.sasl_authenticate(1, lifetime_ms=6000))
    assert (talk.is_over, talk.result) == (True, 6000)


def test_the_version_of_authenticate_is_that_of_the_broker() -> None:
    talk = log_in(version=0).answer(answers.sasl_handshake(0))
    assert talk.version == 0
    talk.answer(answers.sasl_authenticate(1, version=0))
    assert talk.result == 0


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_proves_both_sides(name: str) -> None:
    talk = log_in(name).answer(answers.sasl_handshake(0, mechanisms=(name,)))
    first, final = scram_server(talk.asked, name)
    talk.answer(answers.sasl_authenticate(1, auth_bytes=first))
    talk.answer(answers.sasl_authenticate(2, auth_bytes=final, lifetime_ms=7))
    assert talk.result == 7


def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    talk = log_in("SCRAM-SHA-256").answer(answers.sasl_handshake(0))
    first, _ = scram_server(talk.asked, "SCRAM-SHA-256")
    talk.answer(answers.sasl_authenticate(1, auth_bytes=first))
    forged = b"v=" + base64.b64encode(b"forged" * 5)
    with pytest.raises(SaslAuthenticationError, match="wrong signature"):
        talk.answer(answers.sasl_authenticate(2, auth_bytes=forged))


def test_scram_escapes_the_separators_of_its_fields() -> None:
    talk = log_in("SCRAM-SHA-256", sasl_plain_username="a=b,c")
    talk.answer(answers.sasl_handshake(0))
    assert b"n=a=3Db=2Cc,r=" in talk.asked


def scram_server(asked: bytes, name: str) -> tuple[bytes, bytes]:
    """Play a broker that knows the password: its two messages (RFC 5802)."""
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[name]
    bare = asked[asked.index(b"n=alice") :].rstrip(b"\0")
    nonce = bare.split(b"r=")[1] + b"server"
    first = b"r=" + nonce + b",s=" + base64.b64encode(b"salt") + b",i=4096"
    salted = hashlib.pbkdf2_hmac(digest, b"secret", b"salt", 4096)
    server_key = hmac.digest(salted, b"Server Key", digest)
    talk = bare + b"," + first + b",c=biws,r=" + nonce
    return first, b"v=" + base64.b64encode(hmac.digest(server_key, talk, digest))


def test_a_wrong_password_is_reported_at_once_in_the_brokers_words() -> None:
    talk = log_in().answer(answers.sasl_handshake(0))
    with pytest.raises(SaslAuthenticationError, match="no such user") as caught:
        talk.answer(answers.sasl_authenticate(1, error_code=58, error_message="no such user"))
    assert "secret" not in str(caught.value)


def test_a_mechanism_that_is_not_offered_names_those_that_are() -> None:
    with pytest.raises(UnsupportedSaslMechanismError, match="PLAIN, SCRAM-SHA-512"):
        log_in("SCRAM-SHA-256").answer(
            answers.sasl_handshake(0, error_code=33, mechanisms=("PLAIN", "SCRAM-SHA-512"))
        )


def test_a_listener_without_sasl_is_distinguished_from_a_wrong_password() -> None:
    with pytest.raises(IllegalSaslStateError, match="security_protocol"):
        log_in().answer(answers.sasl_handshake(0, error_code=34, mechanisms=()))


def test_a_login_that_the_mechanism_does_not_count_as_a_success_is_none() -> None:
    talk = log_in().answer(answers.sasl_handshake(0))
    with pytest.raises(SaslAuthenticationError, match=r"without success: .* Check that sasl"):
        talk.answer(answers.sasl_authenticate(1, auth_bytes=b"PLAIN ends with nothing"))


def test_a_passing_error_of_the_login_is_worth_a_retry() -> None:
    talk = log_in().answer(answers.sasl_handshake(0))
    with pytest.raises(DisconnectError):
        talk.answer(answers.sasl_authenticate(1, error_code=-1))


def test_oauthbearer_sends_the_token() -> None:
    provider = answers.token_provider(lambda: "a.b.c")
    talk = log_in("OAUTHBEARER", sasl_oauth_token_provider=provider)
    talk.answer(answers.sasl_handshake(0, mechanisms=("OAUTHBEARER",)))
    assert b"auth=Bearer a.b.c" in talk.asked
    talk.answer(answers.sasl_authenticate(1, lifetime_ms=9))
    assert talk.result == 9


def test_oauthbearer_lets_the_broker_say_why_it_refuses() -> None:
    provider = answers.token_provider(lambda: "a.b.c")
    talk = log_in("OAUTHBEARER", sasl_oauth_token_provider=provider)
    talk.answer(answers.sasl_handshake(0, mechanisms=("OAUTHBEARER",)))
    talk.answer(answers.sasl_authenticate(1, auth_bytes=b'{"status":"invalid_token"}'))
    assert b"\x01" in talk.asked[12:]
    with pytest.raises(SaslAuthenticationError, match="invalid_token"):
        talk.answer(answers.sasl_authenticate(2, error_code=58, error_message="invalid_token"))


def ask_for_a_token(token: Callable[[], object]) -> Talk:
    talk = log_in("OAUTHBEARER", sasl_oauth_token_provider=answers.token_provider(token))
    return talk.answer(answers.sasl_handshake(0, mechanisms=("OAUTHBEARER",)))


@pytest.mark.parametrize(
    "raised",
    [OSError("token server is down"), AttributeError("no token server is down"), SystemExit],
)
def test_a_token_provider_that_fails_is_asked_again_and_its_reason_is_reported(
    raised: BaseException | type[BaseException],
) -> None:
    def fail() -> str:
        raise raised

    says = "SystemExit" if raised is SystemExit else "token server is down"
    with pytest.raises(DisconnectError, match=f"OAUTHBEARER .*{says}") as failed:
        ask_for_a_token(fail)
    assert failed.value.__cause__ is not None


def test_a_token_that_cannot_be_encoded_is_not_shown() -> None:
    with pytest.raises(DisconnectError, match=r"OAUTHBEARER .*UnicodeEncodeError") as failed:
        ask_for_a_token(lambda: "s3cr\udcfct")
    assert "s3cr" not in str(failed.value)


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_token_provider_that_has_no_token_is_asked_again(nothing: str | None) -> None:
    with pytest.raises(DisconnectError, match=f"token.. returned {nothing!r}"):
        ask_for_a_token(lambda: nothing)


def test_a_token_of_another_type_is_a_refusal_that_does_not_show_it() -> None:
    with pytest.raises(
        InvalidConfigurationError, match=r"must return a str, .* type bytes"
    ) as told:
        ask_for_a_token(lambda: b"secret")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (SaslAuthenticationError("the account is locked"), SaslAuthenticationError),
        (DisconnectError("not yet"), DisconnectError),
        (kp.KafkaConfigurationError("no region"), SaslAuthenticationError),
    ],
)
def test_a_token_provider_says_by_the_librarys_errors_whether_to_ask_again(
    raised: Exception, told: type[Exception]
) -> None:
    def fail() -> str:
        raise raised

    with pytest.raises(told, match=r"locked|not yet|no region"):
        ask_for_a_token(fail)


def test_extensions_of_a_token_are_sent_and_none_are_none() -> None:
    provider = answers.token_provider(lambda: "a.b.c")
    provider.extensions = lambda: {"logicalCluster": "lkc-1"}
    talk = log_in("OAUTHBEARER", sasl_oauth_token_provider=provider)
    talk.answer(answers.sasl_handshake(0, mechanisms=("OAUTHBEARER",)))
    assert b"a.b.c\x01logicalCluster=lkc-1" in talk.asked
    provider.extensions = lambda: None
    talk = log_in("OAUTHBEARER", sasl_oauth_token_provider=provider)
    talk.answer(answers.sasl_handshake(0, mechanisms=("OAUTHBEARER",)))
    assert b"a.b.c\x01\x01" in talk.asked


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("NTLM", {}, "must be one of .*PLAIN"),
        ("PLAIN", {"sasl_plain_username": None}, "sasl_plain_username"),
        ("SCRAM-SHA-256", {"sasl_plain_password": None}, "sasl_plain_password is missing"),
        ("OAUTHBEARER", {}, "sasl_oauth_token_provider"),
    ],
)
def test_a_setting_that_a_mechanism_needs_is_named(
    name: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=says):
        make_mechanism(name, USER | settings, "broker")


# --- does the listener want SASL? ---------------------------------------------------------------


def test_a_listener_that_wants_sasl_names_its_mechanisms() -> None:
    talk = Talk(exchange_sasl_question("me", itertools.count()))
    with pytest.raises(IllegalSaslStateError, match="it offers: PLAIN, GSSAPI"):
        talk.answer(answers.sasl_handshake(0, error_code=33, mechanisms=("PLAIN", "GSSAPI")))


def test_a_listener_without_sasl_goes_on() -> None:
    talk = Talk(exchange_sasl_question("me", itertools.count()))
    assert talk.answer(answers.sasl_handshake(0, error_code=34, mechanisms=())).is_over


def test_a_login_that_the_broker_never_ends_is_refused() -> None:
    settings = {"sasl_oauth_token_provider": answers.token_provider(lambda: "token")}
    login = SaslLogin("me", "h", "OAUTHBEARER", settings, 2)
    talk = Talk(exchange_login(login, itertools.count()))
    talk.answer(answers.sasl_handshake(talk.correlation_id, 0, ("OAUTHBEARER",)))
    for _ in range(9):
        talk.answer(answers.sasl_authenticate(talk.correlation_id, auth_bytes=b"again"))
    last = answers.sasl_authenticate(talk.correlation_id, auth_bytes=b"again")
    with pytest.raises(SaslAuthenticationError, match="OAUTHBEARER login within 10 rounds"):
        talk.answer(last)
