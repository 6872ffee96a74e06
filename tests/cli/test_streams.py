"""A result that cannot be written is an error, and a message that cannot be written is dropped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from txnproducer.testing import InMemoryKafka

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


# In Python's development mode, in which a failure at exit is printed.
COMMAND = [sys.executable, "-X", "dev", "-W", "ignore", "-m", "txnproducer"]


def run(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=60,
    )


def run_with_closed(stream, *arguments):
    """Run a command with one stream closed, by a text of the shell such as `>&-`."""
    closing = ["sh", "-c", f'exec "$@" {stream}', "sh", *COMMAND, *arguments]
    return subprocess.run(closing, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["send", "--help"]])
def test_a_help_that_cannot_be_written_is_one_line(arguments):
    with FULL.open("w") as full:
        done = run(*arguments, stdout=full)
    told = "Error: the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (4, told)


@pytest.mark.parametrize("options", [[], ["--leave-open", "--transaction-size", "4"]])
def test_a_report_for_a_standard_output_that_is_closed_is_not_lost(options):
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        more = ("-t", "orders", "--generate", "10", *options)
        done = run_with_closed(">&-", "send", "-b", kafka.listen(), *more)
        committed = len(kafka.records("orders"))
    assert (done.returncode, committed) == (4, 8 if options else 10)
    assert 'The report, which could not be written: {"topic": "orders"' in done.stderr
    assert done.stderr.endswith("the output could not be written: Bad file descriptor\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--seed", "1", "--trace"], ["--seed", "1"]])
def test_a_result_that_cannot_be_written_is_one_line(arguments):
    with FULL.open("w") as full:
        done = run("simulate", *arguments, stdout=full)
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert last == "Error: the output could not be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "VIOLATION" not in done.stderr


def test_a_reader_that_has_enough_of_a_trace_ends_it_quietly():
    with subprocess.Popen(
        [sys.executable, "-m", "txnproducer", "simulate", "--seed", "1", "--trace"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "options of seed 1:\n"
        process.stdout.close()
        assert process.stderr.read() == ""


def test_messages_that_cannot_be_written_are_dropped_and_the_result_is_printed():
    with FULL.open("w") as full:
        done = run("simulate", "--seed", "1", "--jobs", "1", stderr=full)
    assert done.returncode == 0
    assert done.stdout.endswith("no violation\n")


@pytest.mark.parametrize("options", [[], ["--leave-open", "--transaction-size", "4"]])
def test_send_says_what_became_of_the_records_when_its_report_cannot_be_written(options):
    with InMemoryKafka() as kafka, FULL.open("w") as full:
        kafka.create_topic("orders")
        more = ("-t", "orders", "--generate", "10", "--run-id", "mine", *options)
        done = run("send", "-b", kafka.listen(), *more, stdout=full)
        committed = len(kafka.records("orders"))
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    (report,) = [line for line in lines if line.startswith("The report, which could not be")]
    said = json.loads(report.partition(": ")[2])
    assert (said["run_id"], said["records"]) == ("mine", 10)
    assert said["transactions"]["open"] == bool(options)
    assert committed == (8 if options else 10)
    assert "The first 10 records are dealt with. To go on, add --skip 10" in done.stderr
    assert "No space left on device" in lines[-1]
    assert "Traceback" not in done.stderr
