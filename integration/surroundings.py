"""The circumstances of a measurement: commit, versions, processors and the load of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import Any

from txnproducer._record.implementation import IMPL


def about_run(kafka: str) -> dict[str, Any]:
    """Return the circumstances of a run that begins now, on a version of Kafka."""
    return {
        "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        # The last one that changed the package.
        "commit": _git("log", "-1", "--format=%h", "--", "txnproducer") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no", "txnproducer")),
        "implementation": IMPL,
        "kafka": kafka,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_before": load(),
    }


def load() -> float:
    """Return how many processes have run or waited for a processor in the last minute."""
    return round(os.getloadavg()[0], 1)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()
