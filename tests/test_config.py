"""Settings are found by either spelling, checked by name, and made consistent as Java does."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from pathlib import Path

import pytest

from tests.built_config import build, refused
from txnproducer.config import ProducerConfig
from txnproducer.config._docs import page
from txnproducer.config._settings import GROUPS, SECURITY_NAMES, SETTINGS
from txnproducer.config._unsupported import FOREIGN_NAMES, UNSUPPORTED
from txnproducer.errors import InvalidConfigurationError, UnknownConfigError


def test_the_table_and_the_class_have_the_same_settings() -> None:
    fields = [field.name for field in dataclasses.fields(ProducerConfig)]
    table = [row.name for _, rows in GROUPS for row in rows if row.name not in SECURITY_NAMES]
    assert fields == [*table, "security", "_given"]
    assert sum(len(rows) for _, rows in GROUPS) == len(SETTINGS)


def test_the_defaults_are_javas_but_for_those_with_a_reason() -> None:
    java = {
        "transaction_timeout_ms": 60_000, "acks": "all", "retries": 2**31 - 1,
        "max_in_flight_requests_per_connection": 5, "enable_idempotence": True, "linger_ms": 5,
        "batch_size": 16_384, "buffer_memory": 33_554_432, "max_request_size": 1_048_576,
        "max_block_ms": 60_000, "request_timeout_ms": 30_000, "delivery_timeout_ms": 120_000,
        "retry_backoff_ms": 100, "retry_backoff_max_ms": 1_000, "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000, "socket_connection_setup_timeout_ms": 10_000,
        "socket_connection_setup_timeout_max_ms": 30_000, "connections_max_idle_ms": 540_000,
        "metadata_max_age_ms": 300_000, "metadata_max_idle_ms": 300_000,
        "compression_type": "none", "partitioner_ignore_keys": False,
        "partitioner_adaptive_partitioning_enable": True,
        "partitioner_availability_timeout_ms": 0, "send_buffer_bytes": 131_072,
        "receive_buffer_bytes": 32_768,
    }  # fmt: skip
    config = build()
    differing = {name for name, value in java.items() if getattr(config, name) != value}
    explained = {row.name for row in SETTINGS.values() if row.java_default and row.why}
    assert differing == {"batch_size", "send_buffer_bytes", "receive_buffer_bytes"}
    assert differing <= explained
    assert config.batch_size == 65_536


class TestNames:
    @pytest.mark.parametrize("name", [name for name in sorted(SETTINGS) if "_" in name])
    def test_a_setting_given_in_both_spellings_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidConfigurationError, match="are the same setting: give one"):
            ProducerConfig.build(**{name: "a", SETTINGS[name].dotted_name: "a"})

    def test_dotted_names_are_keyword_arguments_too(self) -> None:
        assert build(**{"linger.ms": 7}).linger_ms == 7

    @pytest.mark.parametrize(
        ("key", "suggestion"),
        [
            ("linger", "linger_ms"),
            ("lingerMs", "linger_ms"),
            ("linger-ms", "linger_ms"),
            ("transaction.id", "transactional.id"),
            ("transactionalid", "transactional_id"),
            ("batch.sise", "batch.size"),
            ("max_in_flight_requests", "max_in_flight_requests_per_connection"),
        ],
    )
    def test_a_misspelt_name_is_refused_with_the_right_one(
        self, key: str, suggestion: str
    ) -> None:
        with pytest.raises(UnknownConfigError, match="did you mean") as caught:
            build(**{key: 5})
        assert suggestion in caught.value.suggestions
        assert caught.value.key == key

    def test_a_name_like_no_other_is_refused_without_a_guess(self) -> None:
        assert refused(florble=1) == "florble is not a setting"

    @pytest.mark.parametrize("key", sorted(UNSUPPORTED))
    def test_a_key_of_another_client_is_refused_with_the_reason(self, key: str) -> None:
        with pytest.raises(UnknownConfigError) as caught:
            build(**{key: "something"})
        assert str(caught.value).startswith(key)
        assert len(str(caught.value).split()) >= 4
        assert "not a setting" not in str(caught.value)

    @pytest.mark.parametrize("key", sorted(FOREIGN_NAMES))
    def test_a_name_of_another_client_is_translated(self, key: str) -> None:
        message = refused(**{key: "1"})
        assert f"use {FOREIGN_NAMES[key][0]}" in message
        assert FOREIGN_NAMES[key][0] in SETTINGS

    @pytest.mark.parametrize(
        "key",
        [
            *("error_cb", "stats_cb", "throttle_cb", "log_cb", "logger", "debug", "oauth_cb"),
            *("on_delivery", "dr_cb", "statistics.interval.ms", "batch.num.messages"),
            *("queue.buffering.max.messages", "socket.timeout.ms", "ssl.ca.pem"),
        ],
    )
    def test_a_setting_of_confluent_kafka_is_refused_with_the_way_out(self, key: str) -> None:
        message = refused(**{key: "1"})
        assert "`" in message or ": use " in message
        assert "did you mean" not in message

    def test_javas_token_retrieval_is_refused_as_a_family(self) -> None:
        assert "sasl_oauth_token_provider" in refused(**{"sasl.oauthbearer.scope": "s"})

    def test_an_unsupported_feature_that_is_switched_off_is_left_out(self) -> None:
        build(**{"transaction.two.phase.commit.enable": False, "interceptor.classes": ""})
        assert "KIP-939" in refused(**{"transaction.two.phase.commit.enable": True})

    def test_none_means_not_given(self) -> None:
        config = build(transactional_id=None, linger_ms=None)
        assert (config.transactional_id, config.linger_ms) == (None, 5)

    def test_a_name_must_be_a_text(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="5 is not the name of a setting"):
            ProducerConfig.from_properties({5: "x"})  # type: ignore[dict-item]


class TestValues:
    @pytest.mark.parametrize("name", [r.name for r in SETTINGS.values() if r.kind == "int"])
    @pytest.mark.parametrize("wrong", [True, 1.5, "5", [], 2**63, -(2**40)])
    def test_a_number_must_be_one_in_range(self, name: str, wrong: object) -> None:
        message = refused(**{name: wrong})
        assert message.startswith(f"{name}={wrong!r} is not valid: it must be an integer between")

    @pytest.mark.parametrize("name", [r.name for r in SETTINGS.values() if r.kind == "bool"])
    @pytest.mark.parametrize("wrong", [1, 0, "true", "no"])
    def test_a_truth_value_must_be_one(self, name: str, wrong: object) -> None:
        assert refused(**{name: wrong}).startswith(
            f"{name}={wrong!r} is not valid: it must be True"
        )

    @pytest.mark.parametrize("name", [r.name for r in SETTINGS.values() if r.kind == "text"])
    def test_a_text_must_be_one(self, name: str) -> None:
        assert "it must be a text" in refused(**{name: 5})

    @pytest.mark.parametrize("name", [r.name for r in SETTINGS.values() if r.kind == "choice"])
    def test_a_choice_is_refused_with_those_there_are(self, name: str) -> None:
        message = refused(**{name: "nonsense"})
        assert all(choice in message for choice in SETTINGS[name].choices)

    @pytest.mark.parametrize("spelling", ["all", "ALL", "-1", -1])
    def test_all_acks_can_be_spelled_as_in_java(self, spelling: object) -> None:
        config = build(acks=spelling)
        assert (config.acks, config.required_acks) == ("all", -1)

    @pytest.mark.parametrize("acks", [0, 1])
    def test_fewer_acks_are_numbers(self, acks: int) -> None:
        assert build(acks=acks).required_acks == acks

    def test_a_truth_value_is_no_number_of_acks(self) -> None:
        assert "acks=True is not valid" in refused(acks=True)

    def test_a_serializer_is_a_function_and_no_class_name(self) -> None:
        name = "org.apache.kafka.common.serialization.StringSerializer"
        assert "a Java class name cannot be used" in refused(**{"key.serializer": name})
        assert "it must be a function" in refused(value_serializer=5)
        assert build(key_serializer=str.encode).key_serializer is str.encode

    @pytest.mark.parametrize(
        ("text", "addresses"),
        [
            ("a", (("a", 9092),)),
            ("a:1, b:2,", (("a", 1), ("b", 2))),
            (["a:1", "b"], (("a", 1), ("b", 9092))),
            (("[::1]:7", "[fe80::1%eth0]"), (("::1", 7), ("fe80::1%eth0", 9092))),
            ("a:1,a:1", (("a", 1),)),
        ],
    )
    def test_bootstrap_servers_are_addresses(self, text: object, addresses: object) -> None:
        assert build(bootstrap_servers=text).bootstrap_addresses == addresses

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ("", "names no broker"),
            (" , ", "names no broker"),
            ([], "names no broker"),
            ("a:b", "an address is host:port"),
            ("a:0", "between 1 and 65535"),
            ("a:70000", "between 1 and 65535"),
            ("::1:9092", "for IPv6"),
            ("SASL_SSL://a:9092", "the protocol in security_protocol"),
            ("a:9092/x", "an address is host:port"),
            (b"a:9092", "it must be a text"),
            (["a:9092", 5], "5 is not a text"),
            (9092, "it must be a text"),
        ],
    )
    def test_a_malformed_address_is_refused(self, wrong: object, said: str) -> None:
        message = refused(bootstrap_servers=wrong)
        assert message.startswith("bootstrap_servers=")
        assert said in message

    def test_bootstrap_servers_are_required(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="bootstrap_servers is missing"):
            ProducerConfig.build()

    @pytest.mark.parametrize(
        ("codec", "key", "level"),
        [("gzip", "compression.gzip.level", 9), ("zstd", "compression_level", -5)],
    )
    def test_a_level_belongs_to_the_codec_in_use(self, codec: str, key: str, level: int) -> None:
        assert build(compression_type=codec, **{key: level}).compression_level == level

    def test_levels_of_other_codecs_are_checked_and_left(self) -> None:
        config = build(
            **{
                "compression.type": "lz4",
                "compression.gzip.level": -1,
                "compression.zstd.level": 3,
            }
        )
        assert config.compression_level is None
        assert "compression_lz4_level=18" in refused(**{"compression.lz4.level": 18})

    def test_lz4_has_four_sizes_of_blocks(self) -> None:
        assert build(compression_lz4_block_bytes=262_144).compression_lz4_block_bytes == 262_144
        assert "lz4 knows 65536, 262144, 1048576, 4194304" in refused(
            compression_lz4_block_bytes=100_000
        )

    def test_a_level_without_a_codec_for_it_is_refused(self) -> None:
        assert "has no levels" in refused(compression_type="snappy", compression_level=3)
        assert "gzip knows the levels 1 to 9" in refused(
            compression_type="gzip", compression_level=11
        )
        assert "same setting" in refused(
            compression_type="gzip", compression_level=1, compression_gzip_level=1
        )


@pytest.mark.conformance("2.37")
class TestIdempotence:
    @pytest.mark.parametrize("obstacle", [{"acks": 1}, {"acks": "0"}, {"retries": 0}])
    def test_is_switched_off_by_acks_or_retries_that_do_not_fit(self, obstacle, caplog) -> None:
        with caplog.at_level(logging.INFO, "txnproducer.config"):
            assert not build(**obstacle).enable_idempotence
        assert "Idempotence is switched off" in caplog.text

    @pytest.mark.parametrize("obstacle", [{"acks": 1}, {"retries": 0}])
    def test_is_an_error_if_it_was_asked_for(self, obstacle) -> None:
        message = refused(enable_idempotence=True, **obstacle)
        assert "enable_idempotence=True does not go with" in message

    @pytest.mark.parametrize(
        "obstacle", [{"acks": 1}, {"retries": 0}, {"enable_idempotence": False}]
    )
    def test_is_needed_by_a_transactional_id(self, obstacle) -> None:
        message = refused(transactional_id="t", **obstacle)
        assert message.startswith("transactional_id='t' needs an idempotent producer, which")
        assert next(iter(obstacle)) in message

    @pytest.mark.parametrize("more", [{}, {"enable_idempotence": True}, {"acks": 1}])
    def test_never_goes_with_more_than_five_requests_in_flight(self, more) -> None:
        message = refused(max_in_flight_requests_per_connection=6, **more)
        assert message.startswith("max_in_flight_requests_per_connection=6 is not valid")

    def test_without_it_more_requests_may_be_in_flight(self) -> None:
        config = build(enable_idempotence=False, max_in_flight_requests_per_connection=6)
        assert config.max_in_flight_requests_per_connection == 6

    def test_goes_with_all_of_javas_values_that_fit(self) -> None:
        config = build(
            enable_idempotence=True, acks="-1", retries=1, max_in_flight_requests_per_connection=1
        )
        assert config.enable_idempotence


@pytest.mark.conformance("2.38")
class TestDeliveryTimeout:
    def test_below_linger_and_request_timeout_is_an_error_if_given(self) -> None:
        message = refused(delivery_timeout_ms=30_004)
        assert "linger_ms + request_timeout_ms = 30005" in message
        assert build(delivery_timeout_ms=30_005).delivery_timeout_ms == 30_005

    def test_is_raised_to_fit_if_not_given(self, caplog) -> None:
        assert build(linger_ms=100_000).delivery_timeout_ms == 130_000
        assert "is raised from 120000 to 130000" in caplog.text

    def test_is_never_raised_above_javas_largest_int(self) -> None:
        assert build(linger_ms=2**31 - 1).delivery_timeout_ms == 2**31 - 1


@pytest.mark.conformance("2.39")
class TestIdentity:
    def test_a_client_is_named_after_its_transactional_id(self) -> None:
        assert build(transactional_id="orders").client_id == "producer-orders"

    def test_clients_without_one_are_numbered(self) -> None:
        first, second = build().client_id, build().client_id
        assert first.startswith("producer-")
        assert int(second.removeprefix("producer-")) == int(first.removeprefix("producer-")) + 1

    def test_a_name_of_ones_own_is_kept(self) -> None:
        assert build(transactional_id="t", client_id="me").client_id == "me"

    @pytest.mark.parametrize("name", ["transactional_id", "client_id"])
    @pytest.mark.parametrize("value", ["half a pair: \ud83d", "x" * 40_000])
    def test_a_name_that_no_request_can_carry_is_refused(self, name: str, value: str) -> None:
        assert refused(**{name: value}).startswith(f"{name}=")

    @pytest.mark.parametrize("name", ["cafile", "certfile", "keyfile", "crlfile", "ciphers"])
    def test_an_empty_text_switches_no_check_of_tls_off(self, name: str) -> None:
        text = refused(security_protocol="SSL", **{f"ssl_{name}": ""})
        assert f"ssl_{name}='' is not valid: it must not be empty; leave it out" in text

    def test_an_empty_transactional_id_is_refused(self) -> None:
        assert "transactional_id='' is not valid: it must not be empty" in refused(
            transactional_id=""
        )


class TestFitting:
    def test_a_batch_never_exceeds_the_memory(self) -> None:
        assert build(buffer_memory=1_000).batch_size == 1_000
        assert "must not be above buffer_memory=1000" in refused(
            buffer_memory=1_000, batch_size=2_000
        )

    def test_only_a_first_reconnect_backoff_means_no_growth_as_in_java(self) -> None:
        assert build(reconnect_backoff_ms=200).reconnect_backoff_max_ms == 200
        assert (
            build(reconnect_backoff_ms=200, reconnect_backoff_max_ms=900).reconnect_backoff_max_ms
            == 900
        )

    @pytest.mark.parametrize(
        "name", ["retry_backoff", "reconnect_backoff", "socket_connection_setup_timeout"]
    )
    def test_a_first_wait_above_the_greatest_gives_way(self, name: str, caplog) -> None:
        config = build(**{f"{name}_ms": 500, f"{name}_max_ms": 400})
        assert getattr(config, f"{name}_ms") == 400
        assert f"{name}_ms=500 is above" in caplog.text


class TestProperties:
    def test_texts_become_numbers_and_truth_values(self) -> None:
        config = ProducerConfig.from_properties(
            {
                "bootstrap.servers": "a:1,b:2",
                "linger.ms": " 20 ",
                "enable.idempotence": "TRUE",
                "compression.type": "gzip",
                "compression.gzip.level": "3",
                "client.id": "7",
            }
        )
        assert config.linger_ms == 20
        assert config.enable_idempotence is True
        assert config.compression_level == 3
        assert config.client_id == "7"
        assert config.bootstrap_servers == ("a:1", "b:2")

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("linger.ms", "5ms"),
            ("linger.ms", ""),
            ("linger.ms", "1e3"),
            ("enable.idempotence", "yes"),
        ],
    )
    def test_a_text_that_spells_nothing_is_refused(self, key: str, text: str) -> None:
        with pytest.raises(InvalidConfigurationError, match="is not valid: it must be"):
            ProducerConfig.from_properties({"bootstrap.servers": "a", key: text})

    def test_values_that_are_no_texts_are_taken_as_they_are(self) -> None:
        config = ProducerConfig.from_properties({"bootstrap.servers": ["a"], "linger_ms": 3})
        assert config.linger_ms == 3

    def test_keyword_arguments_win(self) -> None:
        config = ProducerConfig.from_properties(
            {"bootstrap.servers": "a", "linger.ms": "5"}, linger_ms=9
        )
        assert config.linger_ms == 9


class TestCopies:
    def test_a_changed_copy_follows_the_rules_again(self) -> None:
        config = build(transactional_id="t", linger_ms=1)
        other = config.replace(transactional_id="u", request_timeout_ms=200_000)
        assert (other.client_id, other.linger_ms) == ("producer-u", 1)
        assert other.delivery_timeout_ms == 200_001
        with pytest.raises(InvalidConfigurationError, match="needs an idempotent producer"):
            config.replace(acks=0)

    def test_none_takes_a_setting_back(self) -> None:
        config = build(transactional_id="t", linger_ms=1)
        assert config.replace(linger_ms=None).linger_ms == 5
        assert not config.replace(transactional_id=None).is_transactional

    def test_a_configuration_crosses_processes(self) -> None:
        config = build(
            transactional_id="t",
            key_serializer=str.encode,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="u",
            sasl_plain_password="hush",
        )
        copy = pickle.loads(pickle.dumps(config))
        assert copy == config
        assert hash(copy) == hash(config)
        assert copy.replace(linger_ms=1).security == config.security

    def test_a_configuration_cannot_be_changed(self) -> None:
        config = build()
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.linger_ms = 3  # type: ignore[misc]
        with pytest.raises(TypeError):
            config.security["ssl_cafile"] = "x"  # type: ignore[index]

    def test_secrets_are_not_shown(self) -> None:
        config = build(
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="hush",
            ssl_password="hush",
        )
        for shown in (repr(config), str(config), repr(config.security)):
            assert "hush" not in shown
            assert "alice" in shown
            assert "sasl_plain_password='***'" in shown

    def test_a_secret_of_the_wrong_type_is_not_shown(self) -> None:
        assert "1234" not in refused(sasl_plain_password=1234)


def test_the_documentation_page_is_the_tables() -> None:
    written = Path(__file__).parent.parent / "docs" / "configuration.md"
    assert written.read_text(encoding="utf-8") == page(), (
        "run: python -m txnproducer.config > docs/configuration.md"
    )


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_documented_in_a_sentence(name: str) -> None:
    assert SETTINGS[name].doc.endswith(".")
    assert f"| `{name}` |" in page()


def test_a_transactional_id_too_long_for_the_client_id_made_from_it_is_refused() -> None:
    fits = "x" * (2**15 - 1 - len("producer-"))
    assert ProducerConfig.build(bootstrap_servers="b", transactional_id=fits).client_id
    with pytest.raises(InvalidConfigurationError, match="the client_id made from it has 32768"):
        ProducerConfig.build(bootstrap_servers="b", transactional_id=fits + "x")
    named = ProducerConfig.build(
        bootstrap_servers="b", transactional_id=fits + "x", client_id="me"
    )
    assert named.client_id == "me"


@pytest.mark.parametrize("name", ["client_id", "transactional_id"])
def test_a_text_that_is_too_long_is_shown_in_part_and_its_reason_whole(name):
    given = {"bootstrap_servers": "boot:9092", name: "x" * 40_000}
    with pytest.raises(InvalidConfigurationError) as told:
        ProducerConfig.build(**given)
    assert len(str(told.value)) < 500
    assert "it has 40000 bytes, more than" in str(told.value)
