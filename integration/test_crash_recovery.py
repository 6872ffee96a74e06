"""A client dies in the midst of a transaction. Its successor aborts that one, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from integration.readers import end_offset, read_with_confluent, values
from integration.waiting import wait_until

pytestmark = pytest.mark.integration

# Commits one transaction, opens another, says so, and waits to be killed.
VICTIM = """
import sys, time
from txnproducer import TransactionalProducer
servers, topic, transactional_id = sys.argv[1:]
producer = TransactionalProducer(servers, transactional_id)
producer.init_transactions()
with producer.transaction():
    producer.send(topic, b"committed")
producer.begin_transaction()
for number in range(100):
    producer.send(topic, b"open %d" % number)
producer.flush()
print("open", flush=True)
time.sleep(60)  # until it is killed
"""


def _wait_until_open(process: subprocess.Popen[bytes]) -> None:
    stdout, stderr = process.stdout, process.stderr
    assert stdout is not None
    assert stderr is not None
    assert stdout.readline() == b"open\n", stderr.read().decode()


@pytest.fixture
def victim(broker, transactional_id):
    topic = broker.topic()
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, broker.servers, topic, transactional_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_until_open(process)
        yield topic, process
    finally:
        process.kill()
        process.communicate()


def test_the_same_id_recovers_after_kill_9_and_nothing_of_the_open_transaction_is_seen(
    broker, transactional_id, victim
):
    topic, process = victim
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    began = time.monotonic()
    with broker.ready(transactional_id) as successor:
        with successor.transaction():
            successor.send(topic, b"recovered")
    # By its id, at once: not by the dead transaction's time-out of a minute.
    assert time.monotonic() - began < 15
    assert values(read_with_confluent(broker.servers, topic)) == [b"committed", b"recovered"]
    assert len(read_with_confluent(broker.servers, topic, "read_uncommitted")) == 102


# As a program that nobody wrote with Ctrl-C in mind: with a block, and without anything at all.
WITH_BLOCK = VICTIM.replace(
    "producer.begin_transaction()", "with producer.transaction():"
).replace(
    """for number in range(100):
    producer.send(topic, b"open %d" % number)
producer.flush()
print("open", flush=True)
time.sleep(60)  # until it is killed
""",
    """    producer.send(topic, b"open")
    producer.flush()
    print("open", flush=True)
    time.sleep(60)  # until it is killed
""",
)


@pytest.mark.parametrize("program", [WITH_BLOCK, VICTIM], ids=["in a block", "without a block"])
def test_ctrl_c_aborts_the_open_transaction_on_the_way_out(broker, transactional_id, program):
    topic = broker.topic()
    process = subprocess.Popen(
        [sys.executable, "-c", program, broker.servers, topic, transactional_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_until_open(process)
        process.send_signal(signal.SIGINT)
        process.wait(15)
    finally:
        process.kill()
        process.communicate()
    with broker.ready(transactional_id + "-other") as other, other.transaction():
        other.send(topic, b"seen")
    # Had it stayed open, it would hold readers back before `seen` for a minute.
    assert values(read_with_confluent(broker.servers, topic)) == [b"committed", b"seen"]


def test_ctrl_c_in_the_command_line_aborts_and_says_so(broker):
    topic = broker.topic()
    command = ["send", "-b", broker.servers, "-t", topic, "--generate", "100000"]
    command += ["--rate", "200", "--transaction-size", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "txnproducer", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: end_offset(broker.servers, topic) >= 10, "nothing was sent")
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "was aborted" in told
    assert json.loads(out)["transactions"] == {
        "committed": 0,
        "aborted": 1,
        "open": 0,
        "unknown": 0,
    }
    assert read_with_confluent(broker.servers, topic) == []
