"""Ctrl-C for tests that are about it."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """Make Ctrl-C work here and in child processes: a shell turns it off for background jobs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
