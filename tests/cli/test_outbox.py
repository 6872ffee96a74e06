"""The command `outbox`: usage errors, and the commands that need no broker."""

from __future__ import annotations

import signal

import pytest
from click.testing import CliRunner

from txnproducer.cli.main import main
from txnproducer.cli.outbox import ALL_SHARDS
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
    missing = run("status")
    assert missing.exit_code != 0
    assert "create_tables()" in missing.output
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
    result = run("run", "-b", "127.0.0.1:1", *arguments)
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_a_relay_takes_settings_as_every_command_does(run):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = run("run", "-b", "127.0.0.1:1", "--relay-id", "a", "-X", "linger.ms=0")
    assert (result.exit_code, "create_tables()" in result.output) == (4, True), result.output
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_database_that_is_no_url_or_cannot_be_reached_is_one_line(run, tmp_path):
    result = run("status", database="nonsense")
    assert (result.exit_code, "--database" in result.output) == (2, True)
    result = run("status", database=f"sqlite:///{tmp_path}/no/such/folder/x.db")
    assert (result.exit_code, "unable to open database file" in result.output) == (1, True)


def test_a_password_with_an_at_sign_is_refused_unless_it_is_escaped(run):
    result = run("status", database="postgresql+psycopg://me:geh@eim@127.0.0.1:1/x")
    assert (result.exit_code, "%40" in result.output) == (2, True)
    assert "eim" not in result.output


def test_a_password_of_the_database_is_not_shown(run):
    result = run("status", database="postgresql+psycopg://me:geheim@127.0.0.1:1/x")
    assert result.exit_code == 1
    assert "geheim" not in result.output
    assert "me:***@127.0.0.1:1" in result.output
