"""One seed is one run: in this interpreter, and in others."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from txnproducer._protocol.messages import (
    LeaderIdAndEpoch,
    ProducePartitionResponse,
    ProduceResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition
from txnproducer.sim import run_seed
from txnproducer.sim.world.trace import show_message

SEEDS = (1, 60, 405)


def trace_of(seed):
    lines: list[str] = []
    run_seed(seed, lines.append)
    return lines


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_gives_the_same_trace_again(seed):
    assert trace_of(seed) == trace_of(seed)


def test_the_trace_names_the_fields_of_a_message_that_differ_from_their_defaults():
    answers = (
        ProducePartitionResponse(TopicPartition("t", 0), ErrorCode.NONE, 5),
        ProducePartitionResponse(
            TopicPartition("t", 1), 6, current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=3)
        ),
    )
    assert show_message(ProduceResponse(answers)) == (
        "ProduceResponse(partitions=["
        "ProducePartitionResponse(topic_partition=t-0, error_code=NONE, base_offset=5), "
        "ProducePartitionResponse(topic_partition=t-1, error_code=NOT_LEADER_OR_FOLLOWER, "
        "current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=3))])"
    )


def test_another_seed_gives_another_trace():
    assert trace_of(1) != trace_of(2)


def test_looking_on_changes_nothing():
    lines: list[str] = []
    seen, unseen = run_seed(3, lines.append), run_seed(3)
    assert (seen.requests, seen.virtual_ms) == (unseen.requests, unseen.virtual_ms)


_PRINT_DIGESTS = (
    "from tests.sim.test_same_seed_same_trace import SEEDS, digest, trace_of\n"
    "print([digest(trace_of(seed)) for seed in SEEDS])"
)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_an_interpreter_that_hashes_otherwise_gives_the_same_trace(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == str([digest(trace_of(seed)) for seed in SEEDS])
