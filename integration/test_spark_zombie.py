"""The fatal schedule of a shared transaction, on a standalone Spark, with claims and without.

A task of a batch has written half of its rows when the shuffle that it reads from is lost. Spark
runs the stage again, as first attempts, and does not say so. The new task writes into the same
transaction, under the same numbers: the broker takes its first batches for the old one's, which it
has, and drops them with a success. Then the old task wakes.
"""

from __future__ import annotations

import pytest

from integration.spark_chaos.faults import BEGINNINGS, BY_NAME, zombie
from integration.spark_chaos.scene import Scene
from integration.spark_chaos.stage import Stage

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long("two runs on a standalone Spark, and a minute each"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def stage():
    with Stage(nodes=1) as stage:
        yield stage


@pytest.fixture
def play(stage):
    scenes = []

    def play(name, **arguments):
        scene = Scene(stage, name, "batch", "zombie-1")
        scenes.append(scene)
        scene.prepare(BY_NAME["zombie"].rows, BY_NAME["zombie"].row_bytes)
        end = zombie(scene, **arguments)
        return end, [scene.keeper.has_come(name) for name in BEGINNINGS]

    yield play
    for scene in scenes:
        scene.clear()


def test_with_claims_the_new_task_is_refused_and_the_batch_is_run_again(play):
    end, begun = play("with-claims")
    assert end.is_right, end
    assert begun == [True, True, True]


def test_without_claims_rows_are_lost_and_doubled(play):
    end, begun = play("without-claims", has_claims=False)
    assert end.count.lost > 0, (end, begun)
    assert end.count.doubled == end.count.lost  # all counts agree, and so nobody notices
    assert begun == [True, True, False]
