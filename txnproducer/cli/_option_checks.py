"""The refusal of options that are empty texts, texts that are not UTF-8, or endless numbers.

Why it exists: a shell makes an empty text of "$RUN" if the variable is not set. A command that
takes it for "not given" goes on with a default that the user does not expect. `nan` and `inf` are
floats, and no share, rate or time. Python keeps bytes of an argument that are not UTF-8 as code
points that no UTF-8 has.
Owns: the checks and their texts. Must not know: any subcommand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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


def check_utf8(ctx: click.Context, param: click.Parameter, text: str) -> None:
    """Refuse a text that UTF-8 cannot encode.

    Raises:
        click.BadParameter: it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"{text!r} is not UTF-8", ctx, param) from error


class NumberRange(click.FloatRange):
    """A range of numbers. `nan` is in every range of click's, and `inf` in each without an end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return a finite number of the range.

        Raises:
            click.BadParameter: it is none.
        """
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number that has an end", param, ctx)
        return number
