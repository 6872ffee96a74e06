"""The command line on a real broker: the records it writes, its counts, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from txnproducer.testing import KafkaCluster

pytestmark = pytest.mark.integration


class Shell:
    """Run `txnproducer` against one cluster."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        where = ("-b", self._cluster.bootstrap_servers)
        return subprocess.Popen(
            [sys.executable, "-m", "txnproducer", command, *where, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *arguments: str, text: str = "") -> tuple[int, dict, str]:
        """Return the exit code, the closing line, and the text for people."""
        process = self.start(command, *arguments)
        out, err = process.communicate(text, timeout=60)
        return process.returncode, json.loads(out), err


@pytest.fixture
def shell(kafka_cluster):
    return Shell(kafka_cluster)


def test_lines_that_are_alike_are_different_records(shell):
    topic = f"new-{uuid.uuid4().hex[:8]}"
    code, sent, told = shell.run("send", "-t", topic, text="a\nb\nc\na\n")
    assert (code, sent["records"]) == (0, 4)
    assert f"There was no topic {topic!r}: the cluster made it" in told

    code, counted, told = shell.run("verify", "-t", topic, "--expect", "4")
    assert (code, counted["by"], counted["compared"], counted["duplicates"]) == (0, "id", 4, 0)
    assert "All 4 committed records were compared" in told

    code, counted, _ = shell.run("verify", "-t", topic, "--by", "value")
    assert (code, counted["duplicated"]) == (1, ["a"])
    code, counted, told = shell.run("verify", "-t", topic, "--by", "key")
    assert (code, counted["not_compared"], counted["duplicates"]) == (0, 4, None)
    assert "4 have none" in told


def test_a_fenced_run_is_not_advised_to_run_again(shell, kafka_topic):
    first = shell.start("send", "-t", kafka_topic, "--transaction-size", "1")
    assert first.stdin is not None
    first.stdin.write("one\n")
    first.stdin.flush()
    while not shell.run("verify", "-t", kafka_topic)[1]["committed"]:
        assert first.poll() is None
    assert shell.run("send", "-t", kafka_topic, "--generate", "1")[0] == 0
    out, err = first.communicate("two\n", timeout=60)
    assert first.returncode == 4, err
    assert json.loads(out)["transactions"]["committed"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--generate", "1", "--size", "2000000"),
        ("--generate", "1", "--size", "2000000", "-X", "max.request.size=9000000"),
        ("--generate", "1", "--partition", "9"),
        ("--generate", "1", "-X", "transaction.timeout.ms=99999999"),
    ],
    ids=["too large for us", "too large for the broker", "no such partition", "above the limit"],
)
def test_an_error_that_only_a_person_can_fix_does_not_advise_another_run(
    shell, kafka_topic, arguments
):
    code, line, told = shell.run("send", "-t", kafka_topic, *arguments)
    assert code == 4
    assert line["transactions"]["committed"] == 0
    # Without compiled parts a line before it says so.
    assert [line.startswith("Error: ") for line in told.splitlines()].count(True) == 1
    assert told.count("Error") == 1


@pytest.mark.parametrize("command", ["send", "verify", "sink-status"])
def test_every_command_reports_a_host_that_does_not_exist(command):
    arguments = ["a-sink", "--ledger-topic", "t"] if command == "sink-status" else ["-t", "t"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "txnproducer",
            command,
            "-b",
            "no-such-host.invalid:9092",
            *arguments,
        ],
        input="line\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    assert "no-such-host.invalid" in done.stderr


def test_sigterm_aborts_and_reports_the_outcome_of_the_records(shell, kafka_topic):
    process = shell.start("send", "-t", kafka_topic, "--transaction-size", "1")
    assert process.stdin is not None
    process.stdin.write("one\n")
    process.stdin.flush()
    while not shell.run("verify", "-t", kafka_topic)[1]["committed"]:
        assert process.poll() is None
    process.terminate()
    out, err = process.communicate(timeout=60)
    line = json.loads(out)
    assert process.returncode == 143
    assert line["transactions"]["committed"] == 1
    assert f"--skip 1 --run-id {line['run_id']}" in err
