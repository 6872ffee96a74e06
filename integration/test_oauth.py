"""A function's tokens log in to a real broker, and again before a session ends with its token."""

from __future__ import annotations

import base64
import json
import time

import pytest

from integration.readers import read_with_confluent
from txnproducer import TransactionalProducer, admin
from txnproducer.errors import KafkaTimeoutError, SaslAuthenticationError
from txnproducer.testing import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
LIFE_S = 4
_LISTENER = "listener.name.sasl_plaintext"
_LOGIN = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="broker";'
)


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka(
        listeners=("SASL_PLAINTEXT", "PLAINTEXT"),
        sasl_mechanisms=("PLAIN",),
        settings={
            f"{_LISTENER}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            f"{_LISTENER}.oauthbearer.sasl.jaas.config": _LOGIN,
            # Without it a broker ends no session. The session ends with the token, if that is
            # earlier.
            f"{_LISTENER}.oauthbearer.connections.max.reauth.ms": "60000",
        },
    ) as cluster:
        admin.create_topic(cluster.addresses("PLAINTEXT"), "orders", 1)
        yield cluster


class Tokens:
    """Tokens without a signature, which a broker for tests takes (KIP-255)."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> tuple[str, float]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        now_s = time.time()
        parts = {"alg": "none"}, {"sub": "me", "iat": now_s, "exp": now_s + LIFE_S}
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
        return ".".join(text.rstrip("=") for text in texts) + ".", now_s + LIFE_S


def open_producer(kafka, tokens, transactional_id="t", **settings):
    return TransactionalProducer(
        kafka.addresses("SASL_PLAINTEXT"),
        transactional_id,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=tokens,
        **settings,
    )


def test_transactions_outlive_their_first_token(kafka):
    tokens = Tokens()
    end_s = time.monotonic() + 2.5 * LIFE_S
    written = 0
    with open_producer(kafka, tokens) as producer:
        producer.init_transactions()
        while time.monotonic() < end_s:
            with producer.transaction():
                producer.send("orders", b"%d" % written)
            written += 1
            time.sleep(0.05)
    # One for each 80 % of a life, however many connections there are.
    assert 3 <= tokens.calls <= 5
    read = read_with_confluent(kafka.addresses("PLAINTEXT"), "orders")
    assert len(read) == written


def test_a_failure_of_the_function_is_named_by_the_time_out_and_passes_by_itself(kafka):
    tokens = Tokens()
    tokens.error = OSError("the identity provider is away")
    with open_producer(kafka, tokens, "away", max_block_ms=3_000) as producer:
        with pytest.raises(KafkaTimeoutError, match="the identity provider is away"):
            producer.init_transactions()
        tokens.error = None
        producer.init_transactions()


def test_a_function_may_end_the_producer(kafka):
    tokens = Tokens()
    tokens.error = SaslAuthenticationError("the account is locked")
    with open_producer(kafka, tokens, "locked") as producer:
        with pytest.raises(SaslAuthenticationError, match="the account is locked"):
            producer.init_transactions()


def test_questions_to_the_cluster_take_the_function_too(kafka):
    found = admin.broker_setting(
        kafka.addresses("SASL_PLAINTEXT"),
        "transaction.max.timeout.ms",
        10,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(),
    )
    assert found == "900000"
