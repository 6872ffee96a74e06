"""A program that does not configure logging sees warnings, and nothing else."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
import txnproducer
log = logging.getLogger("txnproducer.spark.driver.replay")
log.warning("rows are not written")
log.info("a batch is written")
"""


def test_warnings_are_written_to_standard_error_without_any_configuration():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "rows are not written"
    assert done.stdout == ""
