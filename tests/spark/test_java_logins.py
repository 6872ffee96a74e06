"""Java's options for a login by client credentials, and for MSK with IAM."""

from __future__ import annotations

import base64
import importlib.machinery
import importlib.util
import logging
import pickle
import sys
import time
from types import SimpleNamespace

import pytest

from tests.spark.token_endpoint import token_endpoint
from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError, SaslAuthenticationError
from txnproducer.spark import fetched_tokens
from txnproducer.spark.client_credentials import ClientCredentials
from txnproducer.spark.fetched_tokens import Token, within_limit
from txnproducer.spark.options import read_settings

OAUTH = "org.apache.kafka.common.security.oauthbearer"
JAAS = f'{OAUTH}.OAuthBearerLoginModule required clientId="me" clientSecret="s%cret" scope="a b"'
URL = "sasl.oauthbearer.token.endpoint.url"
ID = "sasl.oauthbearer.client.credentials.client.id"
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
HANDLER = "sasl.login.callback.handler.class"
AWS = "software.amazon.msk.auth.iam"
BROKER = "b-1.orders.abc.c2.kafka.eu-west-1.amazonaws.com:9098"


def read(servers="127.0.0.1:9092", **more):
    given = {"security.protocol": "SASL_SSL", **more.pop("kafka")}
    options = {f"kafka.{name}": value for name, value in given.items()}
    return read_settings(
        {"kafka.bootstrap.servers": servers, "sinkId": "s", "topic": "t", **options, **more}
    )


def oauth(**kafka):
    return read(kafka={"sasl.mechanism": "OAUTHBEARER", **kafka})


def provider_of(settings):
    """The provider in a task, where it has to be the same as on the driver."""
    there = pickle.loads(pickle.dumps(settings))
    assert there == settings, "connections to the ledger are kept by equal settings"
    config = ProducerConfig.from_properties({**there.producer, "transactional.id": "x"})
    provider = config.security["sasl_oauth_token_provider"]
    assert provider == there.security["sasl_oauth_token_provider"]
    assert config.security["sasl_mechanism"] == "OAUTHBEARER"
    return provider


@pytest.fixture
def endpoint():
    with token_endpoint() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_tokens():
    fetched_tokens._KEPT.clear()


# --- client credentials --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.jaas.config": f'{JAAS} extension_logicalCluster="lkc-1";'},
        {
            "sasl.jaas.config": f'{JAAS} extension_logicalCluster="lkc-1";',
            HANDLER: f"{OAUTH}.secured.OAuthBearerLoginCallbackHandler",
            ID: "me",
        },
        {
            "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required "
            'extension_logicalCluster="lkc-1" ;',
            HANDLER: f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}.ClientCredentialsJwtRetriever",
            ID: "me",
            SECRET: "s%cret",
            "sasl.oauthbearer.scope": "a b",
        },
    ],
    ids=["jaas", "both", "kafka-4.1"],
)
def test_javas_options_for_client_credentials_are_a_token_provider(endpoint, options):
    provider = provider_of(oauth(**{URL: endpoint.url}, **options))
    assert provider.token() == "token-1"
    assert provider.extensions() == {"logicalCluster": "lkc-1"}
    ((headers, form),) = endpoint.asked
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'me:s%cret').decode()}"
    assert form == {"grant_type": "client_credentials", "scope": "a b"}


def test_id_and_secret_are_encoded_for_the_header_if_that_is_asked_for(endpoint):
    given = {URL: endpoint.url, ID: "m:e", SECRET: "s%"}
    provider_of(oauth(**given, **{"sasl.oauthbearer.header.urlencode": "true"})).token()
    ((headers, form),) = endpoint.asked
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'm%3Ae:s%25').decode()}"
    assert form == {"grant_type": "client_credentials"}


def test_a_token_is_kept_until_most_of_its_life_is_over(endpoint, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(fetched_tokens, "time", SimpleNamespace(monotonic=lambda: clock.now))
    given = {URL: endpoint.url, ID: "me", SECRET: "secret"}
    first, second = (provider_of(oauth(**given)) for _ in range(2))
    assert [first.token(), second.token()] == ["token-1"] * 2
    clock.now += 0.79 * 3600
    assert first.token() == "token-1"
    clock.now += 0.02 * 3600
    assert second.token() == "token-2"
    endpoint.answer = lambda: endpoint.gives("of unknown life", expires_in=None)
    clock.now += 3600
    assert [first.token(), first.token()] == ["of unknown life"] * 2
    assert len(endpoint.asked) == 4


def test_the_secret_and_the_token_are_in_no_text(endpoint, caplog):
    caplog.set_level(logging.DEBUG)
    settings = oauth(**{URL: endpoint.url, "sasl.jaas.config": f"{JAAS};"})
    provider = provider_of(settings)
    provider.token()
    endpoint.answer = lambda: (401, {}, b'{"error": "invalid_client", "why": "me:s%cret"}')
    with pytest.raises(SaslAuthenticationError) as refused:
        provider.fetch()
    endpoint.answer = lambda: (200, {}, b'{"token": "token-7"}')
    with pytest.raises(SaslAuthenticationError, match="no access_token") as empty:
        provider.fetch()
    texts = [repr(settings), repr(provider), repr(Token("token-1", 1.0)), caplog.text]
    for error in (refused.value, empty.value):
        assert error.__cause__ is None
        texts.append(f"{error!r} {error}")
    for text in texts:
        assert "s%cret" not in text
        assert "token-" not in text
    assert "'me': HTTP 401 invalid_client. Check the client's id, secret" in texts[-2]


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ((400, {}, b'{"error": "invalid_scope"}'), SaslAuthenticationError, "HTTP 400 invalid_sc"),
        ((403, {}, b"<html>"), SaslAuthenticationError, r"HTTP 403\."),
        ((429, {}, b'{"error": 7}'), OSError, "HTTP 429$"),
        ((503, {}, b'["error"]'), OSError, "HTTP 503$"),
        ((200, {}, b"<html>"), SaslAuthenticationError, "no access_token"),
        ((200, {}, b'{"access_token": ""}'), SaslAuthenticationError, "no access_token"),
    ],
)
def test_an_answer_without_a_token_says_whether_it_helps_to_ask_again(
    endpoint, answer, kind, told
):
    endpoint.answer = lambda: answer
    # An OSError is a moment without an identity provider: the login is tried again.
    with pytest.raises(kind, match=told):
        ClientCredentials(endpoint.url, "me", "secret").token()


def test_a_redirect_is_not_followed_since_the_secret_would_go_along(endpoint):
    with token_endpoint() as other:
        for status in (301, 302, 303, 307, 308):
            endpoint.answer = lambda status=status: (status, {"Location": other.url}, b"")
            with pytest.raises(OSError, match=f"HTTP {status}"):
                ClientCredentials(endpoint.url, "me", "secret").token()
        assert other.asked == []


def test_an_identity_provider_that_hangs_is_given_up(endpoint):
    def hang():
        time.sleep(0.5)
        return endpoint.gives("late")

    endpoint.answer = hang
    provider = ClientCredentials(endpoint.url, "me", "secret")
    with pytest.raises(TimeoutError, match=r"no token came within 0\.05 s"):
        within_limit(provider.fetch, 0.05)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({URL: "http://idp.example/token", ID: "me", SECRET: "x"}, "must be an https:// address"),
        ({URL: "file:///token", ID: "me", SECRET: "x"}, "must be an https:// address"),
        ({URL: "https://i/t", ID: "me"}, "client.secret is missing"),
        ({URL: "https://i/t", SECRET: "x"}, "client.id is missing"),
        ({"sasl.jaas.config": f"{JAAS};"}, f"{URL} is missing"),
        ({ID: "me", SECRET: "x"}, f"{URL} is missing"),
        ({URL: "https://i/t", "sasl.jaas.config": f"{JAAS};", ID: "you"}, "is given twice"),
        ({URL: "https://i/t", "sasl.jaas.config": f'{JAAS} user="x";'}, "has user: of"),
        ({URL: "https://i/t", "sasl.jaas.config": f"{JAAS} 's%cret;"}, "cannot be read: its opt"),
        ({URL: "https://i/t", HANDLER: "com.example.Handler"}, "no counterpart here"),
        (
            {URL: "https://i/t", "sasl.oauthbearer.jwt.retriever.class": "a.FileJwtRetriever"},
            "no counterpart here",
        ),
        (
            {URL: "https://i/t", ID: "me", "sasl_oauth_token_provider": f"{__name__}:PROVIDER"},
            "leave out the one or the other",
        ),
        (
            {URL: "https://i/t", ID: "m", SECRET: "x", "sasl.oauthbearer.header.urlencode": "1"},
            "must be true or false",
        ),
        ({URL: "https://i/t", ID: "me", SECRET: "x", "sasl.login.class": "a.B"}, "login.class"),
    ],
)
def test_options_for_client_credentials_that_cannot_be_used_are_refused(options, told):
    with pytest.raises(InvalidConfigurationError, match=told) as caught:
        oauth(**options)
    assert "kafka." in str(caught.value)
    assert "s%cret" not in str(caught.value)


PROVIDER = ClientCredentials("https://i/t", "me", "secret")


# --- MSK with IAM --------------------------------------------------------------------------------

IAM = f"{AWS}.IAMLoginModule required"


def installed(monkeypatch, *names):
    """Have some of the two packages for IAM be installed, and no other."""
    real = importlib.util.find_spec

    def find(name, package=None):
        if name in ("botocore", "aws_msk_iam_sasl_signer"):
            return importlib.machinery.ModuleSpec(name, None) if name in names else None
        return real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def of_java(**more):
    return {
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{IAM};",
        "sasl.client.callback.handler.class": f"{AWS}.IAMClientCallbackHandler",
        **more,
    }


@pytest.fixture
def signer(monkeypatch):
    """The calls of AWS's package, which is not there."""
    called = []

    def make(kind):
        def sign(*given):
            called.append((kind, *given))
            return "signed", (time.time() + 900) * 1000

        return sign

    kinds = ("", "_from_profile", "_from_role_arn")
    calls = {f"generate_auth_token{kind}": make(kind) for kind in kinds}
    package = SimpleNamespace(MSKAuthTokenProvider=SimpleNamespace(**calls))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", package)
    installed(monkeypatch, "botocore", "aws_msk_iam_sasl_signer")
    return called


@pytest.mark.parametrize(
    ("options", "call"),
    [
        (of_java(), ("", "eu-west-1")),
        (
            of_java(**{"sasl.jaas.config": f'{IAM} awsProfileName="p" awsDebugCreds=true;'}),
            ("_from_profile", "eu-west-1", "p"),
        ),
        (
            of_java(**{"sasl.jaas.config": f'{IAM} awsRoleArn="arn" awsRoleSessionName="n";'}),
            ("_from_role_arn", "eu-west-1", "arn", "n"),
        ),
        (  # MSK's other way for Java
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
                HANDLER: f"{AWS}.IAMOAuthBearerLoginCallbackHandler",
                "sasl.client.callback.handler.class": f"{AWS}.IAMOAuthBearerLoginCallbackHandler",
            },
            ("", "eu-west-1"),
        ),
    ],
)
def test_javas_options_for_iam_are_a_provider_of_signed_tokens(signer, options, call):
    provider = provider_of(read(BROKER, kafka=options))
    assert [provider.token(), provider.token()] == ["signed"] * 2
    assert signer == [call], "kept"


def test_the_region_of_a_cluster_with_another_name_is_that_of_the_environment(signer, monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(InvalidConfigurationError, match="set AWS_REGION on the driver"):
        read(kafka=of_java())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert provider_of(read(kafka=of_java())).region == "us-east-2"


def test_without_awss_package_kafka_pythons_own_mechanism_logs_in(monkeypatch):
    installed(monkeypatch, "botocore")
    settings = read(BROKER, kafka=of_java())
    assert settings.security["sasl_mechanism"] == "AWS_MSK_IAM"
    assert "sasl.jaas.config" not in settings.producer
    with pytest.raises(InvalidConfigurationError, match="names a profile or a role: it needs"):
        read(BROKER, kafka=of_java(**{"sasl.jaas.config": f'{IAM} awsProfileName="p";'}))


def test_without_any_package_for_iam_the_one_that_is_needed_is_named(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(InvalidConfigurationError, match="aws-msk-iam-sasl-signer-python on the"):
        read(BROKER, kafka=of_java())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"sasl.jaas.config": f'{IAM} awsStsRegion="x";'}, "has awsStsRegion: of IAMLoginModule"),
        ({"sasl.client.callback.handler.class": "com.example.Handler"}, "no counterpart here"),
    ],
)
def test_options_for_iam_that_cannot_be_used_are_refused(signer, more, told):
    with pytest.raises(InvalidConfigurationError, match=told):
        read(BROKER, kafka=of_java(**more))
    assert signer == []
