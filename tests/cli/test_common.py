"""Subcommands take settings from files and pairs, keep secrets out of texts, and name mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from txnproducer.cli import _common, main
from txnproducer.cli._common import cluster_options, read_settings
from txnproducer.testing import InMemoryKafka


@click.command()
@cluster_options
def show(bootstrap_servers, config_file, pairs, secrets):
    for pair in sorted(read_settings(bootstrap_servers, config_file, pairs, secrets).items()):
        click.echo("=".join(pair))


def run(*arguments, **keywords):
    return CliRunner().invoke(show, ["-b", "x:1", *arguments], **keywords)


def test_a_file_that_a_consumer_shares_is_warned_of_once(tmp_path):
    file = tmp_path / "shared.properties"
    file.write_text("group.id=g\nlinger.ms=5\n# a comment\nauto.offset.reset=earliest\n")
    done = run("--config", str(file))
    assert done.stdout.splitlines() == ["bootstrap.servers=x:1", "linger.ms=5"]
    assert done.stderr.count("Warning") == 1
    assert "auto.offset.reset, group.id" in done.stderr


def test_a_continued_line_of_a_file_is_read_as_java_reads_it(tmp_path):
    file = tmp_path / "jaas.properties"
    file.write_text(
        "sasl.jaas.config=a.Login required \\\n    username=me \\\n\tpassword=p\\\\\nlinger.ms=5\n"
    )
    done = run("--config", str(file))
    assert done.stdout.splitlines() == [
        "bootstrap.servers=x:1",
        "linger.ms=5",
        "sasl.jaas.config=a.Login required username=me password=p\\",
    ]


def test_a_file_is_read_as_by_a_program(tmp_path):
    file = tmp_path / "client.toml"
    file.write_text('linger_ms = 7\nclient.id = "${env:WHO}"\nkey.serializer = "a.Java"\n')
    done = run("--config", str(file), "-X", "linger.ms=8", env={"WHO": "me"})
    assert done.stdout.splitlines() == ["bootstrap.servers=x:1", "client.id=me", "linger.ms=8"]
    assert "key.serializer" in done.stderr
    missing = run("--config", str(file), env={"WHO": None})
    assert missing.exit_code == 2
    assert f"--config {file}: client.id needs the environment variable WHO" in missing.stderr


def test_a_consumers_key_on_the_command_line_is_no_shared_file():
    done = run("-X", "group.id=g")
    assert "group.id=g" in done.stdout  # which the configuration refuses


@pytest.mark.parametrize(
    "name", ["sasl_plain_password", "sasl.plain.password", "ssl.key.password", "sasl.jaas.config"]
)
def test_a_secret_among_the_arguments_is_warned_of_and_not_shown(name):
    done = run("-X", f"{name}=hunter2")
    assert done.stderr.startswith("Warning: -X ")
    assert "--secret" in done.stderr
    assert "hunter2" not in done.stderr
    assert "hunter2" in done.stdout


def test_other_settings_are_not_warned_of():
    assert run("-X", "linger.ms=5").stderr == ""


def test_a_secret_comes_from_the_environment_a_file_or_a_prompt(tmp_path, monkeypatch):
    monkeypatch.setattr(_common, "has_terminal", lambda: True)
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    done = run(
        *("--secret", "ssl_password=env:THE_SECRET"),
        *("--secret", f"sasl.plain.password=file:{file}"),
        *("--secret", "sasl.jaas.config"),
        env={"THE_SECRET": "from = the environment"},
        input="typed\n",
    )
    assert done.stdout.splitlines()[1:] == [
        "sasl.jaas.config=typed",
        "sasl.plain.password=from a file",
        "ssl.password=from = the environment",
    ]
    assert "typed" not in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("ssl.password=hunter2", "NAME=env:VARIABLE or NAME=file:PATH"),
        ("ssl.password=env:", "NAME=env:VARIABLE or NAME=file:PATH"),
        ("=env:X", "NAME=env:VARIABLE or NAME=file:PATH"),
        ("ssl.password=env:NOT_SET_ANYWHERE", "no environment variable NOT_SET_ANYWHERE"),
        ("ssl.password=file:nowhere.txt", "No such file"),
        ("ssl.password", "no terminal"),
    ],
)
def test_a_secret_that_cannot_be_read_is_a_usage_error_that_shows_nothing(
    given, told, monkeypatch
):
    monkeypatch.setattr(_common, "has_terminal", lambda: False)
    done = run("--secret", given)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "hunter2" not in done.output


def test_a_secret_is_not_asked_for_without_a_terminal():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "txnproducer", "verify", "-b", "x:1", "-t", "t"),
            *("--secret", "ssl.password"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,  # which has no terminal
    )
    assert done.returncode == 2
    *_, last = done.stderr.splitlines()
    assert last == "Error: --secret ssl.password: there is no terminal to ask at"
    assert "GetPassWarning" not in done.stderr


def test_a_line_that_is_no_setting_is_named_by_its_number_and_not_shown(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=1\nhunter2\n")
    done = run("--config", str(file))
    assert done.exit_code == 2
    assert "line 2: not of the form NAME=VALUE" in done.stderr
    assert "hunter2" not in done.output
    file.write_bytes(b"\xff\xfe")
    assert "cannot be read" in run("--config", str(file)).stderr


def test_all_secrets_among_the_arguments_are_named():
    done = run("-X", "ssl.password=a", "-X", "sasl.plain.password=b")
    assert "shows sasl.plain.password, ssl.password to everybody" in done.stderr


@pytest.mark.parametrize("command", ["send", "verify", "sink-status"])
def test_a_closed_port_is_reported_without_names_of_python_calls(command):
    topic = ["a-sink", "--ledger-topic", "t"] if command == "sink-status" else ["-t", "t"]
    limit = ["-X", "max.block.ms=300"]
    done = CliRunner().invoke(main, [command, "-b", "127.0.0.1:1", *limit, *topic], input="a\n")
    assert done.exit_code == 3
    error = done.stderr.splitlines()[-1]
    assert error.startswith("Error: the cluster did not answer within 300 ms: no connection (")
    assert "127.0.0.1:1" in error
    assert "()" not in error
    if command == "send":
        assert json.loads(done.stdout)["error"] == "KafkaTimeoutError"


def test_a_refused_login_is_logged_once_and_not_as_the_end_of_another_producer(caplog):
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.plain.username": "user",
        "sasl.plain.password": "secret",
    }
    pairs = [part for pair in login.items() for part in ("-X", "=".join(pair))]
    with InMemoryKafka(topics={"t": 1}) as kafka:
        done = CliRunner().invoke(main, ["send", "-b", kafka.listen(), "-t", "t", *pairs], "a\n")
    assert "did not expect a SASL login" in done.stderr.splitlines()[-1]
    said = [r.getMessage() for r in caplog.records if "did not expect" in r.getMessage()]
    assert len(said) == 1
    assert "idempotent producer" not in said[0]
