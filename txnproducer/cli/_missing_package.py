"""The error of a command that lacks an optional package."""

from __future__ import annotations

from typing import Final

import click

EXIT_FATAL: Final = 4


class MissingPackageError(click.ClickException):
    """A package is not installed. The text has the command that installs it."""

    exit_code = EXIT_FATAL  # a person has to change something first

    def __init__(self, what: str, package: str, requirement: str) -> None:
        super().__init__(
            f"`{what}` needs {package}, which is not installed: run `pip install {requirement}`."
        )
