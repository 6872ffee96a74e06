"""The group of all subcommands, with their exit codes and error texts.

Owns: the table of subcommands, loading them, the exit codes.
Must not know: what a subcommand does. Each file exposes a click command named `command`.

Rules:
* A subcommand is imported when it is run or asked for its help, which needs no optional package:
  it imports those when it runs. If one is missing, the group says so, with the extra that has it.
  The line of help stands in the table, so that help imports nothing.
* Exit codes: 0 done, 1 any other failure, 2 usage, 3 abort and repeat, 4 fatal or fenced,
  5 outcome unknown, 130 Ctrl-C. They follow the error's `recovery`, unless the error or one of
  its causes is of a kind that a repetition would meet again.
* An error of Kafka is one line for people; a stack trace is for bugs.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from txnproducer._version import __version__
from txnproducer.cli._missing_package import EXIT_FATAL, MissingPackageError
from txnproducer.cli._streams import Messages, named_failures, replace_closed_output
from txnproducer.errors import (
    FencedInstanceIdError,
    InvalidConfigurationError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    ThrottlingQuotaExceededError,
    UnknownConfigError,
    UnknownTopicOrPartitionError,
)

EXIT_USAGE = 2
EXIT_ABORTABLE = 3
EXIT_UNKNOWN = 5
# As a shell reports a command that SIGINT has ended: 128 and the signal's number.
EXIT_INTERRUPTED = 130

# A repetition would not help, whatever the producer itself could still do: the same command would
# be fenced again, or fence its successor, or meet a problem that only a person can solve. The same
# holds for all kinds of `fix`.
_NEEDS_A_PERSON = (
    ProducerFencedError,
    InvalidProducerEpochError,
    FencedInstanceIdError,
    UnknownTopicOrPartitionError,
    ThrottlingQuotaExceededError,
)

_EXIT_CODES = {
    "abort": EXIT_ABORTABLE,
    # Nothing is broken: the same command can be run again.
    "resume": EXIT_ABORTABLE,
    "restart": EXIT_FATAL,
    "fix": EXIT_FATAL,
    "unknown": EXIT_UNKNOWN,
}

_ENDED = "This command has ended, and with it the attempt"
# A time-out names Python calls and says that they go on. After the end of a command nothing goes
# on.
_PLAIN = (
    (r"It goes on in the background: call \w+\(\) again to wait for it, or close\(\)", _ENDED),
    (r"They go on; call flush\(\) again to wait for them", _ENDED),
    (r"\. abort_transaction\(\) gives up instead; .* may stay unknown", ""),
    (r"\binit_transactions did not finish", "getting the transactional id ready did not finish"),
    (r"\b(commit|abort)_transaction did not finish", r"the \1 did not finish"),
    (r"\bflush did not finish", "the delivery of the records did not finish"),
)


@dataclass(frozen=True)
class Subcommand:
    """The module of a subcommand, its line of help, and the extra that it needs."""

    module: str
    help: str
    extra: str | None = None


SUBCOMMANDS = {
    "broker": Subcommand("broker", "Run a real Apache Kafka, no Docker needed.", "testing"),
    "demo": Subcommand("demo", "Stream a data set through Spark exactly once.", "demo"),
    "outbox": Subcommand("outbox", "Send the rows of a database table, each once.", "outbox"),
    "send": Subcommand("send", "Send lines or generated records in transactions."),
    "simulate": Subcommand("simulate", "Run the core under seeded faults, in virtual time."),
    "sink-status": Subcommand(
        "sink_status", "Show what a Spark sink has committed.", "spark-cluster"
    ),
    "verify": Subcommand("verify", "Read a topic back and count what was committed."),
}


def exit_code_for(error: KafkaError) -> int:
    """Return the exit code for an error, by which a script can choose its next step."""
    # Not their subclasses: missing rights, for example, are no wrong usage. A host that does not
    # exist is no wrong usage either, since it is found out by trying.
    if type(error) in (InvalidConfigurationError, UnknownConfigError) and not error.causes:
        return EXIT_USAGE
    code = _EXIT_CODES.get(error.recovery, EXIT_FATAL)
    if code == EXIT_ABORTABLE and any(_needs_a_person(each) for each in _with_causes(error)):
        return EXIT_FATAL
    return code


def _needs_a_person(error: KafkaError) -> bool:
    # The class, since the instance describes the producer's options, not those of the command.
    return isinstance(error, _NEEDS_A_PERSON) or type(error).recovery == "fix"


def _with_causes(error: BaseException | None) -> Iterator[KafkaError]:
    """Yield an error and its causes."""
    while error is not None:
        if isinstance(error, KafkaError):
            yield error
        error = error.__cause__


class LazyGroup(click.Group):
    """A click group that imports a subcommand when it is run."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program, which owns its standard streams."""
        Messages.use()
        replace_closed_output()
        return super().__call__(*args, **kwargs)

    @named_failures()
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments, and print the help or the version if they ask for it."""
        return super().make_context(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the help's order."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a subcommand."""
        entry = SUBCOMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"txnproducer.cli.{entry.module}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the table of subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in SUBCOMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a subcommand, and turn its failure into a line and an exit code."""
        try:
            with named_failures():
                return super().invoke(ctx)
        except KafkaError as error:
            # Not raised again: its stack trace would show the library, and no mistake of the user.
            click.echo(f"Error: {_lines(error)}", err=True)
            ctx.exit(exit_code_for(error))
        except ModuleNotFoundError as error:
            name = ctx.invoked_subcommand or ""
            extra = SUBCOMMANDS[name].extra if name in SUBCOMMANDS else None
            # A module of our own that is missing is a bug, and needs its stack trace.
            if extra is None or error.name is None or error.name.startswith("txnproducer"):
                raise
            raise MissingPackageError(name, error.name, f'"txnproducer[{extra}]"') from error
        except (KeyboardInterrupt, click.Abort):
            # A command that has begun says itself how it ends.
            if not getattr(sys.stderr, "is_used", False):
                click.echo("Interrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)


def _lines(error: KafkaError) -> str:
    # Notes are shown by tracebacks only, and there is none here.
    notes = getattr(error, "__notes__", [])
    text = "\n".join([str(error), *notes])
    for call, plain in _PLAIN:
        text = re.sub(call, plain, text)
    return text


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="txnproducer")
def main() -> None:
    """Exactly-once writes into Apache Kafka from Python and Spark."""
