"""A broker that leaves the cluster in virtual time, and the judge of attempts to connect to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.needs import in_python
from txnproducer._broker.options import ClusterOptions
from txnproducer._protocol.messages import BrokerNode
from txnproducer._wire.network_client import NetworkClient
from txnproducer.sim.stack.broker_watch import BrokerWatch
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.run import StackRun

HERE, GONE = BrokerNode(1, "here", 9092), BrokerNode(2, "gone", 9092)


class Client:
    """The part of a client that the core tells about brokers."""

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None: ...

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        self.update_nodes(nodes)


class Scene:
    """A judge, and the time."""

    def __init__(self, *bootstrap: str) -> None:
        self.now_ms = 0
        self.found: list[str] = []
        self.client = Client()
        self.watch = BrokerWatch(
            bootstrap, lambda: self.now_ms, lambda check, _: self.found.append(check)
        )
        self.watch.listen(self.client)
        self.client.replace_nodes([HERE, GONE])
        self.client.replace_nodes([HERE])


@pytest.mark.parametrize(
    ("host", "after_ms", "found"),
    [("gone", 1_001, ["gone"]), ("gone", 1_000, []), ("here", 9_000, []), ("else", 9_000, [])],
)
def test_an_attempt_to_connect_to_a_broker_that_has_left_is_found(host, after_ms, found):
    scene = Scene()
    scene.now_ms = after_ms
    scene.watch.looks_up(host)
    assert scene.found == found


def test_a_broker_that_another_answer_names_again_is_back():
    scene = Scene()
    scene.client.update_nodes([GONE])
    scene.now_ms = 9_000
    scene.watch.looks_up("gone")
    assert scene.found == []


def test_a_second_answer_without_the_broker_does_not_excuse_the_attempt():
    scene = Scene()
    scene.now_ms = 9_000
    scene.client.replace_nodes([HERE])
    scene.watch.looks_up("gone")
    assert scene.found == ["gone"]


def test_a_bootstrap_address_may_always_be_tried():
    scene = Scene("gone")
    scene.now_ms = 9_000
    scene.watch.looks_up("gone")
    assert scene.found == []


def leaving(seed: int) -> StackOptions:
    """Return the options of a run with one event: a broker leaves."""
    calm = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    return replace(
        calm,
        seed=seed,
        cluster=ClusterOptions(node_count=3),
        event_s={"a broker leaves": 0.05},
        byte_rates={},
        # A loop that may stand still for longer is not judged.
        longest_stall_s=0.01,
        transactions=12,
    )


@in_python
@pytest.mark.parametrize("seed", range(3))
def test_the_others_take_over_and_producers_go_on(seed):
    run = StackRun(leaving(seed))
    result = run.run()
    assert result.violations == []
    assert result.faults["a broker leaves"] == 1
    cluster, leaver = run.world.cluster, run.world.options.leaver
    assert leaver is not None
    assert not cluster.is_up(leaver)
    assert leaver not in cluster.leaders.values()


@in_python
def test_a_client_that_forgets_no_broker_is_found(monkeypatch):
    monkeypatch.setattr(NetworkClient, "replace_nodes", NetworkClient.update_nodes)
    found: set[str] = set()
    for seed in range(6):
        options = leaving(seed)
        # While the others are down, a client tries what else it knows.
        events = {**options.event_s, "stop a broker": 0.5}
        run = StackRun(replace(options, event_s=events, transactions=30))
        found |= {check for check, _ in run.run().violations}
    assert found == {"gone"}


def test_each_broker_of_a_cluster_may_be_the_one_that_leaves():
    drawn = [options.leaver for options in map(StackOptions.draw, range(500))]
    assert {0, 1, 2, None} == set(drawn)
