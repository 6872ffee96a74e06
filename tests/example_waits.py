"""Print the virtual time that a file of tests waits: `python -m tests.example_waits FILE`.

Why it exists: the real time of a test depends on the other programs of the machine.
Owns: the clocks of all Kafkas in memory. Must not know: the tests.
"""

from __future__ import annotations

import os
import sys
from unittest.mock import patch

# Before the first import of the package: virtual time needs the parts in Python.
os.environ["TXNPRODUCER_IMPL"] = "python"

import pytest

from txnproducer.testing import _memory_arguments, _virtual_server


def main(path: str) -> int:
    """Run the tests of a file. Return pytest's exit code."""
    servers: list[Noted] = []

    class Noted(_virtual_server.VirtualServer):
        """A cluster that is not forgotten at its end."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.begun_ms = self._baton.now_ms
            servers.append(self)

        @property
        def waited_ms(self) -> int:
            """The time that has passed so far."""
            return self._baton.now_ms - self.begun_ms

    with (
        patch.object(_virtual_server, "VirtualServer", Noted),
        patch.object(_memory_arguments, "is_virtual", lambda _: True),
    ):
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--assert=plain", path])
    sys.stdout.write(f"waited {sum(server.waited_ms for server in servers)} ms\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
