"""Ctrl-C for tests that are about it."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """Undo what a shell does to commands in its background: they and theirs ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
