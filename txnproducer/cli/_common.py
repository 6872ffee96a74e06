"""What the subcommands that talk to a cluster share: how to reach it.

Owns: the options `-b`, `-X`, `--config`, their order of precedence. Must not know: any subcommand.
Rule: a value on the command line wins over the file, the file over the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

BOOTSTRAP_VARIABLE = "TXNPRODUCER_BOOTSTRAP"
_F = TypeVar("_F", bound=Callable[..., Any])


def cluster_options(function: _F) -> _F:
    """Add the options that say where the cluster is and how to log in."""
    for option in (
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
            help="A properties file with settings.",
        ),
        click.option(
            "-b",
            "--bootstrap-servers",
            metavar="HOST:PORT[,...]",
            help=f"Brokers to begin with; default ${BOOTSTRAP_VARIABLE}.",
        ),
    ):
        function = option(function)
    return function


def read_settings(
    bootstrap_servers: str | None, config_file: str | None, pairs: tuple[str, ...]
) -> dict[str, str]:
    """Merge the three sources of settings into one mapping, by Java's dotted names.

    Raises:
        click.UsageError: a pair is malformed, or no broker is named.
    """
    settings: dict[str, str] = {}
    if config_file is not None:
        for number, line in enumerate(Path(config_file).read_text("utf-8").splitlines(), 1):
            text = line.strip()
            if text and not text.startswith(("#", "!")):
                settings.update([_pair(text, f"{config_file}, line {number}")])
    settings.update(_pair(text, "-X") for text in pairs)
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    servers = bootstrap_servers or settings.get("bootstrap.servers")
    servers = servers or os.environ.get(BOOTSTRAP_VARIABLE)
    if not servers:
        raise click.UsageError(
            f"no broker is named: pass -b HOST:PORT, or set {BOOTSTRAP_VARIABLE}"
            " (`txnproducer broker` runs one here)"
        )
    settings["bootstrap.servers"] = servers
    return settings


def _pair(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{where}: {text!r} is not of the form NAME=VALUE")
    return name.strip(), value.strip()
