"""Security settings have kafka-python's names. Java's keys are used where Python can."""

from __future__ import annotations

import ssl

import pytest
from kafka.net.connection import KafkaConnection
from kafka.net.transport import KafkaSSLTransport

from tests.built_config import build, refused
from txnproducer.config import ProducerConfig
from txnproducer.config._settings import SECURITY_NAMES
from txnproducer.errors import InvalidConfigurationError

PLAIN_LINE = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="hush;\\"now\\"";'
)
SCRAM_LINE = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    "username=bob password='x y' ;"
)


class TestSecurity:
    def test_is_a_mapping_with_kafka_pythons_names_and_defaults(self) -> None:
        security = build().security
        theirs = {**KafkaConnection.DEFAULT_CONFIG, **KafkaSSLTransport.DEFAULT_CONFIG}
        for name in theirs:
            if name.startswith(("sasl_", "ssl_", "security_")):
                assert security[name] == theirs[name], name
        assert dict(**security).keys() == SECURITY_NAMES

    def test_can_be_a_context_of_ones_own(self) -> None:
        context = ssl.create_default_context()
        config = build(security_protocol="ssl", ssl_context=context)
        assert config.security["ssl_context"] is context
        assert config.security["security_protocol"] == "SSL"

    @pytest.mark.parametrize(
        "given",
        [{"sasl_plain_password": "hush"}, {"ssl_cafile": "ca.pem"}, {"sasl_mechanism": "PLAIN"}],
    )
    def test_without_a_protocol_credentials_are_refused_as_unused(self, given) -> None:
        message = refused(**given)
        assert "security_protocol is not, so it would not be used" in message
        assert "hush" not in message

    def test_a_protocol_that_was_chosen_may_leave_settings_unused(self) -> None:
        assert build(security_protocol="PLAINTEXT", ssl_cafile="ca.pem")

    @pytest.mark.parametrize(
        ("given", "missing"),
        [
            ({}, "sasl_mechanism"),
            ({"sasl_mechanism": "plain", "sasl_plain_username": "u"}, "sasl_plain_password"),
            ({"sasl_mechanism": "SCRAM-SHA-512"}, "sasl_plain_username"),
            ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
        ],
    )
    def test_a_login_must_be_complete(self, given, missing: str) -> None:
        assert refused(security_protocol="SASL_SSL", **given).startswith(f"{missing} is missing")

    def test_a_kerberos_login_needs_no_credentials_here(self) -> None:
        config = build(
            **{
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "broker",
            }
        )
        assert config.security["sasl_kerberos_service_name"] == "broker"


class TestJavaSecurity:
    def test_a_plain_jaas_line_is_read(self) -> None:
        security = build(
            **{"security.protocol": "SASL_SSL", "sasl.jaas.config": PLAIN_LINE}
        ).security
        assert security["sasl_mechanism"] == "PLAIN"
        assert security["sasl_plain_username"] == "alice"
        assert security["sasl_plain_password"] == 'hush;"now"'

    def test_a_scram_jaas_line_is_read(self) -> None:
        security = build(
            **{
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": SCRAM_LINE,
            }
        ).security
        assert (security["sasl_plain_username"], security["sasl_plain_password"]) == ("bob", "x y")

    def test_a_scram_jaas_line_does_not_say_which_scram(self) -> None:
        message = refused(**{"security.protocol": "SASL_SSL", "sasl.jaas.config": SCRAM_LINE})
        assert message.startswith("sasl_mechanism is missing")

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("", "cannot be read"),
            ("a.PlainLoginModule", "cannot be read"),
            ('a.PlainLoginModule required username="u" password="hush', "cannot be read"),
            ('a.PlainLoginModule required username="u" pass="hush";', "has no password"),
            ("a.PlainLoginModule required;", "has no username and no password"),
            ("a.b.OAuthBearerLoginModule required;", "pass sasl_oauth_token_provider"),
            ("com.sun.security.auth.module.Krb5LoginModule required x=y;", "log in with kinit"),
            (
                "a.OwnLoginModule required password=hush;",
                "names the login module 'OwnLoginModule'",
            ),
            (f"{SCRAM_LINE[:-1]} tokenauth=true;", "tokenauth=true"),
        ],
    )
    def test_a_jaas_line_that_cannot_be_used_is_refused_without_being_shown(
        self, line: str, said: str
    ) -> None:
        message = refused(**{"security.protocol": "SASL_SSL", "sasl.jaas.config": line})
        assert message.startswith("sasl.jaas.config")
        assert said in message
        assert "hush" not in message

    def test_a_jaas_line_must_not_contradict_the_other_settings(self) -> None:
        common = {"security.protocol": "SASL_SSL", "sasl.jaas.config": PLAIN_LINE}
        assert "does not go with the PlainLoginModule" in refused(
            **common, sasl_mechanism="SCRAM-SHA-256"
        )
        assert "say the same" in refused(**common, sasl_plain_password="other")

    def test_pem_stores_are_used(self) -> None:
        security = build(
            **{
                "security.protocol": "SSL",
                "ssl.truststore.type": "pem",
                "ssl.truststore.location": "ca.pem",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "me.pem",
                "ssl.key.password": "hush",
                "ssl.endpoint.identification.algorithm": "",
            }
        ).security
        assert (security["ssl_cafile"], security["ssl_certfile"]) == ("ca.pem", "me.pem")
        assert security["ssl_password"] == "hush"
        assert security["ssl_check_hostname"] is False

    @pytest.mark.parametrize("store", ["truststore", "keystore"])
    @pytest.mark.parametrize("kind", [None, "JKS", "PKCS12"])
    def test_javas_stores_are_refused_with_the_way_to_pem(
        self, store: str, kind: str | None
    ) -> None:
        message = refused(
            **{
                "security.protocol": "SSL",
                f"ssl.{store}.location": "x.jks",
                f"ssl.{store}.type": kind,
            }
        )
        assert f"is a {kind or 'JKS'} store" in message
        assert "keytool" in message
        assert ".pem" in message

    def test_a_pem_file_has_no_store_password(self) -> None:
        message = refused(
            **{
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "ca.pem",
                "ssl.truststore.password": "hush",
            }
        )
        assert "ssl.truststore.password is set" in message
        assert "hush" not in message

    def test_the_host_name_check_knows_https_alone(self) -> None:
        key = "ssl.endpoint.identification.algorithm"
        assert build(**{"security.protocol": "SSL", key: "HTTPS"}).security["ssl_check_hostname"]
        assert "use 'https'" in refused(**{key: "ldaps"})


@pytest.mark.parametrize("name", ["sasl_plain_username", "sasl_plain_password", "ssl_password"])
def test_a_text_that_utf_8_cannot_encode_is_refused_and_a_secret_is_not_shown(name):
    given = {"sasl_plain_username": "alice", "sasl_plain_password": "right"}
    # As `os.environ` reads a byte that is no UTF-8.
    given[name] = "S3cr\udcfct"
    with pytest.raises(InvalidConfigurationError, match=f"{name}.*UTF-8 cannot encode") as told:
        ProducerConfig.build(
            bootstrap_servers="x:1",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            **given,
        )
    assert ("S3cr" in str(told.value)) is (name == "sasl_plain_username")
    assert told.value.__cause__ is None
