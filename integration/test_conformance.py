"""Every case on a real broker and on the model: the transcripts are equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.conformance.case import play
from integration.conformance.cases import CASES
from integration.conformance.live import LiveTarget
from integration.conformance.model import ModelTarget
from integration.conftest import Broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def live(broker: Broker) -> Iterator[LiveTarget]:
    with LiveTarget(broker.servers, broker.mode.transaction_version) as target:
        yield target


@pytest.mark.parametrize("name", CASES)
def test_the_model_answers_as_the_real_broker_does(
    broker: Broker, live: LiveTarget, name: str
) -> None:
    case, mode = CASES[name], broker.mode
    if not case.is_for(mode.transaction_version):
        pytest.skip(f"about transactions v{case.only} alone")
    truth = play(case, live)
    assert play(case, ModelTarget(mode.version, mode.transaction_version)) == truth
