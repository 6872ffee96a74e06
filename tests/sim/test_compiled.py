"""The sources as `make sim-compiled` needs them, checked without its four minutes of C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.compiled import copy_sources, modules_of

_TRANSLATE = (
    "import sys; from mypyc.build import mypycify; mypycify(sys.argv[1:], multi_file=True)"
)


@pytest.mark.timeout(300)
def test_mypyc_translates_the_simulated_world(tmp_path: Path):
    """Types that mypy takes and mypyc refuses are found here, not by the next long campaign."""
    copy_sources(tmp_path)
    translate = [sys.executable, "-c", _TRANSLATE, *modules_of(tmp_path)]
    done = subprocess.run(translate, cwd=tmp_path, capture_output=True, text=True, check=False)
    refused = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert (done.returncode, refused) == (0, [])
