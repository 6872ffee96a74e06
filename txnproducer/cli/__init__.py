"""The command line: `txnproducer`, one file per subcommand.

It is for options, printed output and exit codes. It must not know how a transaction, a sink or the
simulator works: no other room imports it, so all that a program could need as well lies below it.
"""

from __future__ import annotations

from .main import main

__all__ = ["main"]
