"""Many seeds of the whole stack, for the command that distributes them and adds up the results.

Owns: `run_stack_seeds`, the fingerprint of the code that they run. Must not know: processors, the
file of results (`sim.campaign` has its lines).
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from txnproducer.sim.campaign import Totals, judged_files
from txnproducer.sim.stack.faults import ByteFault
from txnproducer.sim.stack.options import (
    CALL_FAULTS,
    EVENTS,
    LATER_CALL_FAULTS,
    LATER_EVENTS,
)
from txnproducer.sim.stack.run import run_stack_seed
from txnproducer.sim.stack.token_options import TOKEN_EVENTS, TOKEN_FAULTS

__all__ = ["KINDS", "run_stack_seeds", "stack_fingerprint"]

# All kinds of faults that a run can draw.
KINDS: Final = (
    *(kind.value for kind in ByteFault),
    *CALL_FAULTS,
    *EVENTS,
    *LATER_CALL_FAULTS,
    *LATER_EVENTS,
    *TOKEN_FAULTS,
    *TOKEN_EVENTS,
)
# Beside the sources of the core's campaign.
_SOURCES: Final = (
    "_server/*.py",
    "_shell/**/*.py",
    "_sync/*.py",
    "_wire/**/*.py",
    "sim/stack/*.py",
    "producer.py",
    "transaction.py",
)


def run_stack_seeds(seeds: Iterable[int]) -> Totals:
    """Run seeds one after the other."""
    totals = Totals()
    was_enabled = gc.isenabled()
    # A collection in the midst of a run could call a finalizer there, in another place each time.
    gc.disable()
    try:
        for seed in seeds:
            result = run_stack_seed(seed)
            totals.add(
                Totals(
                    1,
                    result.requests,
                    round(result.virtual_s * 1000),
                    result.claims,
                    result.faults,
                    # The first one, which ends the run: others are mostly its consequences.
                    [(seed, *violation) for violation in result.violations[:1]],
                )
            )
            # Between two runs: a finalizer of this one must not run in the next.
            gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    return totals


def stack_fingerprint() -> str:
    """Return an id of the version of stack and judge."""
    package = Path(__file__).parent.parent.parent
    own = [path for pattern in _SOURCES for path in package.glob(pattern)]
    digest = hashlib.sha256()
    for path in sorted({*judged_files(), *own}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"stack-{digest.hexdigest()[:12]}"
