"""The refusal of options that are empty texts.

Why it exists: a shell makes an empty text of "$RUN" if the variable is not set. A command that
takes it for "not given" goes on with a default that the user does not expect.
Owns: the check and its text. Must not know: any subcommand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_V = TypeVar("_V")


def not_empty(default: str | None = None) -> Callable[[click.Context, click.Parameter, _V], _V]:
    """Return the callback of an option that refuses the empty text.

    Args:
        default: what the option is without a value, for the text; None if it has to be given.
    """
    way_out = "" if default is None else f"Leave the option away for {default}. "

    def check(ctx: click.Context, param: click.Parameter, value: _V) -> _V:
        # Click makes the current folder, `Path()`, of an empty path.
        if value in ("", Path()):
            raise click.BadParameter(
                f"it must not be empty. {way_out}A variable of the shell that is not set is the"
                ' usual cause, as in "$RUN"',
                ctx,
                param,
            )
        return value

    return check
