"""The short form of `make chaos-clusters`: one row of ours, judged by the campaign's checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos.cluster import plain_kafka
from integration.chaos.plan import KILL, LEADER, OURS, PLAIN, Row
from integration.chaos.play import NO_TIME_LEFT, play
from integration.chaos.writers import python_command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

# On a busy machine a broker may take the whole row to start again. Such a row shows nothing, good
# or bad, and the next one is longer.
_LONGER_S = (0.0, 20.0, 60.0)


@pytest.mark.each_time  # the campaign has no other short form
def test_a_killed_leader_costs_no_transaction(tmp_path: Path) -> None:
    row = Row(OURS, KILL, LEADER, PLAIN, 2)
    with plain_kafka(row.version) as kafka:
        for more_s in _LONGER_S:
            folder = tmp_path / str(more_s)
            folder.mkdir()
            played = play(kafka, row, python_command, folder, lambda writers: None, more_s)
            if played.failed != NO_TIME_LEFT:
                break
    assert (played.failed, played.wrong, played.hung) == ("", {}, 0), played
    assert played.outcomes.keys() <= {"committed", "aborted"}
    assert played.producers == 1
    assert played.recovery_s is not None
