"""Options that several subcommands share, above all those by which they reach a cluster.

Owns: the options `-b`, `-X`, `--secret` and `--config`, and their order of precedence; the option
`-o`. Must not know: any subcommand.
Rules:
* A value on the command line overrides the file, the file overrides the environment.
* A secret in an argument is used, with a warning: other users of the machine can read arguments.
* A setting that is given twice on the command line is refused.
* A file may be shared with a consumer, or with a program that has serializers. Their keys are
  ignored, with one warning.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from txnproducer.cli._option_checks import not_empty
from txnproducer.config import ProducerConfig
from txnproducer.config._files import read_settings as read_file
from txnproducer.config._java_security import JAVA_SECURITY_KEYS
from txnproducer.config._settings import SETTINGS
from txnproducer.config._unsupported import CONSUMER_KEYS
from txnproducer.errors import (
    InvalidConfigurationError,
    InvalidTopicError,
    KafkaTimeoutError,
    TopicAuthorizationError,
)
from txnproducer.producer import TransactionalProducer

BOOTSTRAP_VARIABLE = "TXNPRODUCER_BOOTSTRAP"
SECRETS = frozenset(
    [name.replace("_", ".") for name, setting in SETTINGS.items() if setting.secret]
    # A `.config` is a JAAS line, which holds the password as well.
    + [key for key in JAVA_SECURITY_KEYS if key.endswith((".password", ".config"))]
)
# The commands send and compare bytes.
_SERIALIZERS = frozenset({"key.serializer", "value.serializer"})
# The longest wait for a broker before a command begins its work.
_LONGEST_REACH_MS = 15_000
# No topic can have this name, so every broker answers, and none creates a topic.
_NO_TOPIC = "?"
_F = TypeVar("_F", bound=Callable[..., Any])


def cluster_options(function: _F) -> _F:
    """Add the options for the cluster's address and the login."""
    # In reverse: click shows the option that is added last first.
    for option in (
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            metavar="NAME[=env:VARIABLE|file:PATH]",
            help="A setting whose value is asked for, or read from an environment variable or a"
            " file; may be repeated.",
        ),
        click.option(
            "-X",
            "--set",
            "pairs",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of the producer, Java's name or ours; may be repeated.",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False),
            help="A file with settings, of Java's properties or TOML; ${env:NAME} and"
            " ${file:PATH:KEY} in its values are replaced.",
        ),
        click.option(
            "-b",
            "--bootstrap-servers",
            metavar="HOST:PORT[,...]",
            callback=not_empty(f"the brokers of ${BOOTSTRAP_VARIABLE}"),
            help=f"Brokers to begin with; default ${BOOTSTRAP_VARIABLE}.",
        ),
    ):
        function = option(function)
    return function


def output_option(text: str) -> Callable[[_F], _F]:
    """Return the option that chooses between a table and JSON.

    Args:
        text: the option's help.
    """
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help=text,
    )


def read_settings(
    bootstrap_servers: str | None,
    config_file: str | None,
    pairs: tuple[str, ...],
    secrets: tuple[str, ...],
) -> dict[str, str]:
    """Merge all sources of settings into one mapping, by Java's dotted names.

    Raises:
        click.UsageError: a pair or a secret is malformed, or no broker is named.
    """
    settings = {} if config_file is None else _from_file(config_file)
    given = [_pair(text, "-X") for text in pairs]
    # Before the secrets are added: their values are no arguments.
    _warn_of_shown_secrets(name for name, _ in given)
    given += [_secret(text) for text in secrets]
    if bootstrap_servers is not None:
        given.append(("bootstrap.servers", bootstrap_servers))
    refuse_twice(name for name, _ in given)
    # After the file: the command line overrides it.
    settings |= dict(given)
    # An empty setting is no reason to write to another cluster, which the variable may name.
    servers = settings.get("bootstrap.servers", os.environ.get(BOOTSTRAP_VARIABLE))
    if not servers:
        raise click.UsageError(
            f"no broker is named: pass -b HOST:PORT, or set {BOOTSTRAP_VARIABLE}"
            " (`txnproducer broker` runs one here)"
        )
    settings["bootstrap.servers"] = servers
    return settings


def security_of(config: ProducerConfig) -> dict[str, Any]:
    """Return the security settings that are set, for kafka-python's clients."""
    return {name: value for name, value in config.security.items() if value is not None}


def refuse_twice(names: Iterable[str]) -> None:
    """Refuse settings that the command line gives twice, since one of them would be ignored."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise click.UsageError(
            f"{', '.join(twice)}: given twice on the command line; give it once"
        )


def reach(config: ProducerConfig, longest_s: float = math.inf) -> None:
    """Connect to the cluster with our own client. Its errors name the reason of a failure.

    Args:
        config: of the producer that the command uses.
        longest_s: the command's time-out.

    Raises:
        KafkaError: no broker could be reached, or it refused the login.
    """
    wait_ms = round(min(config.max_block_ms, _LONGEST_REACH_MS, longest_s * 1000))
    # Without the id: an attempt to reach the cluster must not fence a producer that runs. Without
    # idempotence, since nothing is written: an id would need a right, and its refusal be logged.
    plain = config.replace(transactional_id=None, enable_idempotence=False, max_block_ms=wait_ms)
    try:
        with (
            TransactionalProducer.from_config(plain) as producer,
            # Both are answers of a broker that has accepted the login, which is all that is asked.
            suppress(InvalidTopicError, TopicAuthorizationError),
        ):
            producer.partitions_for(_NO_TOPIC)
    except KafkaTimeoutError as error:
        # Its text begins with a call that the user has not made.
        why = str(error).removeprefix(
            f"partitions_for got no answer within max_block_ms={wait_ms}"
        )
        told = KafkaTimeoutError(f"the cluster did not answer within {wait_ms} ms{why}")
        told.causes = error.causes
        raise told from error.__cause__


def _from_file(path: str) -> dict[str, str]:
    try:
        found = read_file(path)
    except InvalidConfigurationError as error:
        raise click.UsageError(f"--config {error}") from error
    settings = {name.replace("_", "."): value for name, value in found.items()}
    unused = sorted((CONSUMER_KEYS | _SERIALIZERS) & settings.keys())
    if unused:
        click.echo(
            f"Warning: {path} has settings that are not used here (of a consumer, or of"
            f" serializers): {', '.join(unused)}.",
            err=True,
        )
    return {name: value for name, value in settings.items() if name not in unused}


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{what} cannot be read: {error}") from error


def _warn_of_shown_secrets(given: Iterable[str]) -> None:
    shown = sorted(SECRETS.intersection(given))
    if shown:
        click.echo(
            f"Warning: -X shows {', '.join(shown)} to everybody who can list this machine's"
            " processes; --secret NAME asks for a setting, and --secret NAME=env:VARIABLE or"
            " --secret NAME=file:PATH reads it.",
            err=True,
        )


def _secret(text: str) -> tuple[str, str]:
    """Return the name and the value of a secret, which is never shown."""
    name, equals, source = text.partition("=")
    name = name.strip().replace("_", ".")
    kind, _, place = source.partition(":")
    if name and not equals:
        value = _ask(name)
    elif name and kind == "env" and place:
        if place not in os.environ:
            raise click.UsageError(f"--secret {name}: there is no environment variable {place}")
        value = os.environ[place]
    elif name and kind == "file" and place:
        # Editors and `echo` end a file with a line break, which is no part of the secret.
        value = _read(place, f"--secret {name}: {place}").rstrip("\r\n")
    else:
        # The text is not shown: it may be the secret itself.
        raise click.UsageError("--secret takes NAME, NAME=env:VARIABLE or NAME=file:PATH")
    return name, value


def _ask(name: str) -> str:
    if not has_terminal():
        raise click.UsageError(f"--secret {name}: there is no terminal to ask at")
    # On the standard error: the standard output carries the result for scripts.
    value: str = click.prompt(name, hide_input=True, err=True)
    return value


def has_terminal() -> bool:
    """Return whether somebody can be asked for a secret."""
    try:
        # As `getpass` does: the records may come from the standard input.
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True


def _pair(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # Without the text, which may hold a secret.
        raise click.UsageError(f"{where}: not of the form NAME=VALUE")
    return name.strip().replace("_", "."), value.strip()
