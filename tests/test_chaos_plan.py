"""The plan of the campaign beside the peers contains every pair that it promises."""

from __future__ import annotations

import pytest

from integration.chaos.plan import (
    CLIENTS,
    COPY,
    FAULTS,
    GROUP_COORDINATOR,
    MOST_ROWS,
    UPGRADE,
    VERSIONS,
    WANTED,
    WORKLOADS,
    cover,
    possible,
    possible_rows,
    targets_of,
)
from integration.chaos.strikes import held_s


@pytest.mark.parametrize("client", CLIENTS)
def test_every_fault_meets_each_target_workload_and_version_that_it_can(client: str) -> None:
    rows = cover(client)
    pairs = frozenset().union(*(row.pairs for row in rows))
    for fault in FAULTS:
        versions = (1,) if fault == UPGRADE else VERSIONS
        others = [*targets_of(fault), *WORKLOADS, *(f"v{version}" for version in versions)]
        assert {(fault, other) for other in others} <= pairs


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_has_at_most_sixty_rows_each_possible_and_each_once(client: str) -> None:
    rows = cover(client)
    assert len(rows) <= MOST_ROWS
    assert len({row.name for row in rows}) == len(rows)
    assert all(map(possible, rows))


def test_no_row_is_left_out_of_the_cover_without_need() -> None:
    # Each row adds a pair: a row that added none would only cost a minute.
    seen: set[tuple[str, str]] = set()
    rows = cover(CLIENTS[0])
    for row in rows[: -len(WANTED)]:
        assert row.pairs - seen
        seen |= row.pairs


def test_the_rows_that_are_wanted_besides_are_the_last() -> None:
    last = cover(CLIENTS[0])[-len(WANTED) :]
    assert [(row.fault, row.target, row.workload, row.version) for row in last] == list(WANTED)
    assert all(map(possible, last))


def test_a_campaign_that_is_stopped_early_has_seen_every_fault() -> None:
    assert {row.fault for row in cover(CLIENTS[0])[: len(FAULTS)]} == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_undone_within_a_row(fault: str) -> None:
    assert held_s(fault) <= 10


def test_a_groups_coordinator_is_struck_only_where_there_is_a_group() -> None:
    rows = [row for row in possible_rows(CLIENTS[0]) if row.target == GROUP_COORDINATOR]
    assert {row.workload for row in rows} == {COPY}
