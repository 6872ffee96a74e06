"""The model answers every case as a real broker did when its transcripts were frozen.

`python -m integration.conformance.record` freezes them again; `integration/test_conformance.py`
compares with brokers that run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.conformance.bytes import ByteTarget
from integration.conformance.case import play
from integration.conformance.cases import CASES
from integration.conformance.model import ModelTarget

FROZEN = json.loads((Path(__file__).parents[1] / "data" / "broker_transcripts.json").read_text())
PLAYED = [(mode, name) for mode, frozen in FROZEN.items() for name in frozen["transcripts"]]


@pytest.mark.parametrize(("mode", "name"), PLAYED, ids=[f"{m}-{name}" for m, name in PLAYED])
def test_the_model_answers_as_the_real_broker_did(mode: str, name: str) -> None:
    frozen = FROZEN[mode]
    case = CASES[name]
    target = ModelTarget(frozen["version"], frozen["transaction_version"], case.nodes)
    assert play(case, target) == frozen["transcripts"][name]


@pytest.mark.parametrize(("mode", "name"), PLAYED, ids=[f"{m}-{name}" for m, name in PLAYED])
def test_the_model_answers_in_bytes_as_the_real_broker_did(mode: str, name: str) -> None:
    frozen = FROZEN[mode]
    case = CASES[name]
    target = ByteTarget(frozen["version"], frozen["transaction_version"], case.nodes)
    assert play(case, target) == frozen["transcripts"][name]


@pytest.mark.parametrize("mode", FROZEN)
def test_every_case_has_been_played_on_the_real_broker(mode: str) -> None:
    frozen = FROZEN[mode]
    version = frozen["transaction_version"]
    expected = {name for name, case in CASES.items() if case.is_for(version)}
    assert set(frozen["transcripts"]) == expected
