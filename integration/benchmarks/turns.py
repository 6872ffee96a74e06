"""The order of the runs: the peers one after the other, round after round.

Owns: the order, and what a failure costs: that run, and no other. Must not know: how a peer is
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from integration.benchmarks.job import FailedRunError, LeftOutError, Told
from integration.benchmarks.results import Result
from integration.benchmarks.works import Work


def take_turns(
    table: str, work: Work, peers: Sequence[str], rounds: int, measure_once: Callable[[str], Told]
) -> list[Result]:
    """Return the results of the peers, and their failed runs."""
    found = {peer: Result(table, work, peer, []) for peer in peers}
    for number, peer in _turns(peers, rounds):
        _take_turn(found[peer], number, measure_once)
    return list(found.values())


def _turns(peers: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    # Each round begins with another peer: what drifts is spread evenly.
    for number in range(rounds):
        first = number * len(peers) // rounds
        yield from ((number + 1, peer) for peer in (*peers[first:], *peers[:first]))


def _take_turn(result: Result, number: int, measure_once: Callable[[str], Told]) -> None:
    for attempt in ("", ", again"):
        if result.left_out:
            return
        try:
            result.runs.append(measure_once(result.peer))
            return
        except FailedRunError as why:
            result.failures.append(f"round {number}{attempt}: {why}")
        except LeftOutError as why:
            result.left_out = str(why)
