"""The demo is interrupted: it ends at once, says no more than that, and leaves no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(signal.SIGINT, 130, "Interrupted.\n"), (signal.SIGTERM, 143, "")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_an_interrupted_demo_ends_quietly_and_leaves_no_folder(tmp_path, number, code, told):
    rows = tmp_path / "rows.csv"
    rows.write_text("name\n" + "row\n" * 8)
    folders = tmp_path / "folders"
    folders.mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "txnproducer", "demo", "--input", str(rows)],
        env={**os.environ, "TMPDIR": str(folders), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "batch 0" in line:
            break
    # As a terminal does: to Spark and to Kafka as well.
    os.killpg(demo.pid, number) if number == signal.SIGINT else demo.send_signal(number)
    assert (demo.communicate(timeout=60)[1], demo.returncode) == (told, code)
    assert [path.name for path in folders.iterdir() if "txnproducer" in path.name] == []
