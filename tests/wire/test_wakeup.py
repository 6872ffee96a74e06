"""The wake-up of the loop: it works to the very end of the interpreter."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from txnproducer._record.implementation import IMPL
from txnproducer._wire.wakeup import Wakeup

# A function registered first runs last: after everything that `weakref.finalize` would close.
AT_EXIT = """
import atexit
wakeups = []
atexit.register(lambda: (wakeups[0].set(), print("woken")))
from txnproducer._wire.wakeup import Wakeup
wakeups.append(Wakeup())
"""


def test_it_still_wakes_the_loop_while_the_interpreter_exits():
    asked = {**os.environ, "TXNPRODUCER_IMPL": IMPL}  # who asks is not told what is missing
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], env=asked, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("woken\n", "")


def test_it_ends_a_select_until_it_is_cleared():
    wakeup = Wakeup()
    assert not select.select([wakeup], [], [], 0)[0]
    wakeup.set()
    wakeup.set()
    assert select.select([wakeup], [], [], 0)[0]
    wakeup.clear()
    assert not select.select([wakeup], [], [], 0)[0]
