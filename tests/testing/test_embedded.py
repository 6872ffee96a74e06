"""`EmbeddedKafka` without Java: order of the calls, refusals, files and processes at the end."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from txnproducer import admin
from txnproducer.testing import (
    BrokerStartError,
    EmbeddedKafka,
    EmbeddedKafkaError,
    JarsUnavailableError,
    PortInUseError,
    _ports,
    embedded,
)
from txnproducer.testing._java import Java
from txnproducer.testing._ports import PortClaims
from txnproducer.testing._tools import KafkaTools

# A broker that listens on its PLAINTEXT port, and stands for the real one.
BROKER = """
import re, socket, sys, time
text = open(sys.argv[-1]).read()
port = int(re.search(r"(?<!_)PLAINTEXT://127.0.0.1:(\\d+)", text).group(1))
server = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
time.sleep(60)  # until it is killed
"""


class FakeTools(KafkaTools):
    """Formats nothing, and starts a program of ours instead of Kafka."""

    program = BROKER

    def broker_command(self, jvm_options, properties):
        return [sys.executable, "-I", "-S", "-c", self.program, str(properties)]

    def format_storage(self, cluster_id, properties, features, scram, log_path):
        log_path.write_text(f"formatted {cluster_id} {dict(features)} {list(scram)}\n")


@pytest.fixture(autouse=True)
def fake_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "find_java", lambda version: Java(Path("java"), 17))
    monkeypatch.setattr(embedded, "kafka_jars", lambda version, report: [Path("kafka.jar")])
    monkeypatch.setattr(embedded, "KafkaTools", FakeTools)
    monkeypatch.setattr(FakeTools, "program", BROKER)
    monkeypatch.setattr(admin, "wait_for_brokers", lambda *_, **__: [1])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_cluster_is_ready_when_every_node_knows_the_others(monkeypatch):
    asked = []

    def wait(address, expected, timeout):
        asked.append((address, expected([1, 2, 3]), expected([1, 2])))

    monkeypatch.setattr(admin, "wait_for_brokers", wait)
    with EmbeddedKafka(3) as kafka:
        addresses = kafka.bootstrap_servers.split(",")
    assert asked == [(address, True, False) for address in addresses]


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


def test_a_cluster_is_ready_inside_its_block_and_gone_after_it(tmp_path):
    with EmbeddedKafka(3) as kafka:
        assert len(kafka.bootstrap_servers.split(",")) == 3
        pids = [kafka.node_pid(index) for index in range(3)]
        assert all(kafka.is_node_running(index) for index in range(3))
    assert leftovers(tmp_path) == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_port_that_is_taken_is_named_before_anything_is_started(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"Port {port} .* in use"):
            EmbeddedKafka(port=port).start()
    assert all(not (tmp_path / name / "data").exists() for name in leftovers(tmp_path))


@pytest.mark.parametrize("version", ["foo", "../../x", "4", "", "4.3.1/x", "4.3.1\n"])
def test_a_version_that_is_no_version_is_refused_before_anything_is_started(version):
    with pytest.raises(EmbeddedKafkaError, match=r"version is .*: it must be like 4\.3\.1"):
        EmbeddedKafka(version=version)


def test_a_data_dir_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "lines.txt").touch()
    for folder in (tmp_path / "lines.txt" / "sub", Path("/proc/x")):
        with pytest.raises(EmbeddedKafkaError, match=f"{folder}: the folder cannot be written: "):
            EmbeddedKafka(data_dir=folder).start()


def test_a_data_dir_is_for_one_cluster_at_a_time(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path / "data"):
        with pytest.raises(EmbeddedKafkaError, match="another broker uses this folder"):
            EmbeddedKafka(data_dir=tmp_path / "data").start()
    with EmbeddedKafka(data_dir=tmp_path / "data"):
        pass


def test_a_missing_package_for_tls_is_named_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "trustme", None)
    monkeypatch.setattr(embedded, "kafka_jars", lambda *_: pytest.fail("it fetched Kafka"))
    with pytest.raises(EmbeddedKafkaError, match="needs trustme") as refused:
        EmbeddedKafka(listeners=("SASL_SSL",)).start()
    assert not hasattr(refused.value, "__notes__")
    assert leftovers(tmp_path) == []


def test_the_errors_in_a_log_are_shown_instead_of_its_end(monkeypatch):
    program = (
        "print('2026-01-01 00:00:00 [main] [ERROR] k.S - Exiting: no space left');"
        "[print(f'2026-01-01 00:00:01 [main] [INFO] k.S - shutting down {n}') for n in range(30)];"
        "raise SystemExit(3)"
    )
    monkeypatch.setattr(FakeTools, "program", program)
    with pytest.raises(BrokerStartError, match="no space left") as refused:
        EmbeddedKafka().start()
    assert "shutting down" not in str(refused.value)


def test_a_port_that_is_asked_for_is_that_of_the_first_listener():
    with PortClaims("127.0.0.1") as claims:
        [port] = claims.choose(1)
    with EmbeddedKafka(port=port) as kafka:
        assert kafka.bootstrap_servers == f"127.0.0.1:{port}"


def test_a_broker_that_ends_is_reported_with_the_end_of_its_log_which_is_kept(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(FakeTools, "program", "print('no space left'); raise SystemExit(3)")
    with pytest.raises(BrokerStartError, match=r"ended \(3\)") as refused:
        EmbeddedKafka().start()
    assert "no space left" in str(refused.value)
    kept = refused.value.__notes__[0].rpartition(" ")[2].rstrip(".")
    assert "no space left" in (Path(kept) / "node-0.log").read_text()
    assert not (Path(kept).parent / "data").exists()


def test_a_broker_that_never_listens_is_given_up_and_killed(monkeypatch):
    # It runs much longer than the time to start, and opens no port.
    monkeypatch.setattr(FakeTools, "program", "import time; time.sleep(60)")
    kafka = EmbeddedKafka(startup_timeout=0.2)
    with pytest.raises(BrokerStartError, match=r"not ready within 0\.2 s"):
        kafka.start()
    with pytest.raises(EmbeddedKafkaError, match="not running"):
        kafka.node_pid(0)


def test_an_error_in_the_block_keeps_the_logs_and_says_where():
    with pytest.raises(ValueError, match="of the caller") as raised, EmbeddedKafka():
        raise ValueError("of the caller")
    kept = Path(raised.value.__notes__[0].rpartition(" ")[2].rstrip("."))
    assert (kept / "node-0.log").exists()


def test_ctrl_c_in_the_block_keeps_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), EmbeddedKafka():
        raise KeyboardInterrupt
    assert leftovers(tmp_path) == []


def test_nothing_is_left_when_the_jars_cannot_be_had(monkeypatch, tmp_path):
    def refuse(version, report):
        raise JarsUnavailableError("no network")

    monkeypatch.setattr(embedded, "kafka_jars", refuse)
    with pytest.raises(JarsUnavailableError, match="no network"):
        EmbeddedKafka().start()
    assert leftovers(tmp_path) == []


def test_no_folder_is_removed_when_none_could_be_made(monkeypatch, tmp_path):
    def refuse(**_):
        raise OSError("no space left on device")

    removed = []
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(shutil, "rmtree", lambda folder, **_: removed.append(folder))
    with pytest.raises(OSError, match="no space"):
        EmbeddedKafka().start()
    assert removed == []


def test_a_killed_node_is_started_again_on_the_same_port():
    with EmbeddedKafka(2) as kafka:
        address = kafka.bootstrap_servers
        before = kafka.node_pid(1)
        kafka.kill_node(1)
        assert not kafka.is_node_running(1)
        assert kafka.is_node_running(0)
        kafka.start_node(1)
        assert kafka.node_pid(1) != before
        assert kafka.bootstrap_servers == address


def test_a_running_node_is_not_started_twice():
    with EmbeddedKafka() as kafka, pytest.raises(EmbeddedKafkaError, match="running already"):
        kafka.start_node(0)


def test_a_node_that_does_not_exist_is_named_with_those_that_do():
    with EmbeddedKafka(2) as kafka, pytest.raises(EmbeddedKafkaError, match="0 to 1"):
        kafka.kill_node(2)


def test_a_cluster_is_not_started_twice_but_may_be_stopped_twice():
    kafka = EmbeddedKafka()
    kafka.start()
    with pytest.raises(EmbeddedKafkaError, match="running already"):
        kafka.start()
    kafka.stop()
    kafka.stop()
    with pytest.raises(EmbeddedKafkaError, match="not running"):
        _ = kafka.bootstrap_servers


def test_a_folder_of_the_callers_is_kept_with_the_identity_of_its_cluster(tmp_path):
    mine = tmp_path / "mine"
    with EmbeddedKafka(data_dir=mine):
        identity = (mine / "conf" / "cluster.id").read_text()
    with EmbeddedKafka(data_dir=mine):
        assert (mine / "conf" / "cluster.id").read_text() == identity


def test_features_and_the_users_of_scram_are_given_to_the_formatting(tmp_path):
    with EmbeddedKafka(
        features={"transaction.version": 1},
        listeners=("SASL_PLAINTEXT",),
        sasl_mechanisms=("PLAIN", "SCRAM-SHA-512"),
        users={"carol": "word"},
    ) as kafka:
        said = kafka.node_log(0).read_text()
    assert "{'transaction.version': 1}" in said
    assert "SCRAM-SHA-512=[name=carol,password=word]" in said
    assert "PLAIN=" not in said


def test_security_settings_are_those_of_the_listener():
    with EmbeddedKafka(listeners=("SASL_PLAINTEXT", "PLAINTEXT")) as kafka:
        assert kafka.security_config(user="bob", mechanism="SCRAM-SHA-256") == {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "bob",
            "sasl_plain_password": "bob-secret",
        }
        assert kafka.security_config(listener="PLAINTEXT") == {"security_protocol": "PLAINTEXT"}
        with pytest.raises(EmbeddedKafkaError, match="no user 'eve'; there are alice, bob"):
            kafka.security_config(user="eve")
        with pytest.raises(EmbeddedKafkaError, match="no SSL listener"):
            kafka.addresses("SSL")
        with pytest.raises(EmbeddedKafkaError, match="no TLS listener"):
            _ = kafka.ca_pem_path


def test_a_tls_listener_has_a_certificate_for_the_address_that_clients_use():
    import ssl

    with EmbeddedKafka(listeners=("SSL",)) as kafka:
        context = ssl.create_default_context(cafile=str(kafka.ca_pem_path))
        names = [entry["subject"] for entry in context.get_ca_certs()]
        pem = (kafka.ca_pem_path.parent / "broker.pem").read_text()
        mode = (kafka.ca_pem_path.parent / "broker.pem").stat().st_mode & 0o777
    assert names
    assert pem.startswith("-----BEGIN PRIVATE KEY-----")
    assert "BEGIN CERTIFICATE" in pem
    assert mode == 0o600


def test_a_forked_child_leaves_the_brokers_to_their_owner():
    with EmbeddedKafka() as kafka:
        child = os.fork()
        if child == 0:
            kafka.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert kafka.is_node_running(0)
        assert kafka.node_log(0).exists()


def test_the_tool_that_reads_a_log_has_another_class_before_kafka_4(monkeypatch, tmp_path):
    from txnproducer.testing import _tools

    commands = []

    def remember(what, command, log_path, timeout):
        commands.append(command)
        return ""

    monkeypatch.setattr(_tools, "run_tool", remember)
    for version in ("4.3.1", "3.9.1"):
        tools = _tools.KafkaTools(version, Java(Path("java"), 17), [Path("a.jar")])
        tools.dump_log([Path("0.log")], tmp_path)
    assert "org.apache.kafka.tools.DumpLogSegments" in commands[0]
    assert "kafka.tools.DumpLogSegments" in commands[1]


def test_java_gets_the_home_folder_since_it_ignores_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    from txnproducer.testing import _tools

    tools = _tools.KafkaTools("4.3.1", Java(Path("java"), 17), [Path("a.jar")])
    assert f"-Duser.home={tmp_path}" in tools.broker_command([], tmp_path / "conf")


def test_another_cluster_does_not_get_the_port_of_a_stopped_node(monkeypatch):
    with EmbeddedKafka() as kafka:
        ports = kafka._nodes.layout.ports[0]
        own = {ports.controller, *ports.listeners.values()}
        # The ports of the one cluster, and as many more as the other one needs.
        with PortClaims("127.0.0.1") as claims:
            spare = claims.choose(2)
        monkeypatch.setattr(_ports, "_PORT_RANGE", sorted([*own, *spare]))
        kafka.kill_node(0)
        with EmbeddedKafka() as other:
            assert other.bootstrap_servers != kafka.bootstrap_servers
            kafka.start_node(0)
            assert other.is_node_running(0)
