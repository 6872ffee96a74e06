"""The fresh producers beside a row commit, or end at their limit and leave nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from integration.chaos import probe
from integration.chaos.history import add_up, load
from integration.chaos.job import Job
from integration.chaos.plan import NEUTRAL, OURS
from txnproducer import TopicPartition
from txnproducer.errors import KafkaError
from txnproducer.testing import InMemoryKafka

NO_BROKER = "127.0.0.1:1"
PARTITIONS = 4


@pytest.fixture(params=[OURS, NEUTRAL])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name.replace("-", "_"), reason="it is in the dependency group `bench`")
    return name


def job(client: str, servers: str = NO_BROKER, **more: Any) -> Job:
    settings = {"until": 0.0, "history": "", **more}
    return Job(client, servers, "an id", "a probe", "plain", ["t"], PARTITIONS, **settings)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_an_attempt_commits_to_each_partition_with_offsets_of_a_group(client: str) -> None:
    with InMemoryKafka({"t": PARTITIONS, "in": 1}) as kafka:
        work = job(client, kafka.listen(), source="in")
        group = probe.group_metadata(client, work.servers, "a group")
        for name in ("one", "two"):
            probe.COMMIT[client](work, name, group, 4.0)
        assert [kafka.transactions()[name].state for name in ("one", "two")] == [
            "CompleteCommit"
        ] * 2
        assert len(kafka.records("t")) == 2 * PARTITIONS
        assert [*kafka.committed("a group")] == [TopicPartition("in", 0)]


@pytest.mark.skipif(sys.platform != "linux", reason="it counts the process's threads in /proc")
def test_an_attempt_without_a_broker_ends_at_its_limit_and_leaves_no_thread(client: str) -> None:
    before, began = threads(), time.monotonic()
    with pytest.raises(KafkaError):
        probe.COMMIT[client](job(client), "an id", None, 1.0)
    assert time.monotonic() - began < 8.0
    end = time.monotonic() + 5.0
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)  # a thread that has ended leaves /proc a moment later
    assert threads() <= before


def test_a_probe_notes_the_commits_of_its_client_and_goes_on_after_an_error(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [KafkaError("late")]

    def commit(_: Job, transactional_id: str, group: Any, limit_s: float) -> None:
        assert (transactional_id, group, limit_s) == ("an id", "the group", probe.LIMIT_S)
        if errors:
            raise errors.pop()

    monkeypatch.setitem(probe.COMMIT, client, commit)
    monkeypatch.setattr(probe, "EVERY_S", 0.01)
    history = tmp_path / "probe.jsonl"
    work = job(client, until=time.monotonic() + 0.5, history=str(history))
    probe.Attempts(work, ["an id"], "the group").run()
    assert list(add_up(load([history])).probes) == [client]
    assert not errors
