"""What the sink refuses where it is made, and what it says."""

from __future__ import annotations

import pickle

import pytest

from txnproducer.errors import InvalidConfigurationError, UnknownConfigError
from txnproducer.spark import ExactlyOnceKafkaSink, SchemaError
from txnproducer.spark.options import read_options
from txnproducer.spark.schema import Record, check_schema, to_record

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
        ({"topic": None}, "ledger_topic"),
        ({"options": {"topic": "other"}}, "topic is given twice"),
        ({"options": {"kafka.transactional.id": "x"}}, "transactional.id"),
        ({"options": {"kafka.key.serializer": "x"}}, "key.serializer"),
        ({"options": {"transactionTimeout": "soon"}}, "transactionTimeout"),
        ({"options": {"kafka.linger.ms": "soon"}}, "linger"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    given = {"sink_id": "sink", "topic": "topic", **arguments}
    with pytest.raises(InvalidConfigurationError, match=message):
        ExactlyOnceKafkaSink(SERVERS, **given)


def test_an_unknown_option_gets_a_hint():
    with pytest.raises(UnknownConfigError, match="did you mean topic"):
        read_options(SERVERS, None, {"topics": "x"})
    with pytest.raises(UnknownConfigError, match=r"linger\.ms"):
        read_options(SERVERS, "t", {"kafka.lingr.ms": "1"})


def test_settings_with_the_prefix_reach_the_producer():
    settings = read_options(SERVERS, "t", {"kafka.linger.ms": 7, "transactionTimeout": "60000"})
    assert settings.producer["linger.ms"] == "7"
    assert settings.transaction_timeout_ms == 60_000


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
