"""The options of the data source, and the texts of their refusals."""

from __future__ import annotations

import pickle

import pytest

from txnproducer.errors import InvalidConfigurationError, UnknownConfigError
from txnproducer.spark import LedgerError
from txnproducer.spark.data_source_options import naming_options, read_data_source_options

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "topic", "sinkId": "sink"}
OF_A_JOB = {"queryId": "nightly", "batchId": "7"}


def read(is_streaming=True, **options):
    given = {**GIVEN, **options}
    chosen = {name: value for name, value in given.items() if value is not None}
    return read_data_source_options(chosen, is_streaming=is_streaming)


def test_the_defaults_are_the_sinks():
    settings = read()
    assert settings.ledger.sink_id == "sink"
    assert settings.ledger.topic == "topic"
    assert settings.rules.on_missing_ledger == settings.rules.on_foreign_ledger == "stop"
    assert settings.sink.on_replay_mismatch == "stop"
    assert settings.sink.include_headers
    assert (settings.sink.query_id, settings.batch_id) == (None, None)


def test_names_are_taken_without_regard_to_case_as_spark_hands_them_over():
    options = {
        "KAFKA.Linger.MS": "7",
        "ledgertopic": "ledger",
        "ONMISSINGLEDGER": "write",
        "onreplaymismatch": "keep",
        "onforeignledger": "take_over",
        "includeheaders": "false",
        "transactiontimeout": "60000",
        "checkpointlocation": "/somewhere",
    }
    settings = read(**options)
    assert settings.sink.producer["linger.ms"] == "7"
    assert settings.ledger.topic == "ledger"
    assert settings.rules.on_missing_ledger == "write"
    assert settings.rules.takes_over
    assert settings.sink.on_replay_mismatch == "keep"
    assert not settings.sink.include_headers
    assert settings.sink.transaction_timeout_ms == 60_000


@pytest.mark.parametrize(("option", "value"), [("kafka.acks", "1"), ("kafka.retries", "0")])
@pytest.mark.parametrize("is_streaming", [True, False])
def test_options_that_no_transactional_producer_takes_are_refused_before_a_task(
    option, value, is_streaming
):
    more = {} if is_streaming else OF_A_JOB
    with pytest.raises(InvalidConfigurationError, match=f"^{option}={value} cannot be set"):
        read(is_streaming, **{option: value}, **more)
    with pytest.raises(InvalidConfigurationError, match=r"^kafka\.delivery\.timeout\.ms=10 "):
        read(is_streaming, **{"kafka.delivery.timeout.ms": "10"}, **more)


def test_a_batch_job_names_the_query_of_its_batch_ids():
    settings = read(is_streaming=False, **OF_A_JOB)
    assert (settings.sink.query_id, settings.batch_id) == ("nightly", 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": None}, r"kafka\.bootstrap\.servers is missing"),
        ({"sinkId": None}, "sinkId is missing"),
        ({"sinkId": "a b"}, "letters, digits"),
        ({"topic": None}, r"ledgerTopic .*is needed"),
        ({"atomicity": "batch"}, "foreachBatch"),
        ({"atomicity": "prepared"}, "foreachBatch"),
        ({"atomicity": "row"}, "atomicity"),
        ({"onMissingLedger": "x"}, "onMissingLedger"),
        ({"onReplayMismatch": "x"}, "onReplayMismatch"),
        ({"onForeignLedger": "x"}, "onForeignLedger"),
        ({"transactionTimeout": "soon"}, "transactionTimeout"),
        ({"includeHeaders": "maybe"}, "includeHeaders"),
        ({"kafka.transactional.id": "x"}, "transactional.id"),
        ({"batchId": "0"}, "leave it out"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    with pytest.raises(InvalidConfigurationError, match=message):
        read(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queryId": None}, "needs the option.*queryId:? "),
        ({"batchId": None}, "batchId"),
        ({"queryId": None, "batchId": None}, "queryId and batchId"),
        ({"batchId": "-1"}, "from 0 to"),
        ({"batchId": str(1 << 62)}, r"from 0 to 2\*\*62 - 1"),
        ({"batchId": "9" * 5000}, r"from 0 to 2\*\*62 - 1"),
    ],
)
def test_a_batch_job_guesses_nothing(options, message):
    with pytest.raises(InvalidConfigurationError, match=message):
        read(is_streaming=False, **{**OF_A_JOB, **options})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sinkid2", "did you mean sinkId"),
        ("writers", r"repartition\(n\)"),
        ("xyz", "there are sinkId, .*onForeignLedger"),
    ],
)
def test_an_unknown_option_gets_a_hint(name, message):
    with pytest.raises(UnknownConfigError, match=message):
        read(**{name: "1"})


def test_errors_of_the_sink_name_the_options_as_they_are_written():
    with (
        pytest.raises(LedgerError, match=r'onForeignLedger="take_over", or another sink id'),
        naming_options(),
    ):
        raise LedgerError('on_foreign_ledger="take_over", or another sink id')


def test_the_settings_travel_to_the_tasks():
    settings = read(**{"kafka.linger.ms": "5"})
    assert pickle.loads(pickle.dumps(settings)) == settings
