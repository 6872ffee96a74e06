"""The driver of the campaign notes the outcome that its client's errors mean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from integration.chaos import driver as module
from integration.chaos.clients import OPEN, Verdict
from integration.chaos.driver import Driver
from integration.chaos.history import add_up, load
from integration.chaos.job import Job

COMMITS = 4


class ScriptedError(Exception):
    """An error with the verdict of a client's documentation."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class ScriptedClient:
    """A client that fails each call once, at the second transaction.

    Args:
        fails: the verdicts by the names of the calls.
        resolved: the answer about a commit in doubt.
    """

    names_refusals = False

    def __init__(self, fails: dict[str, Verdict], resolved: str) -> None:
        self._fails, self._resolved = fails, resolved
        self.made = self.begun = 0

    def __call__(self, *_: str) -> ScriptedClient:
        self.made += 1
        return self

    def _play(self, call: str) -> None:
        if self.begun == 2 and call in self._fails:
            raise ScriptedError(self._fails.pop(call))

    def init(self) -> None: ...

    def begin(self) -> None:
        self.begun += 1

    def send(self, *_: Any) -> None:
        self._play("send")

    def commit(self) -> None:
        self._play("commit")

    def abort(self) -> None:
        self._play("abort")

    def close(self) -> None: ...

    def verdict(self, error: ScriptedError) -> Verdict:
        return error.verdict

    def failed(self) -> None: ...

    def resolve(self) -> str:
        return self._resolved


@pytest.mark.parametrize(
    ("fails", "resolved", "told", "producers"),
    [
        ({}, "unknown", "committed", 1),
        ({"commit": "again"}, "unknown", "committed", 1),
        ({"commit": "abort"}, "unknown", "aborted", 1),
        ({"commit": "abort", "abort": "restart"}, "unknown", "unknown", 2),
        ({"send": "abort", "abort": "restart"}, "unknown", "aborted", 2),
        ({"commit": "restart"}, "unknown", "aborted", 2),
        ({"commit": "unknown"}, "unknown", "unknown", 2),
        ({"commit": "unknown"}, "committed", "committed", 2),
        ({"send": "again"}, "unknown", "aborted", 1),
        ({"send": "unknown"}, "unknown", "aborted", 2),
    ],
)
def test_the_reported_outcome_is_the_one_that_the_error_means(
    fails: dict[str, Verdict],
    resolved: str,
    told: str,
    producers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ScriptedClient(dict(fails), resolved)
    monkeypatch.setitem(OPEN, "scripted", client)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    path = tmp_path / "a.jsonl"
    until = time.monotonic() + 60
    job = Job("scripted", "", "the id", "a", "plain", ["t"], 4, until, str(path))
    writer = Driver(job)
    monkeypatch.setattr(writer, "_goes_on", lambda: client.begun < COMMITS)
    writer.run()

    history = add_up(load([path]))
    outcomes = [txn.told for txn in history.txns.values()]
    assert outcomes == ["committed", told, "committed", "committed"]
    assert client.made == producers
    assert len(history.inits) == producers


def test_a_client_that_says_what_is_refused_is_believed_though_its_abort_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClient, "names_refusals", True)
    fails: dict[str, Verdict] = {"commit": "abort", "abort": "restart"}
    test_the_reported_outcome_is_the_one_that_the_error_means(
        fails, "unknown", "aborted", 2, tmp_path, monkeypatch
    )
