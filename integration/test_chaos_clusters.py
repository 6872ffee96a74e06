"""The short form of `make chaos-clusters`: one row of ours, judged by the campaign's checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos.cluster import plain_kafka
from integration.chaos.plan import KILL, LEADER, OURS, PLAIN, Row
from integration.chaos.play import NO_TIME_LEFT, play
from integration.chaos.writers import python_command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

# On a busy machine a broker may take the whole row to start again. Such a row shows nothing, good
# or bad.
_ATTEMPTS = 3


def test_a_killed_leader_costs_no_transaction(tmp_path: Path) -> None:
    row = Row(OURS, KILL, LEADER, PLAIN, 2)
    with plain_kafka(row.version) as kafka:
        for attempt in range(_ATTEMPTS):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            played = play(kafka, row, python_command, folder, lambda writers: None)
            if played.failed != NO_TIME_LEFT:
                break
    assert (played.failed, played.wrong, played.hung) == ("", {}, 0), played
    assert played.outcomes.keys() <= {"committed", "aborted"}
    assert played.producers == 1
    assert played.recovery_s is not None
