"""The command `outbox`: usage errors, and the commands that need no broker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner

from txnproducer.cli import outbox
from txnproducer.cli.main import main
from txnproducer.cli.outbox import ALL_SHARDS, _ended_by_a_signal
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.outbox import OutboxError, OutboxRelay, RelayReport, SupersededError
from txnproducer.outbox.tables import SHARDS


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the command on a database of the test's own."""
    url = f"sqlite:///{tmp_path}/outbox.db"

    def run(*arguments, database=url):
        return CliRunner().invoke(
            main, ["outbox", *arguments], env={"TXNPRODUCER_DATABASE": database}
        )

    return run


def test_a_relay_sends_all_shards_by_default():
    assert f"0-{SHARDS - 1}" == ALL_SHARDS


def test_tables_are_created_and_counted(run):
    assert run("create-tables").exit_code == 0
    assert run("status").output == "waiting: 0, dead: 0\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--relay-id", "a b"), "relay_id='a b'"),
        (("--relay-id", "a", "--shards", "3-"), "--shards"),
        (("--relay-id", "a", "--shards", "60-70"), "0 to 63"),
        (("--relay-id", "a", "-X", "transactional.id=t"), "relay_id gives it"),
        ((), "--relay-id"),
    ],
)
def test_a_wrong_option_is_named(run, arguments, text):
    assert run("create-tables").exit_code == 0
    result = run("run", "-b", "127.0.0.1:1", *arguments)
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_a_relay_takes_settings_as_every_command_does(run):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run("create-tables", "--name", "other").exit_code == 0
    result = run("run", "-b", "127.0.0.1:1", "--relay-id", "a", "-X", "linger.ms=0")
    way_out = "txnproducer outbox create-tables" in result.output
    assert (result.exit_code, way_out) == (4, True), result.output
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("database", "cause"),
    [
        ("nonsense", "URL"),
        ("nonsense://", "nonsense"),
        ("mysql://", "MySQLdb, which is not installed"),
    ],
)
def test_a_wrong_database_is_named(run, database, cause):
    result = run("status", database=database)
    found = result.exit_code, cause in result.output, "--name" in result.output
    assert found == (2, True, False), result.output


def test_a_wrong_name_is_named(run):
    result = run("create-tables", "--name", "a b")
    found = result.exit_code, "--name: " in result.output, "--database" in result.output
    assert found == (2, True, False), result.output


def test_a_database_that_cannot_be_reached_is_one_line(run, tmp_path):
    result = run("create-tables", database=f"sqlite:///{tmp_path}/no/such/folder/x.db")
    assert (result.exit_code, "unable to open database file" in result.output) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("status",), ("run", "-b", "127.0.0.1:1", "--relay-id", "a")]
)
def test_a_file_of_sqlite_that_is_missing_is_not_made_by_a_look(run, tmp_path, arguments):
    result = run(*arguments, database=f"sqlite:///{tmp_path}/nodb.db")
    found = result.exit_code, "nodb.db" in result.output, "create-tables" in result.output
    assert found == (2, True, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_a_password_with_an_at_sign_is_refused_unless_it_is_escaped(run):
    result = run("status", database="postgresql+psycopg://me:geh@eim@127.0.0.1:1/x")
    assert (result.exit_code, "%40" in result.output) == (2, True)
    assert "eim" not in result.output


def test_a_password_of_the_database_is_not_shown(run):
    result = run("status", database="postgresql+psycopg://me:geheim@127.0.0.1:1/x")
    assert result.exit_code == 1
    assert "geheim" not in result.output
    assert "me:***@127.0.0.1:1" in result.output


@pytest.fixture
def start(run, tmp_path):
    """Return a function that starts a relay of an empty outbox, as a process."""
    assert run("create-tables").exit_code == 0
    started = []

    def start(servers):
        command = [sys.executable, "-P", "-m", "txnproducer", "outbox", "run", "-b", servers]
        database = ["--database", f"sqlite:///{tmp_path}/outbox.db", "--relay-id", "a"]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen([*command, *database], stdout=pipe, stderr=pipe, text=True)
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_that_waits_for_brokers_ends_at_once_after_a_signal(start, number):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        process = start(f"127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            began_s = time.monotonic()
            process.send_signal(number)
            output, errors = process.communicate(timeout=20)
    assert time.monotonic() - began_s < 5
    assert (process.returncode, output, errors) == (0, "sent: 0\n", "")


def test_a_signal_to_a_relay_that_sends_sets_the_event_and_says_so(capfd):
    sending = cast(OutboxRelay, SimpleNamespace(has_started=True))
    with _ended_by_a_signal(sending) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert "does not wait for the batch" in capfd.readouterr().err


def test_a_signal_ends_a_relay_that_runs_once_after_the_batch_under_way(run, monkeypatch):
    def send_three_rows(relay):
        relay._rows_sent += 3
        signal.raise_signal(signal.SIGINT)
        return RelayReport(rows=3)

    monkeypatch.setattr(OutboxRelay, "has_started", True)
    monkeypatch.setattr(OutboxRelay, "run_once", send_three_rows)
    assert run("create-tables").exit_code == 0
    result = run("run", "-b", "127.0.0.1:1", "--relay-id", "a", "--once")
    assert (result.exit_code, result.stdout) == (0, "sent: 3\n")


def test_a_signal_does_not_break_a_batch_off_if_nobody_reads_the_errors(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(outbox, "_STDERR", writing)
    sending = cast(OutboxRelay, SimpleNamespace(has_started=True))
    with _ended_by_a_signal(sending) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    os.close(writing)
    assert stop.is_set()


@pytest.mark.parametrize(
    ("failure", "is_told"),
    [
        (OutboxError("the database was restored"), True),
        (SupersededError("another relay has taken over"), True),
        (KafkaTimeoutError("no broker"), False),
    ],
)
def test_a_signal_on_the_way_out_of_a_failure_does_not_hide_it(failure, is_told):
    failed = cast(OutboxRelay, SimpleNamespace(has_started=False))
    with pytest.raises(type(failure)) if is_told else nullcontext(), _ended_by_a_signal(failed):
        try:
            raise failure
        except KafkaError:
            os.kill(os.getpid(), signal.SIGTERM)
            raise
