"""`txnproducer broker`: its options, its output, its end."""

from __future__ import annotations

import errno
import signal
import time
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from txnproducer.admin import _brokers, _settings
from txnproducer.cli import broker, main
from txnproducer.errors import KafkaTimeoutError, TopicExistsError
from txnproducer.testing import EmbeddedKafkaError, PortInUseError


class FakeKafka:
    """Stands for `EmbeddedKafka`: remembers its arguments, and runs until it is interrupted."""

    made: dict
    created: dict
    stopped_by: type[BaseException] | None
    bootstrap_servers = "127.0.0.1:9092"

    def __init__(self, nodes, version, **arguments):
        FakeKafka.made = {"nodes": nodes, "version": version, **arguments}
        FakeKafka.stopped_by = BaseException  # until it ends
        FakeKafka.created = {}
        self.nodes = nodes

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, traceback):
        FakeKafka.stopped_by = exc_type

    def create_topic(self, name, partitions):
        if name == "kept":
            raise TopicExistsError(name)
        FakeKafka.created[name] = partitions

    def addresses(self, listener):
        return f"of {listener}"

    def security_config(self):
        protocol = self.made["listeners"][0]
        return {"security_protocol": protocol, "ssl_cafile": "ca.pem"}

    def is_node_running(self, index):
        return True


@pytest.fixture(autouse=True)
def fake_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "EmbeddedKafka", FakeKafka)
    monkeypatch.setattr(FakeKafka, "made", {}, raising=False)
    monkeypatch.setattr(broker, "is_port_free", lambda port, host: True)
    monkeypatch.setattr(broker, "unknown_settings", lambda servers, names: [])
    monkeypatch.setattr(time, "sleep", interrupt)


def interrupt(seconds):
    raise KeyboardInterrupt


def run(*arguments: str):
    return CliRunner().invoke(main, ["broker", *arguments])


def test_the_address_alone_is_on_the_standard_output_for_scripts():
    assert run().stdout == "127.0.0.1:9092\n"


def test_topics_are_created_unless_they_are_there():
    assert run("--topic", "orders=4", "--topic", "kept=2", "--topic", "one").exit_code == 130
    assert FakeKafka.created == {"orders": 4, "one": 1}


@pytest.mark.parametrize("topic", ["=4", "orders=", "orders=0", "orders=many", "orders=-1"])
def test_a_topic_without_a_name_or_a_number_of_partitions_is_refused(topic):
    result = run("--topic", topic)
    assert result.exit_code == 2
    assert f"'{topic}' is not of the form name=partitions" in result.stderr


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250, "a/b"])
def test_a_name_that_no_topic_can_have_is_refused_before_the_start(name):
    result = run("--topic", f"{name}=1")
    assert result.exit_code == 2
    assert f"{name!r} is not a valid topic name" in result.stderr
    assert FakeKafka.made == {}


def test_an_argument_of_which_no_cluster_can_be_made_is_wrong_usage(monkeypatch):
    def refuse(*_, **__):
        raise EmbeddedKafkaError("version is 'foo': it must be like 4.3.1.")

    monkeypatch.setattr(broker, "EmbeddedKafka", refuse)
    result = run("--kafka-version", "foo")
    assert result.exit_code == 2
    assert "Error: version is 'foo'" in result.stderr


def test_ctrl_c_stops_the_brokers_and_ends_with_130():
    result = run()
    assert result.exit_code == 130
    assert "Stopping" in result.stderr
    assert FakeKafka.stopped_by is KeyboardInterrupt


def test_sigterm_stops_the_brokers_too(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert run().exit_code == 128 + signal.SIGTERM
    assert FakeKafka.stopped_by is SystemExit
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_address_that_cannot_be_written_is_no_failure_of_the_cluster(monkeypatch):
    def refuse(text, err=False):
        if not err:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(click, "echo", refuse)
    assert run().exit_code == 1
    assert FakeKafka.stopped_by is None


def test_a_broker_that_ends_by_itself_ends_the_command(monkeypatch):
    monkeypatch.setattr(FakeKafka, "is_node_running", lambda self, index: False)
    result = run()
    assert result.exit_code == 4
    assert "ended by itself" in result.stderr


def test_a_failure_to_start_is_one_line(monkeypatch):
    def refuse(self):
        raise PortInUseError("Port 9092 is in use.")

    monkeypatch.setattr(FakeKafka, "__enter__", refuse)
    result = run("--port", "9092")
    assert result.exit_code == 4
    assert result.stderr.endswith("Error: Port 9092 is in use.\n")


def test_options_reach_the_cluster():
    run(
        *("--nodes", "3", "--kafka-version", "3.9.1", "--transaction-version", "1"),
        *("--port", "21000", "--data-dir", "data"),
        *("--setting", "num.partitions=3", "--setting", "a.b = c=d"),
    )
    made = FakeKafka.made
    assert (made["nodes"], made["version"], made["port"]) == (3, "3.9.1", 21000)
    assert made["features"] == {"transaction.version": 1}
    assert made["settings"] == {"num.partitions": "3", "a.b": "c=d"}
    assert made["data_dir"] == "data"


def test_a_setting_that_no_broker_knows_gets_a_warning(monkeypatch):
    listed = {
        "typo": {"value": None, "config_type": "UNKNOWN"},
        "num.partitions": {"value": "3", "config_type": "INT"},
    }
    asked = []

    def ask(servers, question, timeout):
        question(client)
        return {"broker": {"1": listed}}

    client = SimpleNamespace(
        describe_cluster=lambda: {"brokers": [{"broker_id": 1}]},
        describe_configs=lambda resources, config_filter: asked.extend(resources[0].configs),
    )
    monkeypatch.setattr(_settings, "ask", ask)
    monkeypatch.setattr(broker, "unknown_settings", _brokers.unknown_settings)
    given = ("typo=1", "num.partitions=3", "listener.name.x.y=z", "config.providers=a")
    result = run(*(word for pair in given for word in ("--setting", pair)))
    assert result.stderr.count("Kafka has no setting") == 1
    assert "Kafka has no setting 'typo'" in result.stderr
    assert asked == ["typo", "num.partitions", "config.providers"]


def test_a_cluster_that_does_not_answer_about_settings_goes_on(monkeypatch):
    def refuse(*_):
        raise KafkaTimeoutError("no answer")

    monkeypatch.setattr(broker, "unknown_settings", refuse)
    assert run("--setting", "typo=1").stdout == "127.0.0.1:9092\n"


def test_the_feature_is_left_to_kafka_when_it_is_not_given():
    run()
    assert FakeKafka.made["features"] == {}


@pytest.mark.parametrize(
    ("options", "listener"),
    [
        ([], "PLAINTEXT"),
        (["--tls"], "SSL"),
        (["--sasl"], "SASL_PLAINTEXT"),
        (["--tls", "--sasl"], "SASL_SSL"),
    ],
)
def test_the_listener_follows_tls_and_sasl_and_its_settings_are_printed(options, listener):
    result = run(*options)
    assert FakeKafka.made["listeners"] == (listener,)
    assert ("security_protocol=" + listener in result.stderr) == bool(options)


@pytest.mark.parametrize("value", ["nothing", "=x"])
def test_a_setting_that_is_no_pair_is_refused_as_usage(value):
    result = run("--setting", value)
    assert result.exit_code == 2
    assert "not of the form name=value" in result.stderr


def test_the_usual_port_is_taken_where_it_is_free_and_any_other_where_not(monkeypatch):
    run("--nodes", "3")
    assert FakeKafka.made["port"] == 9092
    monkeypatch.setattr(broker, "is_port_free", lambda port, host: port != 9094)
    run("--nodes", "3")
    assert FakeKafka.made["port"] is None
