"""Wrong options are refused when the sink is made, with a text that names the way out."""

from __future__ import annotations

import pickle
import re
import time
from contextlib import suppress
from inspect import signature
from typing import get_args, get_type_hints

import numpy as np
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError, UnknownConfigError
from txnproducer.spark import ExactlyOnceKafkaSink, SchemaError
from txnproducer.spark.options import OPTIONS, read_settings
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.schema import Record, RowReader, check_schema, to_record

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
pyspark_sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed (extra `spark`)")

SERVERS = "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sink_id": "a b"}, "sink_id"),
        ({"sink_id": ""}, "sink_id"),
        ({"atomicity": "row"}, "atomicity"),
        ({"writers": 0}, "writers"),
        ({"on_missing_ledger": "ignore"}, "on_missing_ledger"),
        ({"on_replay_mismatch": "x"}, "on_replay_mismatch"),
        ({"on_foreign_ledger": "x"}, "on_foreign_ledger"),
        ({"first_batch_id": -1}, "first_batch_id=-1"),
        ({"first_batch_id": True}, "first_batch_id"),
        ({"topic": None}, "ledger_topic"),
        ({"options": {"topic": "other"}}, "topic is given twice"),
        ({"query_id": ""}, "query_id"),
        ({"atomicity": "batch", "writers": 3}, "writers=3"),
        ({"options": {"transactionTimeout": "soon"}}, "transactionTimeout"),
        ({"options": {"kafka.linger.ms": "soon"}}, "linger"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    given = {"sink_id": "sink", "topic": "topic", **arguments}
    with pytest.raises(InvalidConfigurationError, match=message):
        ExactlyOnceKafkaSink(SERVERS, **given)


def settings(**options):
    """Read options as a data source has them: without arguments."""
    given = {"kafka.bootstrap.servers": SERVERS, "sinkId": "sink", "topic": "t", **options}
    return read_settings({name.replace("__", "."): value for name, value in given.items()})


VALUES = ("partition", "batch", "stop", "write", "keep", "take_over", "false", "true", "7", "8")
PLACES = ("offsets", "topic")


def two_values(argument):
    """Return two texts that an option takes. The first one fits all other options."""
    read = OPTIONS[argument].read
    taken = []
    for text in (*VALUES, *PLACES):
        with suppress(InvalidConfigurationError):
            read("", text)
            taken.append(text)
    return taken[:2]


def test_an_unknown_option_gets_a_hint():
    with pytest.raises(UnknownConfigError, match=r"topics .* did you mean topic"):
        settings(topics="x")
    with pytest.raises(UnknownConfigError, match="did you mean onReplayMismatch"):
        settings(onReplayMissmatch="keep")
    with pytest.raises(UnknownConfigError, match=r"linger\.ms"):
        settings(kafka__lingr__ms="1")
    with pytest.raises(UnknownConfigError, match=r"there are sinkId, topic, .* kafka\.NAME"):
        settings(subscribe="t")


@pytest.mark.parametrize("argument", OPTIONS)
def test_everything_can_be_given_as_an_option_or_left_out(argument):
    option, (text, _) = OPTIONS[argument], two_values(argument)
    assert getattr(settings(**{option.name: text}), argument) == option.read("", text)
    needed = {"bootstrap_servers": SERVERS, "sink_id": "sink", "topic": "t", "ledger_topic": "t"}
    assert getattr(settings(), argument) == needed.get(argument, option.default)


def test_other_rows_of_a_committed_batch_are_a_warning_with_prepared_parts_alone():
    assert settings(atomicity="prepared").on_replay_mismatch == "warn"
    assert settings(atomicity="prepared", onReplayMismatch="stop").on_replay_mismatch == "stop"
    for atomicity in ("partition", "batch"):
        with pytest.raises(InvalidConfigurationError, match="goes with atomicity="):
            settings(atomicity=atomicity, onReplayMismatch="warn")


def test_settings_of_the_producer_are_texts():
    given = settings(kafka__linger__ms=7)
    assert given.producer == {"bootstrap.servers": SERVERS, "linger.ms": "7"}


def test_an_argument_of_the_sink_is_in_the_table_of_options_with_its_values():
    arguments = signature(ExactlyOnceKafkaSink).parameters.keys() - {"on_event", "options"}
    assert arguments <= OPTIONS.keys()
    hints = get_type_hints(ExactlyOnceKafkaSink.__init__)
    for argument in arguments:
        for literal in get_args(hints[argument]):
            for value in get_args(literal):
                assert OPTIONS[argument].read("", value) == value


@pytest.mark.parametrize("argument", OPTIONS)
def test_an_option_and_its_argument_have_to_say_the_same(argument):
    option, (told, other) = OPTIONS[argument], two_values(argument)
    given = {"bootstrap_servers": SERVERS, "sink_id": "sink", "topic": "t", argument: told}
    with pytest.raises(
        InvalidConfigurationError, match=rf"{argument} is given twice.*{option.name}"
    ):
        read_settings({option.name: other}, **given)
    agreed = read_settings({option.name: told}, **given)
    assert getattr(agreed, argument) == option.read("", told)


def test_the_sink_hands_its_arguments_on():
    given = {
        argument: OPTIONS[argument].read("", two_values(argument)[0])
        for argument in signature(ExactlyOnceKafkaSink).parameters.keys() & OPTIONS.keys()
    }
    sink = ExactlyOnceKafkaSink(**given)
    assert {argument: getattr(sink._settings, argument) for argument in given} == given


@pytest.mark.parametrize("name", ["SINKID", "sinkid"])
def test_names_of_options_are_read_in_any_case(name):
    given = {"KAFKA.Bootstrap.Servers": SERVERS, name: "sink", "TOPIC": "t", "kafka.ACKS": "all"}
    assert read_settings(given).sink_id == "sink"
    with pytest.raises(InvalidConfigurationError, match="is given twice"):
        read_settings({**given, "sinkId": "other"})


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("kafka.bootstrap.servers", r"option kafka\.bootstrap\.servers"),
        ("sinkId", "option sinkId"),
        ("topic", "option ledgerTopic"),
    ],
)
def test_a_missing_setting_is_named_as_an_option_too(missing, message):
    given = {"kafka.bootstrap.servers": SERVERS, "sinkId": "sink", "topic": "t"}
    del given[missing]
    with pytest.raises(InvalidConfigurationError, match=message):
        read_settings(given)


@pytest.mark.parametrize(
    ("setting", "way_out"),
    [
        ("key.serializer", "columns"),
        ("value.serializer", "columns"),
        ("interceptor.classes", "frame"),
        ("partitioner.class", "column `partition`"),
        ("group.id", "sinkId"),
        ("auto.offset.reset", "consumer"),
        ("enable.auto.commit", "consumer"),
        ("key.deserializer", "consumer"),
        ("value.deserializer", "consumer"),
        ("transactional.id", "sinkId"),
        ("transaction.timeout.ms", "transactionTimeout"),
    ],
)
def test_settings_that_are_not_the_users_are_refused(setting, way_out):
    with pytest.raises(InvalidConfigurationError, match=rf"kafka\.{setting} cannot .*{way_out}"):
        settings(**{f"kafka.{setting}": "x"})


def test_idempotence_may_be_asked_for_and_not_be_switched_off():
    assert settings(kafka__enable__idempotence="true")
    with pytest.raises(InvalidConfigurationError, match="always idempotent"):
        settings(kafka__enable__idempotence="false")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.acks", "1"),
        ("kafka.acks", 0),
        ("kafka.Retries", "0"),
        ("kafka.retries", "00"),
        ("KAFKA.enable.idempotence", False),
        ("kafka.max.in.flight.requests.per.connection", "10"),
        ("kafka.linger.ms", "soon"),
        ("kafka.compression.type", "best"),
        ("kafka.lingr.ms", "1"),
    ],
)
def test_an_option_that_no_transactional_producer_takes_is_refused_by_its_name(option, value):
    with pytest.raises(InvalidConfigurationError, match=rf"(^|\W){re.escape(option)}\W"):
        settings(**{option: value})


def test_a_setting_is_named_as_it_was_written_and_no_other_is():
    with pytest.raises(InvalidConfigurationError) as caught:
        settings(**{"kafka.Delivery.Timeout.ms": "10", "kafka.linger.ms": "7"})
    told = str(caught.value)
    assert told.startswith("kafka.Delivery.Timeout.ms=10 is not valid: it must be at least")
    assert " kafka.linger.ms + request_timeout_ms = 30007;" in told


def test_all_acks_may_be_asked_for():
    assert settings(kafka__acks="all", kafka__retries="5").producer["acks"] == "all"
    assert settings(kafka__acks="-1")


def test_options_of_spark_itself_are_left_alone():
    assert settings(checkpointLocation="/somewhere").topic == "t"


def test_settings_with_the_prefix_reach_the_producer_of_a_sink():
    sink = ExactlyOnceKafkaSink(SERVERS, "sink", "t", options={"kafka.linger.ms": 7})
    assert sink._settings.producer["linger.ms"] == "7"


# --- how to log in, by Java's names --------------------------------------------------------------

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", _PLAIN), ("SCRAM-SHA-256", _SCRAM), ("SCRAM-SHA-512", _SCRAM)],
)
def test_a_jaas_line_is_read_for_tasks_and_driver(mechanism, module):
    given = settings(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism=mechanism,
        kafka__sasl__jaas__config=f'{module} required username="me" password="secret";',
    )
    assert given.security["sasl_mechanism"] == mechanism
    assert given.security["sasl_plain_username"] == "me"
    assert given.security["sasl_plain_password"] == "secret"
    tasks = ProducerConfig.from_properties({**given.producer, "transactional.id": "x"})
    assert tasks.security["sasl_plain_password"] == "secret"


class Tokens(AbstractTokenProvider):
    def token(self):
        return "a.b.c"

    def extensions(self):
        return {"logicalCluster": "lkc-1"}


class TokensOf(Tokens):
    def __init__(self, audience):
        self.audience = audience


TOKENS = Tokens()


class Named:
    tokens = TOKENS


def make_token():
    return "d.e.f"


MADE: list[str] = []


def make_and_tell():
    MADE.append(f"token-{len(MADE)}")
    return MADE[-1], time.time() + 100


NO_PROVIDER = "a token"


@pytest.mark.parametrize("name", [".Tokens", ".TOKENS", ":TOKENS", ":Named.tokens"])
@pytest.mark.parametrize("option", ["sasl_oauth_token_provider", "SASL.OAuth.Token.Provider"])
def test_a_token_provider_is_given_by_its_dotted_name(name, option):
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    options = {f"kafka.{key}": value for key, value in given.items()}
    read = settings(**options, **{f"kafka.{option}": f"{__name__}{name}"})
    there = pickle.loads(pickle.dumps(read))  # as it reaches a task
    assert there == read, "connections to the ledger are kept by equal settings"
    config = ProducerConfig.from_properties(there.producer)
    for security in (config.security, there.security):
        provider = security["sasl_oauth_token_provider"]
        assert isinstance(provider, AbstractTokenProvider)
        assert (provider.token(), provider.extensions()) == ("a.b.c", {"logicalCluster": "lkc-1"})


def test_a_function_that_returns_a_token_is_a_provider():
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    read = settings(**given, **{"kafka.sasl_oauth_token_provider": f"{__name__}:make_token"})
    provider = pickle.loads(pickle.dumps(read)).security["sasl_oauth_token_provider"]
    assert (provider.token(), provider.extensions()) == ("d.e.f", {})


def test_a_function_that_returns_a_token_and_its_end_is_a_provider_that_keeps_it():
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    read = settings(**given, **{"kafka.sasl_oauth_token_provider": f"{__name__}:make_and_tell"})
    provider = pickle.loads(pickle.dumps(read)).security["sasl_oauth_token_provider"]
    assert provider.token() == provider.token() == MADE[-1]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (TOKENS, "is a Tokens: an object does not reach the tasks.*dotted name"),
        ("no_such_module.provider", "cannot be imported.*dotted name"),
        (f"{__name__}.MISSING", "cannot be imported"),
        ("", "cannot be imported"),
        (f"{__name__}.NO_PROVIDER", "is a str: it must be"),
        (f"{__name__}.TokensOf", "cannot be called without arguments.*audience.*it must be"),
    ],
)
def test_a_token_provider_that_tasks_cannot_import_is_refused(value, told):
    with pytest.raises(InvalidConfigurationError, match=told):
        settings(**{"kafka.sasl_oauth_token_provider": value})


PLAIN_LOGIN = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize("value", [b"secret", ["secret"], object()])
def test_a_setting_that_is_no_text_and_no_number_is_refused_without_showing_it(value):
    kind = type(value).__name__
    with pytest.raises(InvalidConfigurationError) as caught:
        settings(**PLAIN_LOGIN, **{"kafka.sasl_plain_password": value})
    assert f"kafka.sasl_plain_password is of the type {kind}: give a text" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_setting_that_is_none_is_not_given():
    assert settings(**{"kafka.linger.ms": None}) == settings()
    with pytest.raises(UnknownConfigError, match=r"kafka\.lingr\.ms"):
        settings(**{"kafka.lingr.ms": None})
    login = {**PLAIN_LOGIN, "kafka.sasl_plain_username": "me"}
    with pytest.raises(InvalidConfigurationError, match="sasl_plain_password"):
        settings(**login, **{"kafka.sasl_plain_password": None})


def test_numbers_bools_and_paths_are_settings(tmp_path):
    given = {"kafka.linger.ms": 7, "kafka.batch.size": np.int64(9_000)}
    given |= {"kafka.ssl_check_hostname": False, "kafka.ssl_cafile": tmp_path / "ca.pem"}
    read = settings(**given, **{"kafka.security.protocol": "SSL"}).producer
    assert [read[name.removeprefix("kafka.")] for name in given] == [
        "7",
        "9000",
        "False",
        str(tmp_path / "ca.pem"),
    ]


def test_a_jaas_line_that_cannot_be_read_is_refused_without_showing_it():
    with pytest.raises(InvalidConfigurationError, match="PlainLoginModule required") as caught:
        settings(
            kafka__security__protocol="SASL_SSL",
            kafka__sasl__mechanism="PLAIN",
            kafka__sasl__jaas__config="com.example.Login required password='secret';",
        )
    assert "secret" not in str(caught.value)


def test_pem_stores_are_used():
    given = settings(
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location="/ca.pem",
        kafka__ssl__keystore__type="PEM",
        kafka__ssl__keystore__location="/me.pem",
    )
    assert given.security["ssl_cafile"] == "/ca.pem"
    assert given.security["ssl_certfile"] == "/me.pem"


@pytest.mark.parametrize("store", ["truststore", "keystore"])
@pytest.mark.parametrize("kind", [None, "JKS", "PKCS12"])
def test_javas_stores_are_refused_with_the_way_out(store, kind):
    given = {f"kafka.ssl.{store}.location": f"/secrets/{store}.jks"}
    if kind is not None:
        given[f"kafka.ssl.{store}.type"] = kind
    with pytest.raises(InvalidConfigurationError, match=r"keytool .*type=PEM.*option kafka\.NAME"):
        settings(kafka__security__protocol="SSL", **given)


def test_the_sink_can_be_pickled():
    sink = ExactlyOnceKafkaSink(SERVERS, "sink", topic="topic")
    assert pickle.loads(pickle.dumps(sink)).last_report is None


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ([("key", "string")], "t", "`value` is missing"),
        ([("value", "int")], "t", "`value` is int"),
        ([("value", "string"), ("key", "bigint")], "t", "`key` is bigint"),
        ([("value", "string"), ("partition", "bigint")], "t", "`partition` is bigint"),
        ([("value", "string"), ("headers", "map<string,string>")], "t", "`headers`"),
        ([("value", "string")], None, "no topic"),
        ([("value", "string"), ("topic", "binary")], None, "`topic` is binary"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns, topic, message):
    with pytest.raises(SchemaError, match=message):
        check_schema(columns, topic)


def test_columns_are_read_in_any_case():
    check_schema([("Value", "string"), ("KEY", "binary"), ("Topic", "string")], None)
    with pytest.raises(SchemaError, match="`KEY` is double"):
        check_schema([("Value", "string"), ("KEY", "double")], "t")
    for pair in ([("value", "string"), ("VALUE", "string")], [("key", "int"), ("key", "int")]):
        with pytest.raises(
            SchemaError, match=rf"`{pair[0][0]}` and `{pair[1][0]}` have the same name"
        ):
            check_schema([*pair, ("Value2", "string")], "t")


def test_rows_and_arrow_batches_with_columns_in_any_case_become_the_same_records():
    written = [pyspark_sql.Row(Value="v", KEY=b"k", other=1)]
    assert list(RowReader("t").records(written)) == [Record("t", None, b"k", b"v", ())]
    with pytest.raises(SchemaError, match="have the same name"):
        list(RowReader("t").records([pyspark_sql.Row(Value="v", value="v")]))
    digests = []
    for names in (["value", "key", "other"], ["Value", "KEY", "OTHER"]):
        rows = ArrowRows([pa.RecordBatch.from_arrays([["v"], ["k"], [1]], names)], RowReader("t"))
        rows.read()
        digests.append((rows.digest.count, rows.digest.hex()))
    assert digests[0] == digests[1]


def test_columns_that_kafka_does_not_know_are_left_alone():
    check_schema([("value", "binary"), ("other", "double")], "t")


def test_a_row_becomes_a_record():
    row = {
        "topic": "ignored",
        "partition": 3,
        "key": "k",
        "value": bytearray(b"v"),
        "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
    }
    names = frozenset(row)
    headers = (("h", b"x"), ("n", None))
    assert to_record(row, names, "t") == Record("t", 3, b"k", b"v", headers)
    assert to_record(row, names, None).topic == "ignored"


def test_a_null_value_is_a_tombstone_and_a_null_topic_an_error():
    assert to_record({"value": None}, frozenset({"value"}), "t").value is None
    with pytest.raises(SchemaError, match="topic is null"):
        to_record({"value": "v", "topic": None}, frozenset({"value", "topic"}), None)
