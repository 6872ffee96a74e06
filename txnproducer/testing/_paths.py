"""The places of the test kit's files: the user's home and the per-user cache.

Rules: HOME is used first, as in every Unix program. Without it the password database is asked, so
that a container with an empty environment works too. Nothing here creates a folder.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

CACHE_VARIABLE = "TXNPRODUCER_CACHE"


def home_dir() -> Path:
    """Return the user's home folder, from HOME, or from the password database without it."""
    home = os.environ.get("HOME")
    if home:
        return Path(home)
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def cache_dir() -> Path:
    """Return the folder for files that are fetched once per user.

    `TXNPRODUCER_CACHE` names it; otherwise it is `txnproducer` under `XDG_CACHE_HOME`, or under
    `.cache` in the home folder.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    # The XDG specification says to ignore a relative path.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else home_dir() / ".cache"
    return base / "txnproducer"
